"""What is sampled from the GPUs of a run, in a child process, and how often.

Each sample reads what changes within a step. What changes within seconds is read every few samples, for each
GPU in a different sample, so that all samples take equally long. If a driver does not support a question, it
is asked once.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gputopo.probes.child import Channel, DriverChild, DriverStop, Poll, whole_s
from gputopo.probes.nvml import questions
from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml, NvmlLog, handle_number
from gputopo.probes.nvml.monitor import READ, Closed, Monitor
from gputopo.probes.nvml.words import NVLINK_ERRORS
from gputopo.probes.process_tree import is_descendant
from gputopo.values.run.events import SAMPLED_FACTS, GpuSample, MachineSample, Xid

T = TypeVar("T")

# Intervals in samples. At 4 samples a second: each sample, every second, every 2 s, every 10 s. Not measured;
# chosen because a sample then asks each GPU about eight questions.
EACH, SECOND, TWO_SECONDS, TEN_SECONDS = 1, 4, 8, 40
# Policies that reduce the clocks of a busy GPU. The other VIOLATIONS count idle time, or the sum of these.
POLICIES = ("power", "thermal", "sync_boost", "board_limit", "reliability")
# Reasons that never change while the driver is loaded.
_FOR_GOOD = frozenset(
    {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "DEPRECATED", "NO_PERMISSION", "INVALID_ARGUMENT"}
)
_KINDS = ("compute", "graphics")
# How long to wait for another thread's sample to end after its child was killed. Not measured.
_CLOSE_S = 1.0


class Total:
    """A driver's counter, as the total since its first reading."""

    def __init__(self) -> None:
        self._last: int | None = None
        self.total = 0

    def add(self, value: int, max_more: int | None = None) -> int:
        """Add a reading and return the total.

        A 32-bit counter that goes back from its upper half has wrapped. Any other counter that goes back
        started again at 0, so its new value is added. `max_more`: the most that it can have counted.
        """
        if self._last is not None:
            more = value - self._last
            if more < 0:
                wrapped = 1 << 31 <= self._last < 1 << 32
                more = more + (1 << 32) if wrapped else value
            self.total += more if max_more is None else min(more, max_more)
        self._last = value
        return self.total


