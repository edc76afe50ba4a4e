"""Profiles of chosen steps, written for TensorBoard."""

import time
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from gputopo.launch.train.op_errors import disk_reason, first_line
from gputopo.launch.train.stepper import Emit, Observer, StepOutcome
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.events import Noticed, PhaseBegun, Step, Traced
from gputopo.values.run.spec import RunSpec

_HOST_LEVEL = 2  # every op; level 1 skips most ops, level 3 is for developers of TensorFlow


class Tracer(Observer):
    """Profiles the steps in the spec. Consecutive steps are one profile, in a separate folder.

    If there are several hosts, only rank 0 is profiled.
    """

    def __init__(self, spec: RunSpec, emit: Emit) -> None:
        self._spec = spec
        self._emit = emit
        self._folder = Path(spec.lifecycle.trace or ".")
        self._wanted = set(spec.lifecycle.trace_steps)
        self._running: Path | None = None
        self._steps: list[Step] = []
        self._broken = False

    def before(self, number: int) -> None:
        """Start the profiler before the first of consecutive steps."""
        if number not in self._wanted or self._running is not None or self._broken:
            return
        folder = self._folder / f"step-{number}"
        try:
            tf.profiler.experimental.start(
                str(folder),
                tf.profiler.experimental.ProfilerOptions(
                    host_tracer_level=_HOST_LEVEL, python_tracer_level=0
                ),
            )
        except (AttributeError, ImportError, tf.errors.OpError) as error:
            self._broken = True
            reason = first_line(str(error)) or type(error).__name__
            self._notice(f"No trace: this TensorFlow has no working profiler ({reason}).")
            return
        self._running = folder

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Stop the profiler after the last of consecutive steps."""
        if self._running is None:
            return
        self._steps.append(step)
        self._wanted.discard(step.step)
        if step.step + 1 not in self._wanted:
            self._finish(self._running)

    def close(self) -> None:
        """Report requested steps that were never reached."""
        if self._running is not None:
            self._finish(self._running)
        if self._wanted and not self._broken:
            self._notice(f"Not traced, because the run ended before: {_named(self._wanted)}.")

    def _finish(self, folder: Path) -> None:
        self._emit(PhaseBegun(time_s=time.time(), phase="trace"))
        steps, self._steps, self._running = self._steps, [], None
        try:
            tf.profiler.experimental.stop()
        except (ImportError, OSError, tf.errors.OpError) as error:
            self._notice(
                f"No trace of {_named(step.step for step in steps)}, because it cannot be written to "
                f"{folder}: {disk_reason(error)}. Free some space, or use another folder with --output."
            )
            return
        self._emit(
            Traced(
                time_s=time.time(),
                path=str(folder),
                steps=tuple(step.step for step in steps),
                seconds=sum(step.seconds for step in steps),
            )
        )

    def _notice(self, says: str) -> None:
        self._emit(Noticed(time_s=time.time(), says=says))


def _named(steps: Iterable[int]) -> str:
    """Return a text for steps, such as `step 1` or `steps 3-5`."""
    numbers = set(steps)
    return f"step{'s' if len(numbers) > 1 else ''} {index_ranges(numbers)}"
