"""A training run from its spec to its end: build, go on from a checkpoint, train, compare, save, export."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gputopo.launch.models.models import Model, parameter_count
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.supervise.locks import locked_outputs
from gputopo.launch.train.inputs.source import noticing
from gputopo.launch.train.lifecycle.checkpoint_files import require_writable
from gputopo.launch.train.lifecycle.checkpoints import Checkpoints
from gputopo.launch.train.lifecycle.exporting import Export
from gputopo.launch.train.lifecycle.tensorboard import Scalars
from gputopo.launch.train.lifecycle.tracing import Tracer
from gputopo.launch.train.loop import Loop, LossWatch, Observer, Stopped, never
from gputopo.launch.train.placement.variables import largest_difference
from gputopo.launch.train.scale_watch import ScaleWatch
from gputopo.launch.train.start import UNTOLD, Start
from gputopo.launch.train.step import StepOutcome
from gputopo.launch.train.trainers import Held, Stepper, stepper_of
from gputopo.values.events import Event, PhaseBegun, ReplicasCompared, Step

Emit = Callable[[Event], None]
Made = TypeVar("Made", bound=Stepper)


def train(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: Start = UNTOLD,
    stopped: Stopped = never,
) -> Held:
    """Train as the spec says, telling each event through `emit`; give the trained variables' placement.

    Once `stopped` says so, training ends after the step that it is in: what it has come to is saved where
    checkpoints are, and nothing else is done.
    Raises HardwareError if a reduction adds up wrongly or something is not where it should be, InputError for
    a checkpoint of another run or a folder that another run has, DiskError if something cannot be written,
    and whatever TensorFlow raises (`tf.errors.ResourceExhaustedError` when memory is out).
    """
    with locked_outputs(spec.lifecycle):
        return _train(model, spec, emit, start, stopped)


def _train(model: Model, spec: RunSpec, emit: Emit, start: Start, stopped: Stopped) -> Held:
    export = Export(model, spec, emit)
    with built(stepper_of, model, spec, emit, start) as step:
        checkpoints = Checkpoints(model, spec, step, emit)
        trained = checkpoints.start()
        with observers(spec, emit) as watching:
            report = getattr(step, "scale_report", None)
            if report is not None:
                watching.append(ScaleWatch(report, emit))
            loop = Loop(step, spec, emit, [*watching, _Saving(checkpoints)], trained=trained, stopped=stopped)
            loop.first_step()
            loop.warm_up()
            loop.counted_steps()
        checkpoints.save(loop.trained)
        if stopped():
            return step.placement
        if len(step.placement.places) > 1:
            emit(PhaseBegun(time_s=time.time(), phase="comparison"))
            difference = largest_difference(step.placement.places)
            emit(ReplicasCompared(time_s=time.time(), largest_difference=difference))
        export.write(step.placement, steps=loop.trained)
    return step.placement


@contextmanager
def built(
    make: Callable[[Model, RunSpec], Made], model: Model, spec: RunSpec, emit: Emit, start: Start
) -> Iterator[Made]:
    """Make what takes the steps of a run and tell that it stands; at the end its input is closed.

    Raises what `make` raises.
    """
    began = time.perf_counter()
    step = make(model, spec)
    with noticing(step.source, emit):
        start.tell_built(step.source, emit, began, parameters=parameter_count(model), says=step.says)
        yield step


@contextmanager
def observers(spec: RunSpec, emit: Emit) -> Iterator[list[Observer]]:
    """Give who looks at the steps, by the spec; they are closed when the steps are over.

    Raises DiskError for a folder that cannot be written.
    """
    kept = spec.lifecycle
    found: list[Observer] = [LossWatch(emit)]
    if kept.trace is not None and kept.trace_steps:
        require_writable(Path(kept.trace), "--trace", named_by="--output")
        found.append(Tracer(spec, emit))
    if kept.tensorboard is not None:
        require_writable(Path(kept.tensorboard), "--tensorboard")
        found.append(Scalars(spec))
    yield found
    for observer in found:
        observer.close()


class _Saving:
    """Saves checkpoints between steps."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints

    def before(self, number: int) -> None:
        """Nothing to do."""

    def after(self, told: Step, outcome: StepOutcome) -> None:
        """Save if it is time."""
        assert told.global_step is not None
        self._checkpoints.save_if_due(told.global_step)

    def close(self) -> None:
        """The end of training is saved by the run itself."""
