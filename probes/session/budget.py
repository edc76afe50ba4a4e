"""How much is copied and how often, so that a quick session ends in time.

To save time, windows get shorter, then fewer, and then the last jobs are skipped. A window always copies
enough bytes that the cost of starting a copy is small. A copy within a GPU's memory is always larger than its
caches. With fewer bytes, the rate would mean something else.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.probes.copy_jobs import Copy, CopyJob
from gputopo.values.bandwidth import LARGE_BYTES, Level

MIB = 2**20
GB = 1e9

# The command must end within 60 s on eight GPUs; the rest is for the start, the driver and the report.
QUICK_SECONDS = 48.0
# The minimum bytes of each copy in a window: gputopo.values.bandwidth.LARGE_BYTES, the minimum for a rate
# that is judged. 20 ms on one lane of Gen3.
MIN_BYTES = LARGE_BYTES
FEWEST_REPEATS = 3
# Starting a copy costs some 10 us (`gputopo.values.bandwidth.LARGE_BYTES`): 1 % of a window of 1 ms.
MIN_WINDOW_S = 0.001
# A speed that was measured once may be this much too low: it includes the start of a short copy.
_SPEED_MARGIN = 1.2
# No window copies more, however fast the copy: the engine can compare every byte of this size on a GPU with
# 72 GB.
MAX_BYTES = 1024 * MIB

# The first guess: about eight lanes of Gen3. A wrong guess costs one warm-up window.
_GUESS_GB_PER_S = 6.0
_GUESS_LOCAL_GB_PER_S = 150.0
# The cost of a window in addition to the copies: filling, checking, calls, readings. A first guess, which the
# session replaces by its measurements (`Pace`).
_OVERHEAD_S = 0.004
_CHECKING = 2.0  # a copy is filled and checked at about its own speed
# cuCtxEnablePeerAccess maps all memory of a GPU for another one: milliseconds for each direction. A guess.
_PEER_ACCESS_S = 0.010
# If NVML readings are slower than this, windows do not wait for them.
_MAX_READING_S = 0.012
_READING_MARGIN = 1.5

# A job whose copies would take longer than this is repeated less often (512 MiB over one lane take 0.7 s).
_LONG_JOB_S = 3.0


class Effort(NamedTuple):
    """How long the copies of one window should take (0: the fewest bytes), and how many windows are counted.

    `host_window_s`: the minimum for single copies with the host, so that a reading of the link fits into it.
    """

    window_s: float
    repeats: int
    host_window_s: float = 0.0
    exact: bool = False  # exactly this number of windows, however long they take or differ


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
    """GB/s of single copies, as measured so far. Speeds of unmeasured copies are guessed from their parts."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], float] = {}

    def copy(self) -> "Speeds":
        """Return an independent copy of these speeds."""
        other = Speeds()
        other._seen = dict(self._seen)
        return other

    def see(self, copy: Copy, gb_per_s: float) -> None:
        """Store the rate of a copy as it was measured (CopyTime)."""
        if gb_per_s > 0:
            self._seen[_key(copy)] = gb_per_s / copy.times_counted

    def of(self, copy: Copy) -> float:
        """Return the GB/s of a copy, each byte counted once. Never 0."""
        seen = self._seen.get(_key(copy))
        if seen is not None:
            return seen
        if copy.kind == "d2d_local":
            return _GUESS_LOCAL_GB_PER_S
        if copy.host_gpu is None:
            by_engine = self._seen.get(_key(replace(copy, method="copy_engine")))
            if by_engine is not None:
                return by_engine
            up, down = self._seen.get(("d2h", copy.gpus[:1])), self._seen.get(("h2d", copy.gpus[1:]))
            return min(up or _GUESS_GB_PER_S, down or _GUESS_GB_PER_S)
        return self._seen.get((copy.kind, copy.gpus), _GUESS_GB_PER_S)


