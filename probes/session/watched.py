"""A measuring session in a child process: a driver call that hangs or crashes does not cost the report.

The child streams its results. If a CUDA call does not return, another child continues without the GPUs of
that call. If an NVML call does not return, the rest is measured without readings.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

import msgspec

from gputopo.probes.child import CallLimits, CallSlot, Channel, DriverChild, DriverStop, Poll, state_of
from gputopo.probes.copy_jobs import (
    Copy,
    CopyJob,
    SessionRequest,
    WindowRunner,
    describe,
    failure_of,
)
from gputopo.probes.cuda.door import CallLog
from gputopo.probes.cuda.start import open_cuda
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.nvml.monitor import Monitor
from gputopo.probes.session.conditions import GpuSampler
from gputopo.probes.session.measuring import (
    ALL_COPIES,
    Doors,
    Measuring,
    bandwidth_of,
    check,
    live_engine,
)
from gputopo.probes.session.session import (
    INTERRUPTED,
    EarlierSession,
    News,
    NothingMeasured,
    Results,
    SessionEnd,
    SessionProgress,
)
from gputopo.values.bandwidth import Bandwidth, NotMeasured
from gputopo.values.ends import HOST, End
from gputopo.values.machine import Machine
from gputopo.values.schema import from_text

CRASHED = "CRASHED"
TIMED_OUT = "TIMED_OUT"
THE_REST = "the rest of the copies"
# Each restart gives up one more GPU. After three hung calls, the driver is not used again.
MAX_RESTARTS = 3
_KILLED = "SIGKILL"
_NO_MEMORY = ", as the kernel does if memory runs out (sudo dmesg | grep -i oom)"
_FREE_SOME = "end programs that use much memory, or measure fewer GPUs at once: --gpus"
_REMEDY = (
    "see sudo dmesg | grep -i -e nvrm -e xid, and ps -eo pid,stat,wchan:30,cmd for processes in state D; "
    "reset the GPUs (sudo nvidia-smi -r -i {}), or reboot"
)


_decoder = msgspec.json.Decoder(
    SessionProgress | CopyJob | SessionEnd | Results | NothingMeasured, dec_hook=from_text
)


def watched_doors(channel: Channel) -> Doors:
    """Return the doors of this machine. They note their driver calls in the child's memory."""
    log = _Log(channel.cuda)

    @contextlib.contextmanager
    def engine(
        cuda: Any, ordinals: Mapping[int, int], node_cpus: Mapping[int, Sequence[int]], pinned_bytes: int
    ) -> Iterator[WindowRunner]:
        log.gpus = {ordinal: gpu for gpu, ordinal in ordinals.items()}
        with live_engine(cuda, ordinals, node_cpus, pinned_bytes) as opened:
            yield opened

    return Doors(
        open_cuda=partial(open_cuda, log),
        open_engine=engine,
        open_sampler=lambda gpu: Monitor([gpu], channel.nvml),
    )


def measure_watched(
    machine: Machine,
    request: SessionRequest,
    progress: Callable[[SessionProgress], None] | None = None,
    *,
    doors: Callable[[Channel], Doors] = watched_doors,
    limits: CallLimits | None = None,
    on_pause: Callable[[], None] = lambda: None,
    poll: Poll | None = None,
) -> Bandwidth:
    """Measure this machine's links in a child process. Call it from the main thread.

    Ctrl-C, or a driver that hangs or crashes, ends it with the results so far (`complete` is False).
    `on_pause` is called repeatedly while it waits. `poll`: see DriverChild.
    """
    check(machine, request)
    begun, measured_at = time.perf_counter(), time.time()
    watching = _Watching(machine, request, progress, doors, limits or CallLimits(), on_pause, poll)
    refusal = watching.run(begun)
    duration_s = time.perf_counter() - begun
    return bandwidth_of(machine, request, watching.results, refusal, measured_at, duration_s)


