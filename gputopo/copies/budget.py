"""How much is copied and how often, so that a quick session ends in time. Pure.

First fewer bytes are copied in a window, then fewer windows are taken, then what comes last is left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gputopo.copies.copies import Copy, Job
from gputopo.copies.numbers import LARGE_BYTES
from gputopo.values.bandwidth import Level

MIB = 2**20
GB = 1e9

# The whole command is to end within 60 s on eight GPUs; the rest is for the start, the driver and the report.
QUICK_SECONDS = 48.0
# A window copies at least this much per copy: what gputopo.copies.numbers.LARGE_BYTES asks of a number that
# is to be judged. 20 ms on one lane of Gen3.
MIN_BYTES = LARGE_BYTES
FEWEST_REPEATS = 3
# No window copies more, however fast the copy: so much the engine can compare, every byte.
MAX_BYTES = 512 * MIB

# Before anything is known: about eight lanes of Gen3. A wrong guess costs one warm-up window.
_GUESS_GB_PER_S = 6.0
_GUESS_LOCAL_GB_PER_S = 150.0
# What a window costs beside the copies: filling, checking what arrived, calls, readings. A first guess, which
# the session replaces by what it sees (`Pace`).
_OVERHEAD_S = 0.004
_CHECKING = 2.0  # a copy is filled and checked at about its own speed

# A job whose copies would take longer than this is repeated less often (512 MiB over one lane take 0.7 s).
_LONG_JOB_S = 3.0


class Effort(NamedTuple):
    """How long the copies of one window shall take (0: the fewest bytes), and how many windows count."""

    window_s: float
    repeats: int


QUICK_EFFORTS: tuple[Effort, ...] = (
    Effort(0.008, 5),
    Effort(0.004, 5),
    Effort(0.002, 5),
    Effort(0.0, 5),
    Effort(0.0, 4),
    Effort(0.0, FEWEST_REPEATS),
)
FULL_EFFORT = Effort(0.040, 9)


class Speeds:
    """GB/s of single copies, as seen so far; a copy not yet seen is guessed from its parts."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], float] = {}

    def copy(self) -> "Speeds":
        """Return speeds that start with what is known here, and learn apart."""
        other = Speeds()
        other._seen = dict(self._seen)
        return other

    def see(self, copy: Copy, gb_per_s: float) -> None:
        """Remember the speed of a copy, each byte counted once."""
        if gb_per_s > 0:
            self._seen[_key(copy)] = gb_per_s

    def of(self, copy: Copy) -> float:
        """Return GB/s of a copy, each byte counted once. Never 0."""
        seen = self._seen.get(_key(copy))
        if seen is not None:
            return seen
        if copy.kind == "d2d_local":
            return _GUESS_LOCAL_GB_PER_S
        if copy.source != "host" and copy.destination != "host":
            up, down = self._seen.get(("d2h", copy.source)), self._seen.get(("h2d", copy.destination))
            return min(up or _GUESS_GB_PER_S, down or _GUESS_GB_PER_S)
        return self._seen.get(
            (copy.kind, copy.source if copy.kind == "d2h" else copy.destination), _GUESS_GB_PER_S
        )


def sizes(job: Job, speeds: Speeds, effort: Effort) -> tuple[int, ...]:
    """Return the bytes of each copy for one window; all copies of it take equally long, as far as is known.

    So none of them runs alone at the end while the slower ones still copy. A job with a given number of
    bytes keeps them. Otherwise each copy gets at least MIN_BYTES, unless another is more than MAX_BYTES
    faster.
    """
    if job.bytes is not None:
        return (job.bytes,) * len(job.copies)
    rates = [speeds.of(copy) * GB for copy in job.copies]
    seconds = max(effort.window_s, MIN_BYTES / min(rates))
    seconds = min(seconds, MAX_BYTES / max(rates))
    return tuple(max(_whole(rate * seconds), MIB) for rate in rates)


def copy_seconds(job: Job, speeds: Speeds, effort: Effort) -> float:
    """Estimate how long the copies of one window take."""
    counts = sizes(job, speeds, effort)
    return max(size / (speeds.of(copy) * GB) for size, copy in zip(counts, job.copies, strict=True))


def repeats_of(job: Job, speeds: Speeds, effort: Effort) -> int:
    """Return how many windows shall count: those of the effort, fewer where a single one takes very long."""
    affordable = int(_LONG_JOB_S / copy_seconds(job, speeds, effort))
    return max(min(effort.repeats, affordable), FEWEST_REPEATS)


def job_seconds(job: Job, speeds: Speeds, effort: Effort) -> float:
    """Estimate how long a job takes: its windows that count, the one before them, filling and checking."""
    windows = repeats_of(job, speeds, effort) + 1
    return windows * (_OVERHEAD_S + _CHECKING * copy_seconds(job, speeds, effort))


class Pace:
    """How much slower or faster than the estimate this machine is, learnt from the jobs that are over."""

    # The estimate counts as this many seconds of experience, so that one odd job does not upset it.
    _TRUST_S = 0.5

    def __init__(self) -> None:
        self._estimated = self._taken = self._TRUST_S

    def learn(self, estimated_s: float, taken_s: float) -> None:
        """Take in one job that is over."""
        self._estimated += estimated_s
        self._taken += taken_s

    @property
    def factor(self) -> float:
        """Seconds that pass for one estimated second."""
        return self._taken / self._estimated


def choose_effort(
    remaining: Sequence[Job], speeds: Speeds, level: Level, left_s: float, factor: float
) -> tuple[Effort, float]:
    """Return the greatest effort at which all that remains fits into `left_s`, and the seconds it will take.

    `factor`: seconds that pass for one estimated second. Where even the minimum does not fit, that one is
    given: the caller leaves out what finds no time.
    """
    efforts = QUICK_EFFORTS if level == "quick" else (FULL_EFFORT,)
    seconds = 0.0
    for effort in efforts:
        seconds = factor * sum(job_seconds(job, speeds, effort) for job in remaining)
        if seconds <= left_s:
            return effort, seconds
    return efforts[-1], seconds


def _whole(size: float) -> int:
    """Round up to whole MiB: copies are cut into chunks of the check's pattern, which divides that."""
    return -(-int(size) // MIB) * MIB


def _key(copy: Copy) -> tuple[object, ...]:
    if copy.pinned and copy.kind in ("h2d", "d2h"):
        return (copy.kind, copy.source if copy.kind == "d2h" else copy.destination)
    return (copy.kind, copy.source, copy.destination, copy.pinned, copy.method)
