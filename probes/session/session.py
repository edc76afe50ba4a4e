"""Runs the jobs of a session one after another, within its time, and continues after failures."""

from collections.abc import Callable, Mapping

import msgspec

from gputopo.probes.copy_jobs import CopyJob, Setting, WindowRunner, describe
from gputopo.probes.session.budget import (
    Effort,
    JobTime,
    Pace,
    Speeds,
    choose_effort,
    peer_seconds,
    peers_of,
)
from gputopo.probes.session.conditions import Meter
from gputopo.probes.session.jobs import jobs, next_jobs, not_possible, without
from gputopo.probes.session.measured_job import measure_job
from gputopo.values.bandwidth import CopyRate, Failure, NotMeasured, Samples, SoakInterval
from gputopo.values.ends import HOST

# The effort is chosen again after this number of jobs, and not before a part of the remaining jobs is done,
# because each choice estimates all of them. Between choices, the estimate decreases with the clock.
_CHOOSE_EVERY = 16
_CHOOSE_PART = 24
NO_TIME = "time"
INTERRUPTED = "interrupted"
_REFUSED_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
_WRONG_DATA = "WRONG_DATA"
_WRONG_POINTERS = "wrong data arrived on that GPU before; a kernel that follows pointers in it would crash"


class SessionProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The progress of a session: jobs done and in total, the estimated seconds left, and the present job."""

    done: int
    total: int
    seconds_left: float | None
    now: str


class SessionEnd(msgspec.Struct, frozen=True, tag=True):
    """Everything is measured. Only closing is left."""


News = SessionProgress | CopyJob | SessionEnd  # a CopyJob: this job starts
OnNews = Callable[[News], None]


class EarlierSession(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a session that a driver call ended."""

    samples: Samples = msgspec.field(default_factory=Samples)
    done: frozenset[CopyJob] = frozenset()  # the jobs that must not be started again
    given_up: Mapping[int, str] = {}  # GPUs that are no longer used, with the reason
    no_readings: str | None = None  # why NVML is not used


class NothingMeasured(msgspec.Struct, frozen=True, tag=True):
    """Why no GPU could be measured, and the remedy."""

    what: str
    hint: str


class Results(msgspec.Struct, kw_only=True, tag=True):
    """What a session has measured so far. `complete` is False if it was interrupted."""

    samples: Samples = msgspec.field(default_factory=Samples)
    failures: list[Failure] = []
    not_measured: list[NotMeasured] = []
    notes: list[str] = []
    soak: list[SoakInterval] = []
    complete: bool = True
    cuda_version: str | None = None
    host_load: float | None = None


class Session:
    """One measuring session with an engine. `run` measures into `results`.

    `deadline_s`: the time of `now` from which no job is started, or None. `earlier`: the session to continue.
    """

    def __init__(
        self,
        engine: WindowRunner,
        meter: Meter,
        setting: Setting,
        *,
        deadline_s: float | None,
        on_news: OnNews,
        now: Callable[[], float],
        results: Results,
        earlier: EarlierSession | None,
    ) -> None:
        self._engine, self._meter, self._setting = engine, meter, setting
        self._deadline_s, self._now = deadline_s, now
        self._on_news = on_news
        self._earlier = earlier or EarlierSession()
        self._given_up: dict[int, str] = {}
        self._speeds, self._pace = Speeds(), Pace()
        self._distrusted: set[int] = set()  # GPUs that received wrong data
        self._enabled: set[frozenset[int]] = set()  # pairs with peer access
        self._queue: list[CopyJob] = []
        self._tried = {(job.kind, job.gpus) for job in self._earlier.done if job.group is not None}
        self._done = 0
        self._estimate_s = 0.0
        self._chosen_at = 0
        self._effort: Effort | None = None
        self.results = results

    def run(self) -> None:
        """Measure all jobs. A keyboard interrupt ends it with the results so far, and is not raised again."""
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

    def _step(self) -> None:
        self._choose()
        job = self._queue[0]
        if job.group is not None:
            self._tried.add((job.kind, job.gpus))
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
        """Add the jobs that the results require, before all remaining jobs."""
        done = self._earlier.samples + self.results.samples
        self._queue[:0] = next_jobs(done.of(CopyRate), self._setting, self._tried)
        self._effort = None

    def _possible(self, job: CopyJob) -> CopyJob | None:
        """Return the part of a job that can be measured. If there is none, note why."""
        left = without(job, self._given_up)
        if left is None:
            gone = [gpu for gpu in job.gpus if gpu in self._given_up]
            self._leave_out([job], self._given_up[gone[0]])
            return None
        copy = left.copies[0]
        follows_pointers = left.kind == "latency" and copy.method == "kernel_read"
        if follows_pointers and copy.gpus[0] in self._distrusted:  # wrong data arrived where it reads them
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
        """Stop using GPUs that no longer answer after a failure, or have no memory for their copies."""
        if failure.reason == _WRONG_DATA:
            if failure.source == HOST:  # this copy transfers the pointers
                self._distrusted.update(failure.gpus)
            return
        for gpu in failure.gpus:
            unusable = self._engine.supports(gpu, "copy_engine")
            if unusable is not None:
                self._given_up[gpu] = f"gpu:{gpu} is no longer used: {unusable}"
            elif len(failure.gpus) == 1 and failure.group is None and failure.reason == _REFUSED_MEMORY:
                self._given_up[gpu] = f"gpu:{gpu} refused the memory ({failure.reason})"

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
        copying_s = JobTime.of(job, self._speeds).job_s(self._chosen())
        return copying_s + peer_seconds([job], self._enabled)

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