@dataclass
class _Watching:
    """The parent's side: runs children one after another, and collects their results."""

    machine: Machine
    request: SessionRequest
    progress: Callable[[SessionProgress], None] | None
    doors: Callable[[Channel], Doors]
    limits: CallLimits
    on_pause: Callable[[], None]
    poll: Poll | None
    results: Results = field(default_factory=Results)
    refusal: NothingMeasured | None = None
    begun: list[CopyJob] = field(default_factory=list)
    job: CopyJob | None = None  # in progress
    given_up: dict[int, str] = field(default_factory=dict)
    no_readings: str | None = None
    ended: bool = False

    def run(self, begun: float) -> NothingMeasured | None:
        """Measure. Return the reason if no GPU could be measured."""
        earlier: EarlierSession | None = None
        restarts = 0
        while True:
            news_s = time.perf_counter()
            try:
                child = DriverChild(partial(self._work, begun, earlier), self.limits, self.poll)
            except OSError as error:
                reason = f"no process can be started: {error.strerror}"
                self._leave_out(reason)
                return NothingMeasured(reason, "raise the limit of processes (ulimit -u), or end some")
            with child, _Interrupts() as interrupts:
                for line in child.lines():
                    if line:
                        news_s = time.perf_counter()
                        self._receive(line)
                    self.on_pause()
                    if self.ended or interrupts.over(child, self.limits.end_s):
                        break
                if self.ended and not interrupts.count:
                    child.finish()
            if (pid := child.abandoned) is not None:
                where = " in state D, an uninterruptible call of the driver" if state_of(pid) == "D" else ""
                self.results.notes.append(
                    f"the measuring process {pid} was killed and does not end{where}; its GPUs stay in use "
                    "until then"
                )
            if interrupts.count and not self.ended:
                self._leave_out(INTERRUPTED)
            stop = child.stop
            if self.ended or interrupts.count or stop is None:
                return None if self._reached_a_gpu() else self.refusal
            if not self._blame(stop) or restarts == MAX_RESTARTS:
                killed = _KILLED in stop.how
                reason = stop.text + (_NO_MEMORY if killed else "")
                self._leave_out(reason)
                if self._reached_a_gpu():
                    return None
                listed = ",".join(map(str, stop.gpus or sorted(self.given_up) or self._chosen()))
                return NothingMeasured(reason, _FREE_SOME if killed else _REMEDY.format(listed))
            restarts += 1
            self.job = None
            begun += time.perf_counter() - news_s  # waiting time is not part of the session
            earlier = EarlierSession(
                samples=self.results.samples,
                done=frozenset(self.begun),
                given_up=dict(self.given_up),
                no_readings=self.no_readings,
            )

    def _work(self, begun: float, earlier: EarlierSession | None, channel: Channel) -> None:
        results = Results()
        outlet = _Outlet(channel, results)
        doors = self.doors(channel)
        if earlier is not None and earlier.no_readings is not None:
            reason = earlier.no_readings

            def refuse(_gpu: int) -> GpuSampler:
                raise NotReadError(reason)

            doors = replace(doors, open_sampler=refuse)
        session = Measuring(self.machine, self.request, results, doors, outlet.put, begun, earlier)
        if (refusal := session.run()) is not None:
            outlet.put(refusal)
        outlet.put(SessionEnd())

    def _receive(self, line: bytes) -> None:
        news = _decoder.decode(line)
        if not isinstance(news, Results):
            self.job = None
        match news:
            case SessionProgress():
                if self.progress is not None:
                    self.progress(news)
            case CopyJob():
                self.job = news
                if self.request.soak_s is None:  # a soak repeats its jobs
                    self.begun.append(news)
            case SessionEnd():
                self.ended = True
            case NothingMeasured():
                self.refusal = news
            case Results():
                self._add(news)

    def _add(self, new: Results) -> None:
        results = self.results
        results.samples += new.samples
        results.failures += new.failures
        # A child that continues reports the same as the child before.
        results.not_measured += [text for text in new.not_measured if text not in results.not_measured]
        results.notes += [text for text in new.notes if text not in results.notes]
        results.soak += new.soak
        results.cuda_version = new.cuda_version or results.cuda_version
        results.host_load = new.host_load if results.host_load is None else results.host_load
        results.complete = new.complete

    def _blame(self, stop: DriverStop) -> bool:
        """Note what a stop prevents. Return whether another child can measure the rest."""
        job = self.job
        if not stop.function or _KILLED in stop.how:
            return False
        if stop.function.startswith("nvml"):
            again = self.no_readings is None
            self.no_readings = stop.text
            if job in self.begun:
                self.begun.remove(job)  # it is measured again
            return again and self.request.soak_s is None
        gpus = set(stop.gpus or (gpu for copy in (job.copies if job else ()) for gpu in copy.gpus))
        if not gpus:
            return False
        copies = [(job, copy) for copy in job.copies if gpus & set(copy.gpus)] if job else []
        if not copies:
            firsts = [
                Copy(kind="h2d", source=HOST, destination=End.of_gpus(gpu), pinned=True) for gpu in gpus
            ]
            copies = [(CopyJob(kind="h2d", copies=(first,)), first) for first in firsts]
        reason = TIMED_OUT if stop.kind == "hung" else CRASHED
        self.results.failures += [failure_of(of_job, copy, reason, stop.text) for of_job, copy in copies]
        for gpu in gpus:
            self.given_up[gpu] = f"gpu:{gpu} is no longer used: {stop.text}"
            self._not_measured(f"other copies of gpu:{gpu}", self.given_up[gpu])
        # The child itself has given up a GPU whose copy did not end.
        for failed in self.results.failures:
            if failed.reason == TIMED_OUT and failed.says != stop.text:
                for gpu in failed.gpus:
                    self.given_up.setdefault(gpu, f"gpu:{gpu} is no longer used: {failed.says}")
        left = [gpu for gpu in self._chosen() if gpu not in self.given_up]
        return bool(left) and self.request.soak_s is None

    def _reached_a_gpu(self) -> bool:
        return any(sample.gpus for sample in self.results.samples) or bool(self.results.soak)

    def _chosen(self) -> Sequence[int]:
        if self.request.gpus is not None:
            return self.request.gpus
        return [gpu.index for gpu in self.machine.gpus]

    def _leave_out(self, reason: str) -> None:
        self.results.complete = False
        if reason != INTERRUPTED:
            self.results.notes.append(f"the measurement ended early: {reason}")
        elif self.job is not None:
            self._not_measured(describe(self.job), reason)
        self._not_measured(THE_REST if self.begun else ALL_COPIES, reason)

    def _not_measured(self, what: str, reason: str) -> None:
        self.results.not_measured.append(NotMeasured(what=what, reason=reason))