class WatchedGpu:
    """One watched GPU: its counters, and the questions that it does not answer.

    Methods raise NotReadError if the GPU is lost.
    """

    def __init__(self, nvml: Nvml, handle: Handle, now: Callable[[], float], run_pid: int) -> None:
        """`now`: monotonic seconds. `run_pid`: the process whose children are the run."""
        self.nvml = nvml
        self._handle = handle
        self._now = now
        self._run_pid = run_pid
        self._unknown: set[str] = set()
        self._totals: dict[str, Total] = {}
        self._read_s: dict[str, float] = {}

    def ask(self, name: str, question: Callable[..., T], *more: object) -> T | None:
        """Return the answer to a question about this GPU, or None if there is none.

        A question that the driver will never answer is not asked again; `name` identifies it.
        """
        if name in self._unknown:
            return None
        try:
            return question(self.nvml, self._handle, *more)
        except NotReadError as error:
            if error.reason == LOST:
                raise
            if error.reason in _FOR_GOOD:
                self._unknown.add(name)
            return None

    def total(self, name: str, value: int, max_more: int | None = None) -> int:
        """Return a counter's total since the start of the watch (Total.add)."""
        return self._totals.setdefault(name, Total()).add(value, max_more)

    def throttled(self) -> Mapping[str, Any]:
        """Return how long each policy has throttled the clocks, without policies that never did."""
        passed_ns = round(1e9 * self._passed_s("throttled"))
        totals = {}
        for policy in POLICIES:
            answer = self.ask(f"throttled {policy}", questions.violation_ns, policy)
            if answer is not None:
                totals[policy] = self.total(policy, answer, passed_ns)
        in_s = {policy: round(total / 1e9, 3) for policy, total in totals.items() if total}
        return {"throttled_s": in_s if totals else None}

    def pcie_rate(self) -> Mapping[str, Any]:
        """Return the mean throughput since the last call, or NVML's 20 ms mean if there are no counters."""
        counted = self.ask("pcie bytes", questions.pcie_bytes)
        if counted is None:
            return {
                f"pcie_{direction}_mb_per_s": self.ask("pcie rate", questions.pcie_mb_per_s, direction)
                for direction in ("in", "out")
            }
        return self._rates("pcie", counted)

    def nvlink_rate(self) -> Mapping[str, Any]:
        """Return the mean throughput of all NVLinks together since the last call."""
        counted = self.ask("nvlink 5 bytes", questions.nvlink_5_bytes) or self.ask(
            "nvlink bytes", questions.nvlink_bytes
        )
        return {} if counted is None else self._rates("nvlink", counted)

    def _rates(self, link: str, counted: Sequence[int]) -> Mapping[str, Any]:
        """Return the throughput since the last call, from the total bytes received and sent."""
        passed_s = self._passed_s(link)
        rates = {}
        for direction, count in zip(("in", "out"), counted, strict=True):
            name = f"{link}_{direction}_mb_per_s"
            before = self._totals.get(name, Total()).total
            moved = self.total(name, count) - before
            if passed_s:
                rates[name] = round(moved / 1e6 / passed_s, 1)
        return rates

    def ecc(self) -> Mapping[str, Any]:
        """Return the number of ECC errors of each kind."""
        kinds = ("corrected", "uncorrected")
        counts = {kind: self.ask(f"ecc {kind}", questions.fact, f"ecc.{kind}_volatile") for kind in kinds}
        return {f"ecc_{kind}": self.total(kind, count) for kind, count in counts.items() if count is not None}

    def replays(self) -> Mapping[str, Any]:
        """Return how often a PCIe packet was sent again."""
        count = self.ask("replays", questions.fact, "pcie.replay_counter")
        return {} if count is None else {"pcie_replays": self.total("replays", count)}

    def nvlink_errors(self) -> Mapping[str, Any]:
        """Return the errors of all NVLinks together. On newer GPUs, they are field values."""
        links = min(self.ask("nvlink count", questions.nvlink_count) or 0, questions.MAX_NVLINKS)
        return {"nvlink_errors": sum(map(self._errors_on, range(links)))} if links else {}

    def _errors_on(self, link: int) -> int:
        counts: dict[str, object] = dict(self.ask("nvlink fields", questions.nvlink_fields, link, None) or {})
        counts.pop("speed", None)
        for counter in NVLINK_ERRORS:
            answer = self.ask(f"nvlink {counter}", questions.nvlink_errors, link, counter)
            counts[counter] = counts.get(counter) if answer is None else answer
        return sum(
            self.total(f"nvlink {link} {name}", value)
            for name, value in counts.items()
            if isinstance(value, int)
        )

    def processes(self) -> Mapping[str, Any]:
        """Return the number of processes, and the number of processes that do not belong to this run.

        In a container, NVML may report process IDs of another namespace. Then none of the processes is
        visible here, and their owner is unknown.
        """
        by_kind = [self.ask(f"{kind} processes", questions.processes, kind) for kind in _KINDS]
        if all(listed is None for listed in by_kind):
            return {}
        pids = {pid for listed in by_kind for pid, _ in listed or ()}
        others = [pid for pid in pids if not is_descendant(pid, self._run_pid)]
        known = len(others) < len(pids) or all(Path(f"/proc/{pid}").exists() for pid in others)
        return {"processes": len(pids), "other_processes": len(others) if known else None}

    def _passed_s(self, name: str) -> float:
        """Return the seconds since the last call with this name, 0 for the first call."""
        now = self._now()
        before, self._read_s[name] = self._read_s.get(name, now), now
        return now - before


class WatchQuestion(NamedTuple):
    """Fields of a GpuSample that are read from a GPU at a given interval, in samples."""

    every: int
    ask: Callable[[WatchedGpu], Mapping[str, Any]]


def _field(every: int, field: str) -> WatchQuestion:
    """Return a question for one field of a sample that is a fact of the GPU."""
    path = SAMPLED_FACTS[field].path
    return WatchQuestion(every, lambda card: {field: card.ask(field, questions.fact, path)})


def _utilization(card: WatchedGpu) -> Mapping[str, Any]:
    rates = card.ask("utilization", questions.facts_with, "utilization_percent.gpu") or {}
    return {
        f"{part}_utilization_percent": rates.get(f"utilization_percent.{part}") for part in ("gpu", "memory")
    }


