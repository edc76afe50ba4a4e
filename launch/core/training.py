"""The training loop: build, first step and its check, warm-up, counted steps, comparison of the replicas."""

import math
import time
from collections.abc import Callable

from gputopo.errors import GputopoError
from gputopo.events import (
    Event,
    ModelBuilt,
    PlacementChecked,
    ReplicasCompared,
    Step,
    TowerMarks,
    WarmupDone,
)
from gputopo.launch.core import placement_check
from gputopo.launch.core.models import Model, parameter_count
from gputopo.launch.core.step import marks_of
from gputopo.launch.core.trainers import Held, Stepper, stepper_of
from gputopo.launch.core.variables import largest_difference
from gputopo.launch.spec import RunSpec

Emit = Callable[[Event], None]


def train(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    import_s: float = 0.0,
    versions: dict[str, str] | None = None,
) -> Held:
    """Train as the spec says, telling each event through `emit`; give the trained variables' placement.

    Raises HardwareError if a reduction adds up wrongly or something is not where it should be, and whatever
    TensorFlow raises (`tf.errors.ResourceExhaustedError` when memory is out).
    """
    began = time.perf_counter()
    step = stepper_of(model, spec)
    placement = step.placement
    emit(
        ModelBuilt(
            time_s=time.time(),
            parameters=parameter_count(model),
            parameter_bytes=4 * parameter_count(model),
            import_s=import_s,
            build_s=time.perf_counter() - began,
            versions=versions or {},
            says=step.says,
        )
    )
    loop = _Loop(step, spec, emit)
    loop.first_step()
    loop.warm_up()
    loop.counted_steps()
    if len(placement.places) > 1:
        difference = largest_difference(placement.places)
        emit(ReplicasCompared(time_s=time.time(), largest_difference=difference))
    return placement


class _Loop:
    """The steps of one run. Step numbers: 1, 2, ... are counted; 0, -1, ... belong to the warm-up."""

    def __init__(self, step: Stepper, spec: RunSpec, emit: Emit) -> None:
        self._step = step
        self._spec = spec
        self._emit = emit
        self._done = 0

    def first_step(self) -> None:
        """Run the step once, which compiles it, and check where everything is."""
        began = time.perf_counter()
        outcome, counts = placement_check.run_and_collect(lambda: self._step(self._done))
        first_step_s = time.perf_counter() - began
        self._done += 1
        variables = self._step.check_variables()
        ops = {} if counts is None else self._step.check_ops(counts)
        if not all(math.isfinite(value) for marks in outcome.marks for value in marks):
            raise GputopoError(
                "a time mark of the first step is no number", "report this as a fault of gputopo"
            )
        self._emit(
            PlacementChecked(time_s=time.time(), variables=variables, ops=ops, first_step_s=first_step_s)
        )

    def warm_up(self) -> None:
        """Run the uncounted steps."""
        began = time.perf_counter()
        steps = self._spec.num_warmup_batches
        for number in range(steps):
            self._one(number + 1 - steps)
        self._emit(WarmupDone(time_s=time.time(), steps=steps, seconds=time.perf_counter() - began))

    def counted_steps(self) -> None:
        """Run the counted steps: a number of them, or as many as fit into the time budget."""
        spec = self._spec
        began = time.perf_counter()
        number = 0
        while number < (spec.num_batches or spec.max_batches):
            if spec.num_batches is None and spec.time_budget_s is not None and number:
                used = time.perf_counter() - began
                if used + used / number > spec.time_budget_s:
                    return
            number += 1
            self._one(number)

    def _one(self, number: int) -> None:
        began = time.perf_counter()
        outcome = self._step(self._done)
        seconds = time.perf_counter() - began
        self._done += 1
        loss = float(outcome.losses.mean())
        self._emit(
            Step(
                time_s=time.time(),
                step=number,
                seconds=seconds,
                images=self._spec.batch_size * len(self._spec.devices),
                loss=loss if math.isfinite(loss) else None,
                marks=tuple(
                    TowerMarks(tower=tower, start_s=start, weights_s=weights, compute_s=compute)
                    for tower, (start, weights, compute) in enumerate(marks_of(outcome))
                ),
            )
        )
