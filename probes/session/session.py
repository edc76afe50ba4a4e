"""Runs the jobs of a session one after another: within its time, past what fails, with progress."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gputopo.copies.budget import (
    Effort,
    Pace,
    Speeds,
    choose_effort,
    job_seconds,
    peer_seconds,
    peers_of,
    repeats_of,
    sizes,
)
from gputopo.copies.copies import (
    Copy,
    CopyJob,
    CopyWindow,
    Setting,
    WindowRunner,
    describe,
    gpu_place,
    path_of,
)
from gputopo.copies.jobs import jobs, next_jobs, not_possible, without
from gputopo.copies.settling import settle
from gputopo.probes.session.conditions import Meter, WindowReadings, conditions, still_rising
from gputopo.values.bandwidth import Failure, NotMeasured, Sample, SoakInterval, gpu_of

# Windows beyond those wanted, for repeats that do not count or do not agree.
EXTRA_REPEATS = 4
# Limit of clock ramp-up in the middle of a session (`ramp_up.MAX_S` is for the start).
MAX_RAMP_UP_S = 1.5
ROSE = "clock ramp-up: P-state, clocks or link were lower than in the repeats that are used"
LOW_FIRST = "clock ramp-up: the first repeats were far below all later ones"


def measure_job(
    job: CopyJob, engine: WindowRunner, meter: Meter, speeds: Speeds, effort: Effort
) -> tuple[tuple[Sample, ...], list[Failure]]:
    """Measure a job: its samples, and the copies that failed. A group goes on without a copy that failed.

    `speeds` learns the speed of a copy that ran alone.
    """
    failures: list[Failure] = []
    while True:
        own = speeds if job.group is None else speeds.copy()
        windows, readings = _repeats(job, engine, meter, own, effort)
        wrong = _failed_copies(job, windows[-1])
        if not wrong:
            return tuple(_sample(job, part, windows, readings) for part in _parts(job)), failures
        failures += wrong.values()
        left = without(job, frozenset(), list(wrong))
        if left is None or left == job:
            return (), failures
        job = left


def _parts(job: CopyJob) -> list[list[int]]:
    """Return the copies, by number, that one sample is of: each of a group, all of any other job."""
    places = range(len(job.copies))
    return [[place] for place in places] if job.group is not None else [list(places)]


def _repeats(
    job: CopyJob, engine: WindowRunner, meter: Meter, speeds: Speeds, effort: Effort
) -> tuple[list[CopyWindow], list[WindowReadings]]:
    apart = _apart(job, engine, meter, speeds)
    if _failed_copies(job, apart):
        return [apart], []
    _learn(job, apart, speeds)
    counts = sizes(job, speeds, effort)
    wanted = repeats_of(job, speeds, effort)
    windows: list[CopyWindow] = []
    readings: list[WindowReadings] = []
    while len(windows) < wanted + (0 if effort.exact else EXTRA_REPEATS):
        asked = meter.window(job.gpus)
        windows.append(engine.measure(job, counts, asked.take))
        readings.append(asked.readings(windows[-1].span))
        meter.learn(readings[-1])
        if _failed_copies(job, windows[-1]):
            return windows, readings
        counted = windows[still_rising(readings) :]
        limit = len(windows) + 1  # whether there are more is decided here
        unsettled = (settle(_values(job, part, counted), wanted, limit).more for part in _parts(job))
        if len(windows) >= wanted and not any(unsettled):
            break
    _learn(job, windows[-1], speeds)
    return windows, readings


def _apart(job: CopyJob, engine: WindowRunner, meter: Meter, speeds: Speeds) -> CopyWindow:
    """Run the window that does not count; after a pause, as many as the clocks need to ramp up."""
    counts = sizes(job, speeds, Effort(0.0, 1))
    if not meter.was_idle(job.gpus):
        return engine.measure(job, counts, None)
    begun = meter.now()
    while True:
        asked = meter.window(job.gpus, counts=False)
        window = engine.measure(job, counts, asked.take)
        readings = asked.readings(window.span)
        if _failed_copies(job, window) or not meter.in_ramp_up(readings):
            return window
        if meter.now() - begun > MAX_RAMP_UP_S:
            meter.accept(readings)
            return window


def _learn(job: CopyJob, window: CopyWindow, speeds: Speeds) -> None:
    if job.kind == "latency" or (len(job.copies) > 1 and job.group is None):
        return
    for copy, taken in zip(job.copies, window.copies, strict=True):
        speeds.see(copy, taken.gb_per_s / (2 if copy.kind == "d2d_local" else 1))  # read and written


def _failed_copies(job: CopyJob, window: CopyWindow) -> dict[Copy, Failure]:
    pairs = zip(job.copies, window.copies, strict=True)
    return {copy: time.failure for copy, time in pairs if time.failure is not None}


def _values(job: CopyJob, part: Sequence[int], windows: Sequence[CopyWindow]) -> list[float]:
    """Return the number of each window for some of its copies: GB/s, or 1/us of a latency."""
    if job.kind == "latency":
        return [1 / us if (us := window.copies[part[0]].microseconds) else 0.0 for window in windows]
    return [sum(window.copies[place].gb_per_s for place in part) for window in windows]


def _sample(
    job: CopyJob, part: Sequence[int], windows: Sequence[CopyWindow], readings: Sequence[WindowReadings]
) -> Sample:
    copies = [job.copies[place] for place in part]
    rising = still_rising(readings)
    values = _values(job, part, windows)
    settled = settle(values[rising:], 1, len(windows) + 1)
    first = rising + len(settled.discarded)
    counted = values[first:]
    middle = statistics.median(counted)
    gpus = dict.fromkeys(gpu for copy in copies for gpu in copy.gpus)
    lies = windows[-1].copies[part[0]]
    sample = Sample(
        kind=job.kind,
        source=copies[0].source,
        destination=copies[0].destination,
        bytes=sum(windows[-1].copies[place].bytes for place in part),
        pinned=copies[0].pinned,
        method=copies[0].method,
        path=path_of(job),
        group=job.group,
        # whether a copy of the other direction runs at the same time, whose bytes do not count
        with_reverse=job.group is not None
        and (copies[0].destination, copies[0].source)
        in {(one.source, one.destination) for one in job.copies},
        numa_node=copies[0].numa_node if lies.numa_node is None else lies.numa_node,
        numa_wanted=lies.numa_wanted,
        spread_percent=_spread(counted, middle),
        discarded_because=(ROSE if rising else LOW_FIRST) if first else None,
        conditions=conditions(gpus, readings[first:]) if any(readings) else (),
    )
    if job.kind == "latency":
        times = tuple(window.copies[part[0]].microseconds or 0.0 for window in windows[first:])
        return msgspec.structs.replace(
            sample,
            bytes=job.bytes,
            median_us=statistics.median(times),
            repeats_us=times,
            spread_percent=_spread(times, statistics.median(times)),
        )
    return msgspec.structs.replace(
        sample,
        median_gb_per_s=middle,
        repeats_gb_per_s=tuple(counted),
        discarded_gb_per_s=tuple(values[:first]),
    )


def _spread(values: Sequence[float], middle: float) -> float | None:
    return 100 * (max(values) - min(values)) / middle if middle else None


# After so many jobs the effort is chosen again, and not before a part of the remaining ones is over: each
# choice looks at all of them. In between the estimate runs down with the clock.
_CHOOSE_EVERY = 16
_CHOOSE_PART = 24
NO_TIME = "time"
INTERRUPTED = "interrupted"
_REFUSED_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_WRONG_DATA = "WRONG_DATA"
_WRONG_POINTERS = "wrong data arrived on that GPU before; a kernel that follows pointers in it would crash"


class SessionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a session is: jobs done and in all, the seconds that are left by estimate, what runs now."""

    done: int
    total: int
    seconds_left: float | None
    now: str


