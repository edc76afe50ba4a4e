"""What is sampled from the GPUs of a run, in a child process, and how often.

Each sample reads what changes within a step. What changes within seconds is read every few samples, for each
GPU in a different sample, so that all samples take equally long. If a driver does not support a question, it
is asked once.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gputopo.probes.nvml import questions
from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml
from gputopo.probes.nvml.monitor import Watcher, WatcherChild
from gputopo.probes.nvml.words import NVLINK_ERRORS
from gputopo.probes.process_tree import is_descendant
from gputopo.values.run.events import SAMPLED_FACTS, GpuSample

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
        found = {}
        for policy in POLICIES:
            answer = self.ask(f"throttled {policy}", questions.violation_ns, policy)
            if answer is not None:
                found[policy] = self.total(policy, answer, passed_ns)
        in_s = {policy: round(total / 1e9, 3) for policy, total in found.items() if total}
        return {"throttled_s": in_s if found else None}

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
        found = self.ask("replays", questions.fact, "pcie.replay_counter")
        return {} if found is None else {"pcie_replays": self.total("replays", found)}

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
        if all(found is None for found in by_kind):
            return {}
        pids = {pid for found in by_kind for pid, _ in found or ()}
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
    found = card.ask("utilization", questions.facts_with, "utilization_percent.gpu") or {}
    return {
        f"{part}_utilization_percent": found.get(f"utilization_percent.{part}") for part in ("gpu", "memory")
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
    *(one._replace(every=EACH) for one in ASKED if one.ask is not WatchedGpu.processes),
    WatchQuestion(EACH, WatchedGpu.nvlink_rate),
    WatchQuestion(EACH, WatchedGpu.ecc),
)
OF_OTHERS = (WatchQuestion(TWO_SECONDS, WatchedGpu.processes),)


class GpuWatch(Watcher):
    """A Watcher that asks each of `asked` at its interval. The first sample asks them all.

    `others`: GPUs outside the run. They are asked only for their processes, and only the samples that ask for
    processes contain them.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        before_call: Callable[[str, str], None] | None = None,
        *,
        others: Sequence[int] = (),
        asked: Sequence[WatchQuestion] = ASKED,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        run_pid: int | None = None,
    ) -> None:
        """`clock`: monotonic seconds, for rates. `run_pid`: see WatchedGpu; default: this one's parent."""
        gpus = (*gpus, *others)
        self._others = frozenset(others)
        self._asked = asked
        super().__init__(gpus, before_call, now=now)
        pid = os.getppid() if run_pid is None else run_pid
        self._cards = {
            gpu: WatchedGpu(self._nvml, handle, clock, pid)
            for gpu, handle in self._handles.items()
            if handle is not None
        }
        self._places = {gpu: place for place, gpu in enumerate(gpus)}
        self._number = -1

    def _samples(self) -> Iterator[GpuSample]:
        self._number += 1
        for sample in super()._samples():
            if sample.gpu not in self._others or sample.processes is not None:
                yield sample

    def _sample(self, gpu: int, handle: Handle | None) -> GpuSample:
        if handle is None:
            return GpuSample(gpu=gpu, lost=self._refused.get(gpu) == LOST)
        turn = self._number and self._number + self._places[gpu]
        found: dict[str, Any] = {}
        try:
            for question in self._asked if gpu not in self._others else OF_OTHERS:
                if turn % question.every == 0:
                    found |= question.ask(self._cards[gpu])
        except NotReadError:
            return GpuSample(gpu=gpu, lost=True)
        return GpuSample(gpu=gpu, **found)


class GpuWatchChild(WatcherChild):
    """A GpuWatch in a child process."""

    def __init__(
        self, gpus: Sequence[int], others: Sequence[int] = (), asked: Sequence[WatchQuestion] = ASKED
    ) -> None:
        self._others, self._asked = tuple(others), asked
        super().__init__(gpus)

    def _watcher(self, before_call: Callable[[str, str], None]) -> GpuWatch:
        return GpuWatch(self._gpus, before_call, others=self._others, asked=self._asked)


def open_watch(gpus: Sequence[int]) -> GpuWatchChild:
    """Start to watch GPUs with all questions in each sample. Raises NotReadError if NVML does not answer."""
    return GpuWatchChild(gpus, asked=AT_ONCE)
