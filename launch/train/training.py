"""A training run from top to bottom: settings, data, model, placement, loop; then comparison and export.

`worker` starts it in its own process. One step is `step.TrainingStep`; one tower's share of a step is
`towers.TowerMath`. `stepper_of` lists the other ways of taking the steps.
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
from gputopo.launch.train.stepper import Emit, Observer, StepOutcome, Stepper, Stopped, VariableSets
from gputopo.values.run.events import ModelBuilt, Noticed, PhaseBegun, ReplicasCompared, Step
from gputopo.values.run.spec import RunSpec

Made = TypeVar("Made", bound=Stepper)


@dataclass(frozen=True)
class WorkerStart:
    """The start of the worker. `import_s`: seconds that TensorFlow took to load.

    `versions`: versions of the loaded software, and its settings. `says`: remarks on earlier choices.
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
        """Emit ModelBuilt. `began`: time.perf_counter() before the run was built."""
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


NO_START = WorkerStart()  # for a process whose start was not measured, as in tests


def train(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: WorkerStart = NO_START,
    stopped: Stopped = lambda: False,
    strategy: Any = None,
) -> VariableSets:
    """Train by the spec and return the trained variables. Each event goes to `emit`.

    `strategy`: see `stepper_of`. Once `stopped` returns True, training ends after the current step: a
    checkpoint is saved if the run has checkpoints, and nothing else is done.

    Raises LossError if a loss is not finite and --on-nan is stop; HardwareError if a reduction returns wrong
    sums or something is on the wrong device; InputError if a checkpoint is from another run or another run
    has locked the folder; DiskError if something cannot be written; and TensorFlow's errors
    (`tf.errors.ResourceExhaustedError` if memory is exhausted).
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
    """Create the variables, the input and the step: own towers, a Keras method or a tf.distribute strategy.

    `strategy`: the strategy of several hosts, which must be made before anything else; None: in all other
    cases. `emit`: see `place`.

    No step runs yet. Raises UsageError if options cannot be combined. Raises HardwareError if a device is not
    there or has no kernels for the run, or if a reduction fails or returns wrong sums.
    """
    require_kernels(spec)
    if spec.method is not None:
        from gputopo.launch.compare.methods import MethodStep

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
    """Make the stepper of a run and emit ModelBuilt. At the end its input is closed.

    Raises what `make` raises.
    """
    began = time.perf_counter()
    step = make(model, spec)
    with noticing(step.source, emit):
        start.emit_built(step.source, emit, began, parameters=parameter_count(model), says=step.says)
        yield step


@contextmanager
def observers(spec: RunSpec, emit: Emit, losses: LossWatch | None = None) -> Iterator[list[Observer]]:
    """Make the observers for the spec. They are closed after the last step.

    `losses`: the watch to use as the first observer; None: a new one. Raises DiskError if a folder cannot be
    written.
    """
    lifecycle = spec.lifecycle
    watching: list[Observer] = [losses or LossWatch(emit)]
    if lifecycle.trace is not None and lifecycle.trace_steps:
        require_writable(Path(lifecycle.trace), "--trace", named_by="--output")
        watching.append(Tracer(spec, emit))
    if lifecycle.tensorboard is not None:
        require_writable(Path(lifecycle.tensorboard), "--tensorboard")
        watching.append(Scalars(spec))
    yield watching
    for observer in watching:
        observer.close()


class _Saving(Observer):
    """Saves checkpoints between steps, but not after the last step of the training."""

    def __init__(self, checkpoints: Checkpoints, ends: Callable[[], bool]) -> None:
        self._checkpoints = checkpoints
        self._ends = ends

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Save a checkpoint if this step ends an interval."""
        assert step.global_step is not None
        if not self._ends():
            self._checkpoints.save_if_due(step.global_step)
