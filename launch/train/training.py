"""A training run from top to bottom: settings, data, model, placement, loop; then comparison and export.

`worker` starts it in its own process. One step is `step.TrainingStep`, one tower's share of it
`towers.TowerMath`; `stepper_of` lists who else can take the steps.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gputopo.launch.locks import locked_outputs
from gputopo.launch.models.model import Model, parameter_count
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.inputs.source import InputSource, noticing
from gputopo.launch.train.lifecycle.checkpoints import Checkpoints
from gputopo.launch.train.lifecycle.exporting import Export
from gputopo.launch.train.lifecycle.folders import require_writable
from gputopo.launch.train.lifecycle.tensorboard import Scalars
from gputopo.launch.train.lifecycle.tracing import Tracer
from gputopo.launch.train.loop import Loop, LossError, LossWatch, ScaleWatch
from gputopo.launch.train.placement.placements import ParameterServer, place
from gputopo.launch.train.placement.trial_step import require_kernels
from gputopo.launch.train.placement.variables import largest_difference, pin
from gputopo.launch.train.step import TrainingStep
from gputopo.launch.train.stepper import Observer, StepOutcome, Stepper, Stopped, VariableSets
from gputopo.values.run.events import Event, ModelBuilt, Noticed, PhaseBegun, ReplicasCompared, Step
from gputopo.values.run.spec import RunSpec

Emit = Callable[[Event], None]
Made = TypeVar("Made", bound=Stepper)


@dataclass(frozen=True)
class WorkerStart:
    """`import_s`: seconds that TensorFlow took to load. `versions`: of what was loaded, and its settings.

    `says`: remarks on what was chosen before.
    """

    import_s: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()

    def emit_built(
        self,
        source: InputSource,
        emit: Emit,
        began: float,
        *,
        parameters: int = 0,
        says: Sequence[str] = (),
    ) -> None:
        """Emit ModelBuilt. `began`: reading of time.perf_counter before the run was built."""
        emit(
            ModelBuilt(
                time_s=time.time(),
                parameters=parameters,
                parameter_bytes=4 * parameters,
                import_s=self.import_s,
                build_s=time.perf_counter() - began,
                versions=dict(self.versions),
                says=(*self.says, *says, *source.notices),
                input=dict(source.describe()),
            )
        )


NO_START = WorkerStart()  # of a run in a process whose start was not measured, as in tests


def train(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: WorkerStart = NO_START,
    stopped: Stopped = lambda: False,
    strategy: Any = None,
) -> VariableSets:
    """Train by the spec and return the trained variables; each event goes to `emit`.

    `strategy`: see `stepper_of`.

    Once `stopped` returns True, training ends after the current step: a checkpoint is saved where
    checkpoints are, and nothing else is done.
    Raises LossError at a loss that is no number, where --on-nan is stop; HardwareError if a reduction adds up
    wrongly or something is on the wrong device, InputError for
    a checkpoint of another run or a folder that another run has locked, DiskError if something cannot be
    written, and whatever TensorFlow raises (`tf.errors.ResourceExhaustedError` when memory is out).
    """
    with locked_outputs(spec.lifecycle):
        export = Export(model, spec, emit)
        make = partial(stepper_of, strategy=strategy, emit=emit)
        with built(make, model, spec, emit, start) as step:
            checkpoints = Checkpoints(model, spec, step, emit)
            trained = checkpoints.start()
            if spec.backend == "gpu" and isinstance(step.placement, ParameterServer):
                pin(step.placement.stored[0])
            losses = LossWatch(emit)
            with observers(spec, emit, losses) as watching:

                def ends() -> bool:
                    return losses.lost is not None and spec.optimization.on_nan == "stop"

                if step.scale is not None:
                    watching.append(ScaleWatch(step.scale.report, emit))
                watching += [*step.observers(emit), _Saving(checkpoints, ends)]
                left = spec.after(trained)
                loop = Loop(
                    step, left or spec, emit, watching, trained=trained, stopped=lambda: stopped() or ends()
                )
                if left is not None:
                    loop.run()
                else:
                    says = (
                        f"The checkpoint has all {trained:,} steps of the run: there is nothing "
                        "left to train."
                    )
                    emit(Noticed(time_s=time.time(), says=says))
            if ends():
                assert losses.lost is not None
                raise LossError(losses.lost, resumable=spec.lifecycle.checkpoints is not None)
            checkpoints.save(loop.trained)
            if stopped():
                return step.placement
            if len(step.placement.places) > 1:
                emit(PhaseBegun(time_s=time.time(), phase="comparison"))
                difference = largest_difference(step.placement.places)
                emit(ReplicasCompared(time_s=time.time(), largest_difference=difference))
            export.write(step.placement, steps=loop.trained)
        return step.placement


def stepper_of(
    model: Model, spec: RunSpec, *, strategy: Any = None, emit: Emit = lambda event: None
) -> Stepper:
    """Create the variables, the input and the step: our own towers, a Keras method, a tf.distribute strategy.

    `strategy`: that of several hosts, which had to be made before anything else; None: any other. `emit`: as
    of `place`.

    Nothing runs yet. Raises UsageError for what does not go together, HardwareError if a device is not there
    or has no kernels for the run, or if a reduction fails or adds up wrongly.
    """
    require_kernels(spec)
    if spec.method is not None:
        from gputopo.launch.compare.keras_step import MethodStep  # loads Keras, which takes seconds

        return MethodStep(model, spec)
    if spec.strategy is not None:
        from gputopo.launch.compare.strategies import StrategyStep

        return StrategyStep(model, spec, strategy)
    placement = place(model, spec, emit)
    if spec.drills:
        from gputopo.launch.train.drills import DrilledStep

        return DrilledStep(model, spec, placement, source_of(model, spec))
    return TrainingStep(model, spec, placement, source_of(model, spec))


@contextmanager
def built(
    make: Callable[[Model, RunSpec], Made], model: Model, spec: RunSpec, emit: Emit, start: WorkerStart
) -> Iterator[Made]:
    """Make what takes the steps of a run and emit ModelBuilt; at the end its input is closed.

    Raises what `make` raises.
    """
    began = time.perf_counter()
    step = make(model, spec)
    with noticing(step.source, emit):
        start.emit_built(step.source, emit, began, parameters=parameter_count(model), says=step.says)
        yield step


@contextmanager
def observers(spec: RunSpec, emit: Emit, losses: LossWatch | None = None) -> Iterator[list[Observer]]:
    """Make the observers that the spec names; they are closed when the steps are over.

    `losses`: the first of them, None: a new one.

    Raises DiskError for a folder that cannot be written.
    """
    lifecycle = spec.lifecycle
    found: list[Observer] = [losses or LossWatch(emit)]
    if lifecycle.trace is not None and lifecycle.trace_steps:
        require_writable(Path(lifecycle.trace), "--trace", named_by="--output")
        found.append(Tracer(spec, emit))
    if lifecycle.tensorboard is not None:
        require_writable(Path(lifecycle.tensorboard), "--tensorboard")
        found.append(Scalars(spec))
    yield found
    for observer in found:
        observer.close()


class _Saving(Observer):
    """Saves checkpoints between steps, but none after the step that ends the training."""

    def __init__(self, checkpoints: Checkpoints, ends: Callable[[], bool]) -> None:
        self._checkpoints = checkpoints
        self._ends = ends

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Save a checkpoint if this step ends an interval."""
        assert step.global_step is not None
        if not self._ends():
            self._checkpoints.save_if_due(step.global_step)