class _Outlet:
    """Sends the child's news to the parent, each after the results that were added before it."""

    def __init__(self, channel: Channel, results: Results) -> None:
        self._channel, self._results = channel, results
        self._sent = dict.fromkeys(("samples", "failures", "not_measured", "notes", "soak"), 0)

    def put(self, news: News | NothingMeasured) -> None:
        new = msgspec.structs.replace(self._results)
        for name, sent in self._sent.items():
            whole = getattr(self._results, name)
            setattr(new, name, whole[sent:])
            self._sent[name] = len(whole)
        self._channel.put(new)
        self._channel.put(news)


class _Log(CallLog):
    """Notes CUDA calls with the GPU of the current device. `gpus`: by CUDA's ordinal."""

    def __init__(self, slot: CallSlot) -> None:
        self._slot = slot
        self.gpus: Mapping[int, int] = {}

    def begin(self, function: str, ordinal: int | None) -> None:
        gpu = None if ordinal is None else self.gpus.get(ordinal)
        self._slot.begin(function, "" if gpu is None else str(gpu))

    def end(self) -> None:
        self._slot.end()


class _Interrupts(AbstractContextManager["_Interrupts"]):
    """Counts Ctrl-C while a child measures, instead of KeyboardInterrupt. An ignored SIGINT stays ignored."""

    def __init__(self) -> None:
        self.count = 0
        self._asked_s: float | None = None

    def __enter__(self) -> "_Interrupts":
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._counted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def over(self, child: DriverChild, end_s: float) -> bool:
        """Interrupt the child after Ctrl-C. Return True after `end_s`, or after a second Ctrl-C."""
        if self.count and self._asked_s is None:
            self._asked_s = time.monotonic()
            child.interrupt()
        return self.count > 1 or (self._asked_s is not None and time.monotonic() > self._asked_s + end_s)

    def _counted(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1