ASKED = (
    _field(EACH, "graphics_mhz"),
    _field(EACH, "memory_mhz"),
    _field(EACH, "power_w"),
    _field(EACH, "throttle_mask"),
    WatchQuestion(EACH, _utilization),
    _field(EACH, "pcie_gen"),
    _field(SECOND, "pcie_width"),
    _field(SECOND, "temperature_c"),
    _field(SECOND, "pstate"),
    WatchQuestion(SECOND, WatchedGpu.throttled),
    _field(SECOND, "memory_used_mib"),
    _field(TWO_SECONDS, "memory_temperature_c"),
    WatchQuestion(TWO_SECONDS, WatchedGpu.pcie_rate),
    WatchQuestion(TWO_SECONDS, WatchedGpu.replays),
    WatchQuestion(TWO_SECONDS, WatchedGpu.processes),
    _field(TEN_SECONDS, "power_limit_w"),
    WatchQuestion(TEN_SECONDS, WatchedGpu.nvlink_errors),
)
# All questions in each sample, and questions that a run does not ask; without the owners of processes.
AT_ONCE = (
    *(question._replace(every=EACH) for question in ASKED if question.ask is not WatchedGpu.processes),
    WatchQuestion(EACH, WatchedGpu.nvlink_rate),
    WatchQuestion(EACH, WatchedGpu.ecc),
)
# What copies of a soak need: in each sample what `Monitor` reads.
CLOCKS = tuple(_field(EACH, field) for field in READ)
ASKED_OF_OTHERS = (WatchQuestion(TWO_SECONDS, WatchedGpu.processes),)


class XidNews(msgspec.Struct, frozen=True, kw_only=True):
    """The Xid errors since the last sample. `reason`: why they are not reported."""

    time_s: float
    xids: tuple[Xid, ...]
    reason: str | None


class GpuWatch(Monitor):
    """Keeps NVML, the handles of `gpus` (indices of the machine) and an event set open; a context manager.

    Asks each of `asked` at its interval; the first sample asks them all. `others`: GPUs outside the run. They
    are asked only for their processes, and only the samples that ask for processes contain them.
    `xid_reason`: NVML's reason why Xid errors are not reported, or None while they are. Some drivers allow
    events only for root; some cards have none. Raises NotReadError with NVML's reason if NVML cannot be
    opened; a GPU that is lost raises nothing.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        log: NvmlLog | None = None,
        *,
        others: Sequence[int] = (),
        asked: Sequence[WatchQuestion] = ASKED,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        run_pid: int | None = None,
    ) -> None:
        """`now`: seconds since the epoch. `clock`: monotonic seconds, for rates.

        `run_pid`: see WatchedGpu; by default, this process's parent.
        """
        super().__init__((*gpus, *others), log)
        self._others = frozenset(others)
        self._asked = asked
        self._now = now
        pid = os.getppid() if run_pid is None else run_pid
        handles = {gpu: handle for gpu, handle in self._handles.items() if handle is not None}
        self._cards = {gpu: WatchedGpu(self._nvml, handle, clock, pid) for gpu, handle in handles.items()}
        self._places = {gpu: place for place, gpu in enumerate(self._handles)}
        self._number = -1
        self._gpus_by_handle = {handle_number(handle): gpu for gpu, handle in handles.items()}
        self._events: Any = None
        self.xid_reason: str | None = None if handles else "NO_GPU_ANSWERS"
        self._nvml.about = ""
        try:
            self._events = self._nvml.listen_for_xids([*handles.values()]) if handles else None
        except NotReadError as error:
            self.xid_reason = error.reason

    def observe(self) -> MachineSample:
        """Return a sample of all GPUs, and the Xid errors since the last sample. Never raises or waits."""
        xids = self._xids()
        return MachineSample(time_s=self._now(), gpus=self.sample(), xids=xids)

    def parts(self) -> Iterator[object]:
        """Yield the parts of a sample in order: the Xid errors, then the GPUs."""
        yield XidNews(time_s=self._now(), xids=self._xids(), reason=self.xid_reason)
        yield from self._samples()

    def close(self) -> None:
        """Close the event set and NVML. Samples after this are empty."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(NotReadError):
                self._nvml.stop_listening(events)
        super().close()

    def _xids(self) -> tuple[Xid, ...]:
        if self._events is None:
            return ()
        self._nvml.about = ""
        try:
            reported = self._nvml.xids(self._events)
        except NotReadError as error:
            self.xid_reason = error.reason  # a lost GPU may break the whole event set, permanently or for now
            return ()
        self.xid_reason = None
        return tuple(Xid(code=code, gpu=self._gpus_by_handle.get(number)) for number, code in reported)

    def _samples(self) -> Iterator[GpuSample]:
        self._number += 1
        for sample in super()._samples():
            if sample.gpu not in self._others or sample.processes is not None:
                yield sample

    def _sample(self, gpu: int, handle: Handle | None) -> GpuSample:
        if handle is None:
            return GpuSample(gpu=gpu, lost=self._refused.get(gpu) == LOST)
        turn = self._number and self._number + self._places[gpu]
        fields: dict[str, Any] = {}
        try:
            for question in self._asked if gpu not in self._others else ASKED_OF_OTHERS:
                if turn % question.every == 0:
                    fields |= question.ask(self._cards[gpu])
        except NotReadError:
            return GpuSample(gpu=gpu, lost=True)
        return GpuSample(gpu=gpu, **fields)