class JobTime(NamedTuple):
    """The minimum time of the copies in one window of a job, and the maximum time (MAX_BYTES)."""

    min_s: float
    max_s: float
    is_read: bool  # whether a reading of the link must fit into it

    @classmethod
    def of(cls, job: CopyJob, speeds: Speeds) -> "JobTime":
        """Return the times of a job at these speeds."""
        rates = [speeds.of(copy) * GB for copy in job.copies]
        if job.bytes is not None:
            return cls(job.bytes / min(rates), job.bytes / min(rates), False)
        shortest = max(_SPEED_MARGIN * MIN_WINDOW_S, max(MIN_BYTES, job.min_bytes) / min(rates))
        read = job.group is None and job.kind in ("h2d", "d2h") and job.copies[0].pinned is not False
        return cls(shortest, MAX_BYTES / max(rates), read)

    def window_s(self, effort: Effort) -> float:
        """Return how long the copies of one window take."""
        wanted = max(effort.window_s, effort.host_window_s) if self.is_read else effort.window_s
        return min(max(wanted, self.min_s), self.max_s)

    def repeats(self, effort: Effort) -> int:
        """Return how many windows are counted: as in the effort, or fewer if one window takes very long."""
        if effort.exact:
            return effort.repeats
        return max(min(effort.repeats, int(_LONG_JOB_S / self.window_s(effort))), FEWEST_REPEATS)

    def job_s(self, effort: Effort) -> float:
        """Return the seconds of the job: counted windows, the window before them, filling and checking."""
        return (self.repeats(effort) + 1) * (_OVERHEAD_S + _CHECKING * self.window_s(effort))


def sizes(job: CopyJob, speeds: Speeds, effort: Effort) -> tuple[int, ...]:
    """Return the bytes of each copy in one window. All copies should take equally long.

    So no copy runs by itself at the end. A job with given bytes keeps them. Otherwise each copy gets at least
    MIN_BYTES and the job's own minimum, and the window lasts at least MIN_WINDOW_S, unless a copy would have
    more than MAX_BYTES.
    """
    if job.bytes is not None:
        return (job.bytes,) * len(job.copies)
    seconds = JobTime.of(job, speeds).window_s(effort)
    # Whole MiB: a multiple of the pattern that is used to check copies.
    return tuple(max(-(-int(speeds.of(copy) * GB * seconds) // MIB), 1) * MIB for copy in job.copies)


def peers_of(job: CopyJob) -> set[frozenset[int]]:
    """Return the pairs of GPUs between which a job needs peer access."""
    return {frozenset(copy.gpus) for copy in job.copies if copy.kind == "p2p_direct"}


def peer_seconds(jobs: Iterable[CopyJob], enabled: Iterable[frozenset[int]]) -> float:
    """Return the estimated seconds to enable the jobs' peer access. `enabled`: pairs that have it already."""
    needed = {pair for job in jobs for pair in peers_of(job)}
    return _PEER_ACCESS_S * len(needed - set(enabled))


class Pace:
    """How much slower or faster than the estimate this machine is, learnt from finished jobs."""

    # The estimate has the weight of this many measured seconds, so that one unusual job has little influence.
    _TRUST_S = 0.5

    def __init__(self) -> None:
        self._estimated = self._taken = self._TRUST_S

    def learn(self, estimated_s: float, taken_s: float) -> None:
        """Add one finished job."""
        self._estimated += estimated_s
        self._taken += taken_s

    @property
    def factor(self) -> float:
        """The real seconds for one estimated second."""
        return self._taken / self._estimated


def choose_effort(
    remaining: Sequence[CopyJob],
    speeds: Speeds,
    level: Level,
    left_s: float,
    factor: float,
    *,
    enabled: Iterable[frozenset[int]] = (),
    reading_s: float = 0.0,
    loops: int | None = None,
) -> tuple[Effort, float]:
    """Return the greatest effort with which all remaining jobs fit into `left_s`, and their seconds.

    `factor`: real seconds for one estimated second. `enabled`: pairs of GPUs with peer access. `reading_s`:
    how long an NVML reading takes. `loops`: counted windows, if the user chose them. If even the minimum
    effort does not fit, it is returned, and the caller skips the jobs that have no time.
    """
    efforts = QUICK_EFFORTS if level == "quick" else (FULL_EFFORT,)
    host_window_s = 0.0 if reading_s > _MAX_READING_S else _READING_MARGIN * reading_s
    peers_s = peer_seconds(remaining, enabled)
    times = [JobTime.of(job, speeds) for job in remaining]
    for effort in efforts:
        chosen = effort._replace(host_window_s=host_window_s)
        if loops is not None:
            chosen = chosen._replace(repeats=loops, exact=True)
        seconds = factor * (peers_s + sum(time.job_s(chosen) for time in times))
        if seconds <= left_s:
            break
    return chosen, seconds


def _key(copy: Copy) -> tuple[object, ...]:
    if copy.pinned and copy.kind in ("h2d", "d2h"):
        return (copy.kind, copy.gpus)
    return (copy.kind, copy.ends, copy.pinned, copy.method)
