"""A soak: all GPUs copy for minutes, all data that arrives is compared, and rates are kept by interval."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import cycle
from typing import Protocol, Self

from msgspec.structs import replace

from gputopo.probes.child import DriverStop
from gputopo.probes.copy_jobs import Copy, CopyJob, Setting, WindowRunner, describe
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.nvml.gpu_watch import watch_clocks
from gputopo.probes.session.budget import Effort, Speeds, sizes
from gputopo.probes.session.jobs import soak_jobs
from gputopo.probes.session.session import INTERRUPTED, OnNews, Results, SessionProgress
from gputopo.values.bandwidth import NotMeasured, SoakInterval, SoakRate
from gputopo.values.history import History
from gputopo.values.machine import Machine, Sample
from gputopo.values.run.events import MachineSample
from gputopo.values.samples import Facts, facts_of, of_sample, without_settings

# A window as long as the engine's buffers allow: buffers are filled and compared between windows.
_EFFORT = Effort(0.5, 1)
# Windows of one job in a row, so that most of the time goes to copies and not to enabling peer access.
_WINDOWS = 4
# Intervals of a soak, for an hour as for a minute. Not measured; chosen because no interval is then shorter
# than clocks need to settle.
INTERVALS = 60
MIN_INTERVAL_S = 5.0


def interval_of(soak_s: float) -> float:
    """Return the seconds of one interval of a soak."""
    return min(max(soak_s / INTERVALS, MIN_INTERVAL_S), soak_s)


class Soaking:
    """Repeats the copies of a soak. The results are in `results`.

    Ends after `soak_s`, or with the first copy that fails: data that differs, or a GPU that is lost.
    """

    def __init__(
        self,
        engine: WindowRunner,
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
        """Copy. A keyboard interrupt ends it with the results so far, and is not raised again."""
        stopped: str | None = None
        try:
            for job in cycle(soak_jobs(self._setting)):
                if self._is_over():
                    break
                self._report(job)
                self._on_news(job)
                self._run(job)
        except KeyboardInterrupt:
            self.results.complete = False
            stopped = INTERRUPTED
        else:
            if self.results.failures:
                stopped = f"a copy failed ({self.results.failures[0].reason})"
        if stopped is not None:
            what = f"the soak from {self._passed_s() / 60:.1f} to {self._soak_s / 60:.1f} min"
            self.results.not_measured.append(NotMeasured(what=what, reason=stopped))
        self._end_interval()

    def _run(self, job: CopyJob) -> None:
        for _ in range(_WINDOWS):
            window = self._engine.measure(job, sizes(job, self._speeds, _EFFORT))
            self.results.failures += [
                replace(taken.failure, kind=copy.kind, path=None)
                for copy, taken in zip(job.copies, window.copies, strict=True)
                if taken.failure is not None
            ]
            if self.results.failures:
                return
            for copy, taken in zip(job.copies, window.copies, strict=True):
                self._speeds.see(copy, taken.gb_per_s)
                total, windows = self._rates.get(copy, (0.0, 0))
                self._rates[copy] = (total + taken.gb_per_s, windows + 1)
                for gpu in copy.gpus:
                    self._copied[gpu] = self._copied.get(gpu, 0) + taken.bytes
            if self._passed_s() - self._ended_s >= self._interval_s:
                self._end_interval()
            if self._is_over():
                return

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

    def _is_over(self) -> bool:
        return self._passed_s() >= self._soak_s or bool(self.results.failures)

    def _report(self, job: CopyJob) -> None:
        left = max(self._soak_s - self._passed_s(), 0.0)
        total = max(int(self._soak_s / self._interval_s), 1)
        done = min(len(self.results.soak), total - 1)
        self._on_news(
            SessionProgress(done=done, total=total, seconds_left=left, now=f"soak, {describe(job)}")
        )


# Clocks change within a second; a reading takes some milliseconds for each GPU.
WATCH_EVERY_S = 2.0


class _Watcher(Protocol):
    xid_reason: str | None
    stop: DriverStop | None

    def observe(self) -> MachineSample: ...

    def close(self) -> None: ...


class SoakReadings:
    """Readings of `machine` during its copies, in separate child processes. A context manager.

    `read` reads the whole machine again in each interval of the soak, for its counters. `watch` opens the
    watcher that samples clocks, temperature, throttling and Xid errors of `gpus` (None: all). `history`: of
    these samples.
    """

    def __init__(
        self,
        machine: Machine,
        soak_s: float,
        read: Callable[[], Machine],
        *,
        gpus: Sequence[int] | None = None,
        watch: Callable[[Sequence[int]], _Watcher] = watch_clocks,
        now: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._first, self._machine = machine, machine
        self._every_s, self._read = interval_of(soak_s), read
        self._gpus = [gpu.index for gpu in machine.gpus if gpus is None or gpu.index in gpus]
        self._watch, self._now, self._epoch = watch, now, epoch
        self._watcher: _Watcher | None = None
        self._samples: list[Sample] = []
        self._lasting: Mapping[int, Facts] = {}
        self._next_watch_s = self._next_read_s = 0.0
        self.history = History()
        self._reason: str | None = None  # why NVML cannot be sampled

    def __enter__(self) -> Self:
        try:
            self._watcher = self._watch(self._gpus)
        except NotReadError as error:
            self._reason = error.reason
        self._add(self._machine)
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.close()

    def tick(self) -> None:
        """Take the readings that are due."""
        if self._watcher is not None and self._now() >= self._next_watch_s:
            self.history.add(self._watcher.observe())
            self._next_watch_s = self._now() + WATCH_EVERY_S
        if self._now() >= self._next_read_s:
            self._add(self._read())

    def port_errors(self) -> dict[str, dict[str, int]]:
        """Return by how much the AER counters of PCI bridges rose from the first reading to the last."""
        before = {node.address: node.aer or {} for node in self._first.pci if node.kind != "gpu"}
        rises: dict[str, dict[str, int]] = {}
        for node in self._machine.pci:
            if node.address in before:
                counts = before[node.address]
                rose = {kind: count - counts.get(kind, count) for kind, count in (node.aer or {}).items()}
                if grown := {kind: count for kind, count in rose.items() if count > 0}:
                    rises[node.address] = grown
        return rises

    def notes(self) -> tuple[str, ...]:
        """Return notes on what could not be read, and why."""
        notes = []
        if self._reason is not None:
            notes.append(f"no clocks, temperatures and Xid errors were sampled: NVML {self._reason}")
        elif self._watcher is not None and self._watcher.xid_reason is not None:
            notes.append(f"Xid errors were not watched: NVML {self._watcher.xid_reason}")
        if self._watcher is not None and self._watcher.stop is not None:
            notes.append(f"no clocks, temperatures and Xid errors from then on: {self._watcher.stop.text}")
        return tuple(notes)

    def machine(self) -> Machine:
        """Read the machine once more, and return it with all samples."""
        self._add(self._read())
        return replace(self._machine, samples=tuple(self._samples), series=tuple(self.history.gpus.values()))

    def _add(self, machine: Machine) -> None:
        if machine.driver.status not in ("ok", "not_read"):
            self._next_read_s = float("inf")  # do not ask a driver that hangs again
            return
        self._machine = machine
        if not self._samples:
            self._lasting = {gpu.index: facts_of(gpu) for gpu in machine.gpus}
        at = datetime.fromtimestamp(self._epoch(), UTC).isoformat(timespec="milliseconds")
        gpus = tuple({"index": gpu.index} | of_sample(facts_of(gpu)) for gpu in machine.gpus)
        for facts in gpus:
            facts.pop("processes", None)  # a list of all programs at each reading
        lasting = self._lasting if self._lasting.keys() == {facts["index"] for facts in gpus} else {}
        sample = Sample(source=machine.source, time=at, gpus=gpus)
        self._samples.append(without_settings(sample, lasting) if lasting else sample)
        self._next_read_s = self._now() + self._every_s
