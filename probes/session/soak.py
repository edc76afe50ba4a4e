"""A soak: all GPUs copy for minutes, everything that arrives is compared, rates are noted by interval."""

import time
from collections.abc import Callable

import msgspec

from gputopo.copies.budget import Effort, Speeds, sizes
from gputopo.copies.copies import Copy, Job
from gputopo.copies.jobs import Setting, describe, gpus_of, soak_jobs
from gputopo.probes.session.engine import Engine, Window
from gputopo.probes.session.repeats import failure_of
from gputopo.probes.session.session import INTERRUPTED, OnNews, Progress, Results
from gputopo.values.bandwidth import NotMeasured, SoakInterval, SoakRate

# A window as long as the engine's buffers allow: filling and comparing go on between two.
_EFFORT = Effort(0.5, 1)
# Windows of one job in a row, so that most of the time is spent with copies and not with peer access.
_WINDOWS = 4
# Ours: so many intervals of an hour and of a minute alike, none shorter than the clocks need to settle.
INTERVALS = 60
MIN_INTERVAL_S = 5.0


def interval_of(soak_s: float) -> float:
    """Return the seconds of one interval of a soak."""
    return min(max(soak_s / INTERVALS, MIN_INTERVAL_S), soak_s)


class Soaking:
    """Runs the copies of a soak over and over. What came out is in `results`.

    It ends after `soak_s`, or with the first copy that fails: data that differ, a GPU that is lost.
    """

    def __init__(
        self,
        engine: Engine,
        setting: Setting,
        soak_s: float,
        *,
        on_news: OnNews,
        results: Results,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._setting, self._soak_s = engine, setting, soak_s
        self._on_news, self.results, self._now = on_news, results, now
        self._speeds = Speeds()
        self._begun = self._now()
        self._interval_s = interval_of(soak_s)
        self._clear(0.0)

    def run(self) -> None:
        """Copy. A keyboard interrupt ends it with what there is; it is not raised again."""
        rotation = soak_jobs(self._setting)
        try:
            while self._passed_s() < self._soak_s and not self.results.failures:
                for job in rotation:
                    self._report(job)
                    self._on_news(job)
                    self._run(job)
                    if self._passed_s() >= self._soak_s or self.results.failures:
                        break
        except KeyboardInterrupt:
            self.results.complete = False
            self.results.not_measured.append(NotMeasured(what=self._rest(), reason=INTERRUPTED))
        else:
            if self.results.failures:
                failure = self.results.failures[0]
                self.results.not_measured.append(
                    NotMeasured(what=self._rest(), reason=f"a copy failed ({failure.reason})")
                )
        self._end_interval()

    def _run(self, job: Job) -> None:
        for _ in range(_WINDOWS):
            counts = sizes(job, self._speeds, _EFFORT)
            window = self._engine.measure(job, counts)
            failed = [
                failure_of(msgspec.structs.replace(job, kind=copy.kind), copy, taken.failure)
                for copy, taken in zip(job.copies, window.copies, strict=True)
                if taken.failure is not None
            ]
            if failed:
                self.results.failures += failed
                return
            self._add(job, window)
            if self._passed_s() - self._ended_s >= self._interval_s:
                self._end_interval()
            if self._passed_s() >= self._soak_s:
                return

    def _add(self, job: Job, window: Window) -> None:
        for copy, taken in zip(job.copies, window.copies, strict=True):
            counted = 2 if copy.kind == "d2d_local" else 1
            self._speeds.see(copy, taken.gb_per_s / counted)
            total, windows = self._rates.get(copy, (0.0, 0))
            self._rates[copy] = (total + taken.gb_per_s, windows + 1)
            for gpu in gpus_of(copy):
                self._copied[gpu] = self._copied.get(gpu, 0) + taken.bytes

    def _end_interval(self) -> None:
        if not self._rates:
            return
        rates = tuple(
            SoakRate(
                kind=copy.kind,
                source=copy.source,
                destination=copy.destination,
                gb_per_s=total / windows,
            )
            for copy, (total, windows) in self._rates.items()
        )
        end_s = self._passed_s()
        self.results.soak.append(SoakInterval(end_s=end_s, rates=rates, copied_bytes=dict(self._copied)))
        self._clear(end_s)

    def _clear(self, ended_s: float) -> None:
        self._ended_s = ended_s
        self._rates: dict[Copy, tuple[float, int]] = {}
        self._copied: dict[int, int] = {}

    def _passed_s(self) -> float:
        return self._now() - self._begun

    def _rest(self) -> str:
        return f"the soak from {self._passed_s() / 60:.1f} to {self._soak_s / 60:.1f} min"

    def _report(self, job: Job) -> None:
        left = max(self._soak_s - self._passed_s(), 0.0)
        total = max(int(self._soak_s / self._interval_s), 1)
        done = min(len(self.results.soak), total - 1)
        self._on_news(Progress(done=done, total=total, seconds_left=left, now=f"soak, {describe(job)}"))
