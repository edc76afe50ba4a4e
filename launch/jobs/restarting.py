"""What a run does after its worker failed: whether it continues, and with which spec."""

import msgspec

from gputopo.values.errors import ExitCode
from gputopo.values.run.drill import SLOW
from gputopo.values.run.events import NCCL_TEST, CheckpointSaved, Event, RankFailed, Step
from gputopo.values.run.spec import RunSpec

# Failures by chance. Lack of memory, a NaN loss and wrong input would happen again.
_BY_CHANCE = ("killed", "hung")


def may_restart(failed: RankFailed) -> bool:
    """Return whether another worker may succeed after this failure."""
    return failed.kind in _BY_CHANCE or (failed.kind == "error" and failed.exit_code == ExitCode.HARDWARE)


# Signals of a crash. Other signals come from outside, and would end the next worker, too.
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")


def is_of_nccl(failed: RankFailed, phase: str | None) -> bool:
    """Return whether NCCL failed, so that the next worker may train without it.

    NCCL computes wrong sums, raises an error, crashes, or hangs. `phase`: the latest phase of the worker.
    """
    if phase != NCCL_TEST or failed.rank:
        return False
    if failed.kind == "killed":
        return failed.signal in _CRASHES
    return failed.kind in ("placement", "error", "hung")


class SavedSteps:
    """Steps in a run's checkpoints. `counted`: counted steps of this run; `trained`: all steps, or 0."""

    def __init__(self) -> None:
        self.counted = self.trained = 0
        self._taken = 0  # counted steps since the worker's start
        self._before = 0  # counted steps that earlier workers saved

    def add(self, event: Event) -> None:
        """Add the next event of the run."""
        if isinstance(event, Step) and (self._before or not event.warmup):  # see `continued`
            self._taken += 1
        elif isinstance(event, CheckpointSaved):
            self.counted, self.trained = self._before + self._taken, event.steps

    def begin_again(self) -> None:
        """Note that another worker starts from the latest checkpoint."""
        self._before, self._taken = self.counted, 0


def continued(spec: RunSpec, counted: int) -> RunSpec | None:
    """Return the spec for the rest of a run with `counted` saved steps; None if nothing is left.

    The new warm-up also trains, so it is taken from the remaining steps.
    """
    saved = msgspec.structs.replace(spec.lifecycle, resume=False, resume_or_start=True)
    # Faults that happen once have happened; the new worker counts its steps from the start.
    drills = tuple(
        msgspec.structs.replace(drill, step=max(0, drill.step - counted))
        for drill in spec.drills
        if drill.fault in SLOW
    )
    spec = msgspec.structs.replace(spec, lifecycle=saved, drills=drills)
    if spec.num_batches is None or not counted:
        return spec
    left = spec.num_batches - counted
    if left < 1:
        return None
    warmup = min(spec.num_warmup_batches, left - 1)
    return msgspec.structs.replace(
        spec, num_batches=left - warmup, num_warmup_batches=warmup, min_warmup_s=0.0
    )