class GpuWatchChild(Closed):
    """A GpuWatch in a child process. A driver that hangs or crashes ends only the samples.

    `stop`: the call that hung or crashed, or None. Samples do not contain GPUs that were due after that call.
    `xid_reason`: as of the last sample. Create it in the main thread. Another thread may sample, even while
    it is closed. `poll`: see DriverChild. Raises NotReadError as GpuWatch does, and if NVML does not answer.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        others: Sequence[int] = (),
        asked: Sequence[WatchQuestion] = ASKED,
        poll: Poll | None = None,
    ) -> None:
        self.stop: DriverStop | None = None
        self.xid_reason: str | None = None
        self._gpus, self._others, self._asked = tuple(gpus), tuple(others), asked
        self._in_use = threading.Lock()
        self._closed = False
        try:
            self._child = DriverChild(self._work, poll=poll)
        except OSError as error:
            raise NotReadError("NO_CHILD_PROCESS") from error
        refused = [msgspec.json.decode(part, type=str) for part in self._answer()]
        if self.stop is not None or refused:
            self.close()
            raise NotReadError(refused[0] if self.stop is None else self.stop.text)

    def observe(self) -> MachineSample:
        """Return a sample of all GPUs, and the Xid errors since the last sample. Never raises."""
        parts: list[bytes] = []
        with self._in_use:
            if self.stop is None and not self._closed:
                self._child.request()
                parts = self._answer()
        if not parts:
            return MachineSample(time_s=time.time(), gpus=())
        news = msgspec.json.decode(parts[0], type=XidNews)
        self.xid_reason = news.reason
        gpus = tuple(msgspec.json.decode(part, type=GpuSample) for part in parts[1:])
        return MachineSample(time_s=news.time_s, gpus=gpus, xids=news.xids)

    def close(self) -> None:
        """End the child. Samples after this contain no GPU."""
        if self._closed:
            return
        self._closed = True
        self._child.kill()  # so that another thread no longer waits for it
        if self._in_use.acquire(timeout=_CLOSE_S):
            self._child.close()
            self._in_use.release()

    def _work(self, channel: Channel) -> None:
        """Sample in the child, once for each request."""
        try:
            with GpuWatch(self._gpus, channel.nvml, others=self._others, asked=self._asked) as watch:
                channel.done()
                while channel.wait():
                    for part in watch.parts():
                        channel.put(part)
                    channel.done()
        except NotReadError as error:
            channel.put(error.reason)
            channel.done()

    def _answer(self) -> list[bytes]:
        """Return the parts of an answer."""
        parts = self._child.answer(whole_s(len(self._gpus)))
        if not self._closed:
            self.stop = self._child.stop
        return parts


def open_watch(gpus: Sequence[int]) -> GpuWatchChild:
    """Start to watch GPUs with all questions in each sample. Raises NotReadError if NVML does not answer."""
    return GpuWatchChild(gpus, asked=AT_ONCE)


def watch_clocks(gpus: Sequence[int]) -> GpuWatchChild:
    """Start to watch clocks, power, temperatures and links of GPUs. Raises NotReadError."""
    return GpuWatchChild(gpus, asked=CLOCKS)