class SessionEnd(msgspec.Struct, frozen=True):
    """All is measured; what follows is closing."""


News = SessionProgress | CopyJob | SessionEnd  # a job: it begins
OnNews = Callable[[News], None]


class EarlierSession(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from a session that a driver call ended."""

    samples: tuple[Sample, ...] = ()
    done: frozenset[CopyJob] = frozenset()  # the jobs that are not to be begun again
    given_up: Mapping[int, str] = {}  # GPUs that are not used, with the reason
    no_readings: str | None = None  # why NVML is not asked


class NothingMeasured(msgspec.Struct, frozen=True, array_like=True):
    """Why not one GPU could be measured, and the remedy."""

    what: str
    hint: str


class Results(msgspec.Struct, kw_only=True):
    """What a session has measured so far; `complete` is False where it was interrupted."""

    samples: list[Sample] = []
    failures: list[Failure] = []
    not_measured: list[NotMeasured] = []
    notes: list[str] = []
    soak: list[SoakInterval] = []
    complete: bool = True
    cuda_version: str | None = None
    host_load: float | None = None


class Session:
    """One measuring session over an engine. `run` measures; what came out is in `results`.

    `deadline_s`: when, by `now`, nothing further is begun; None: no limit. `earlier`: what is not to be done
    again.
    """

    def __init__(
        self,
        engine: WindowRunner,
        meter: Meter,
        setting: Setting,
        *,
        deadline_s: float | None = None,
        on_news: OnNews = lambda news: None,
        now: Callable[[], float] = time.perf_counter,
        results: Results | None = None,
        earlier: EarlierSession | None = None,
    ) -> None:
        self._engine, self._meter, self._setting = engine, meter, setting
        self._deadline_s, self._now = deadline_s, now
        self._on_news = on_news
        self._earlier = earlier or EarlierSession()
        self._given_up: dict[int, str] = {}
        self._speeds, self._pace = Speeds(), Pace()
        self._distrusted: set[str] = set()  # places where wrong data arrived
        self._enabled: set[frozenset[int]] = set()  # pairs with peer access
        self._queue: list[CopyJob] = []
        self._tried = {job.group for job in self._earlier.done if job.group is not None}
        self._done = 0
        self._estimate_s = 0.0
        self._chosen_at = 0
        self._effort: Effort | None = None
        self.results = results or Results()

    def run(self) -> Results:
        """Measure all jobs. A keyboard interrupt ends it with what there is; it is not raised again."""
        self._queue = [job for job in jobs(self._setting) if job not in self._earlier.done]
        if self._earlier.done:
            if not any(job.group is not None for job in self._queue):
                self._add_next()
        else:
            self.results.not_measured += not_possible(self._setting)
        try:
            while self._queue:
                self._step()
        except KeyboardInterrupt:
            self.results.complete = False
            self._leave_out(self._queue, INTERRUPTED)
        return self.results

    def _step(self) -> None:
        self._choose()
        job = self._queue[0]
        if job.group is not None:
            self._tried.add(job.group)
        possible = self._possible(job)
        if possible is not None:
            self._report(describe(possible))
            self._on_news(possible)
            self._measure(possible)
        self._queue.pop(0)
        self._done += 1
        if job.group is not None and not (self._queue and self._queue[0].group is not None):
            self._add_next()

    def _add_next(self) -> None:
        """Put what the results call for before all that is left."""
        done = (*self._earlier.samples, *self.results.samples)
        self._queue[:0] = next_jobs(done, self._setting, frozenset(self._tried))
        self._effort = None

    def _possible(self, job: CopyJob) -> CopyJob | None:
        """Return what can be measured of a job; where that is nothing, note why."""
        left = without(job, {gpu_place(gpu) for gpu in self._given_up})
        if left is None:
            gone = [gpu for gpu in job.gpus if gpu in self._given_up]
            self._leave_out([job], self._given_up[gone[0]])
            return None
        if _follows_pointers(left, self._distrusted):
            self._leave_out([left], _WRONG_POINTERS)
            return None
        if self._left_s() < self._pace.factor * self._seconds_of(left):
            self._leave_out([left], NO_TIME)
            return None
        return left

    def _measure(self, job: CopyJob) -> None:
        estimated = self._seconds_of(job)
        begun = self._now()
        samples, failures = measure_job(job, self._engine, self._meter, self._speeds, self._chosen())
        self._pace.learn(estimated, self._now() - begun)
        self._enabled |= peers_of(job)
        self.results.samples += samples
        self.results.failures += failures
        for failure in failures:
            self._judge(failure)

    def _judge(self, failure: Failure) -> None:
        """Give up the GPUs that answer no more after a failure, or have no memory for their own copies."""
        if failure.reason == _WRONG_DATA:
            if failure.source == "host":  # the pointers arrive by this copy
                self._distrusted.add(failure.destination)
            return
        ends = (gpu_of(failure.source), gpu_of(failure.destination))
        gpus = {gpu for gpu in ends if gpu is not None}
        for gpu in gpus:
            unusable = self._engine.supports(gpu, "copy_engine")
            if unusable is not None:
                self._given_up[gpu] = f"{gpu_place(gpu)} is no longer used: {unusable}"
            elif len(gpus) == 1 and failure.group is None and failure.reason == _REFUSED_MEMORY:
                self._given_up[gpu] = f"{gpu_place(gpu)} refused the memory ({failure.reason})"

    def _choose(self) -> None:
        pause = max(_CHOOSE_EVERY, len(self._queue) // _CHOOSE_PART)
        if self._effort is not None and self._done - self._chosen_at < pause:
            return
        self._chosen_at = self._done
        self._effort, self._estimate_s = choose_effort(
            self._queue,
            self._speeds,
            self._setting.level,
            self._left_s(),
            self._pace.factor,
            enabled=self._enabled,
            reading_s=self._meter.reading_s,
            loops=self._setting.loops,
        )
        self._estimated_at = self._now()

    def _seconds_of(self, job: CopyJob) -> float:
        return job_seconds(job, self._speeds, self._chosen()) + peer_seconds([job], self._enabled)

    def _chosen(self) -> Effort:
        assert self._effort is not None
        return self._effort

    def _left_s(self) -> float:
        return float("inf") if self._deadline_s is None else self._deadline_s - self._now()

    def _report(self, what: str) -> None:
        left = max(0.0, min(self._estimate_s - (self._now() - self._estimated_at), self._left_s()))
        total = self._done + len(self._queue)
        self._on_news(SessionProgress(done=self._done, total=total, seconds_left=left, now=what))

    def _leave_out(self, left_out: list[CopyJob], reason: str) -> None:
        self.results.not_measured += [NotMeasured(what=describe(job), reason=reason) for job in left_out]


def _follows_pointers(job: CopyJob, distrusted: set[str]) -> bool:
    """Return whether a latency is measured along pointers that arrive by a path on which data was wrong."""
    copy = job.copies[0]
    place = copy.destination if copy.source == "host" else copy.source
    return job.kind == "latency" and copy.method == "kernel_read" and place in distrusted
