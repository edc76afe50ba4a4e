"""The life of one worker, in one loop that waits for pipes, signals, the worker's end and a deadline.

A signal to the launcher, a full disk or a broken protocol ends the worker's process group: with SIGTERM, and
with SIGKILL after a grace period or at a second Ctrl-C. A worker that has started its steps and saves
something (checkpoints, scalars, a trace) is first asked, by SIGINT, to end after its step. It may take its
time as long as it makes progress, unless a second Ctrl-C comes. However the worker ended, its group is killed
and reaped. The server or worker of another host continues meanwhile, because a batch system ends all hosts at
once.
"""

import contextlib
import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from gputopo.launch import failure
from gputopo.launch.supervise import cgroup
from gputopo.launch.supervise.event_lines import EventLines, NotAnEventError
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.sampling import EventSource
from gputopo.launch.supervise.watchdog import PATIENCE, HangLimits, Watchdog, is_stuck, process_words
from gputopo.launch.supervise.worker_output import WorkerOutput
from gputopo.launch.supervise.worker_process import Command, WorkerProcess
from gputopo.runs import STOPPED_FROM_OUTSIDE
from gputopo.values.run.events import (
    SERVING,
    Noticed,
    PhaseBegun,
    PlacementChecked,
    RankFailed,
    Sample,
    Silent,
    with_names,
)
from gputopo.values.run.spec import RunSpec

_CHUNK_BYTES = 64 * 1024  # a pipe's default capacity
# In seconds: wait for other hosts to report why a host is gone. They report each second. Not measured.
REASON_S = 3.0
CPU_S = 1.0  # silence before the worker's CPU time is first read; not measured
_MAX_CHUNKS = 16  # a pipe holds up to 1 MiB, unless another process still writes to it


@dataclass(frozen=True)
class WorkerLimits:
    """How long a worker may take to end, in seconds."""

    after_term: float = 5.0  # between SIGTERM and SIGKILL
    after_last_event: float = 30.0  # from closing its event pipe until TensorFlow has shut down
    after_kill: float = 10.0  # until it is reported as stuck in a driver call
    patience: HangLimits = PATIENCE  # how long it may be silent
    serves: bool = False  # a silent server of another host: only time in which it cannot run counts


LIMITS = WorkerLimits()

Stage = Literal["running", "finishing", "closing", "asked", "killed", "over"]
"""The stage of a worker: running, finishing its step, no more events, sent SIGTERM, killed, ended."""

Answer = Literal["finish", "end", "kill"]
"""The answer to a signal: let the worker finish its step, send SIGTERM, or kill it."""


class WorkerLife:
    """The stages of a worker, and what is awaited in each stage."""

    def __init__(
        self,
        spec: RunSpec,
        record: Record,
        output: WorkerOutput,
        limits: WorkerLimits,
    ) -> None:
        self._spec = spec
        self._record = record
        self._output = output
        self._limits = limits
        self._oom_kills_before = cgroup.oom_kills()
        self._lines = EventLines()
        self._watchdog = Watchdog(limits.patience, time.monotonic())
        self._stage: Stage = "running"
        self._has_begun = False
        self._deadline: float | None = None
        self._hung: str | None = None
        self._sample: Sample | None = None  # the latest
        self._cpu: tuple[float, float] | None = None  # clock and CPU time of the worker in this silence
        self._unreachable: RankFailed | None = None  # a lost host that the worker reported
        self._signalled_elsewhere = False  # another host got a signal, this host not yet
        self._stopped_elsewhere: RankFailed | None = None  # its failure by that signal, not recorded yet
        self._stuck: dict[int, str] = {}  # why servers of hosts cannot run, by rank
        self._child: WorkerProcess
        self._selector: selectors.DefaultSelector

    def watch(
        self, command: Command, environment: Mapping[str, str], signals: int, sources: Sequence[EventSource]
    ) -> None:
        """Run the worker to its end; record the cause if it failed.

        `sources`: events in addition to the worker's own; a failure among them ends the worker.
        """
        try:
            self._child = WorkerProcess(command, environment)
        except OSError as error:
            self._record.add(self._broken(f"cannot start the worker: {error.strerror}"))
            return
        with contextlib.closing(self._child):
            try:
                with selectors.DefaultSelector() as self._selector:
                    self._wait_for(signals, lambda: self._signals_came(signals))
                    self._wait_for(self._child.events, self._take_events)
                    self._wait_for(self._child.output, self._take_output)
                    self._wait_for(self._child.ended, self._over)
                    for source in sources:
                        self._wait_for(source.ready, partial(self._take_reports, source))
                    self._loop()
            finally:
                self._stage = "over"
                status = self._child.end(within_s=self._limits.after_kill)
            # Read what the worker wrote before its end: its failure may be in it.
            _empty(self._child.output, self._output.take)
            _empty(self._child.events, self._decode_events)
        self._note_stop_elsewhere()
        if self._unreachable is not None:
            self._await_reason(sources)
            self._record.add(self._unreachable)
        self._judge(status)

    def _await_reason(self, sources: Sequence[EventSource]) -> None:
        """Take other hosts' reports for some seconds, because the reason must be recorded before the loss."""
        until = time.monotonic() + REASON_S
        while self._record.failure is None and (left := until - time.monotonic()) > 0:
            if not select.select([source.ready for source in sources], [], [], left)[0]:
                return
            for source in sources:
                self._take_reports(source)

    def _loop(self) -> None:
        while self._stage != "over":
            for key, _ in self._wait():
                key.data()
            if self._is_watched:
                self._give_a_sign()
                self._look_for_a_hang()
            elif self._deadline is not None and time.monotonic() >= self._deadline:
                self._too_late()

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        if self._is_watched:
            came = self._selector.select(self._watchdog.wait_s(time.monotonic()))
            self._watchdog.end_wait(time.monotonic())
            return came
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        return self._selector.select(left)

    @property
    def _is_watched(self) -> bool:
        return self._stage in ("running", "finishing")

    def _wait_for(self, handle: int, act: Callable[[], None]) -> None:
        self._selector.register(handle, selectors.EVENT_READ, act)

    def _over(self) -> None:
        self._stage = "over"

    # The pipes

    def _take_events(self) -> None:
        data = _read(self._child.events)
        if data is None:
            return
        if data == b"":
            self._selector.unregister(self._child.events)
            self._expect_end()
            return
        self._decode_events(data)

    def _decode_events(self, data: bytes) -> None:
        try:
            for event in self._lines.take(data):
                self._watchdog.record_event(event, time.monotonic())
                self._cpu, self._stuck = None, {}
                # A worker starts its steps, or a server starts to serve another host's steps.
                serves = isinstance(event, PhaseBegun) and event.phase == SERVING
                self._has_begun = self._has_begun or serves or isinstance(event, PlacementChecked)
                if isinstance(event, RankFailed):
                    if self._stage == "asked" and event.kind in STOPPED_FROM_OUTSIDE:
                        continue  # caused by our SIGTERM, whose cause is already recorded
                    _empty(self._child.output, self._output.take)
                    event = msgspec.structs.replace(
                        event,
                        cause=with_names(event.cause, self._spec.devices),
                        last_lines=self._output.last_lines,
                    )
                    self._note_lost_state(event)
                    self._expect_end()
                    if event.kind == failure.UNREACHABLE:
                        self._unreachable = event
                        continue
                    self._note_stop_elsewhere()
                self._record.add(event)
        except NotAnEventError as error:
            self._record.add(self._broken(f"the worker wrote an invalid event: {error}"))
            self._ask_to_end()
        if self._record.unwritable:
            self._ask_to_end()

    def _take_output(self) -> None:
        data = _read(self._child.output)
        if data == b"":
            self._selector.unregister(self._child.output)
        elif data is not None:
            self._output.take(data)

    def _take_reports(self, source: EventSource) -> None:
        for event in source.take():
            if isinstance(event, RankFailed) and event.kind in STOPPED_FROM_OUTSIDE:
                self._asked_by(signal.SIGTERM)  # its starter also sent it here, or will send it
                self._signalled_elsewhere = True
                self._stopped_elsewhere = self._stopped_elsewhere or event
                continue
            self._record.add(event)
            if isinstance(event, RankFailed):
                self._ask_to_end()
            elif isinstance(event, Silent):
                self._stuck[event.rank] = event.process
            elif isinstance(event, Sample) and event.rank == 0:
                self._sample = event
        if self._record.unwritable:
            self._ask_to_end()

    # How it ends

    def _note_stop_elsewhere(self) -> None:
        """Record that another host was stopped, unless the signal also came to this host."""
        if self._stopped_elsewhere is not None:
            self._record.add(self._stopped_elsewhere)
            self._stopped_elsewhere = None

    def _signals_came(self, signals: int) -> None:
        for number in _read(signals) or b"":
            self._record.add(failure.asked_to_end(number, self._spec, time_s=time.time()))
            # If all hosts get a Ctrl-C, another host's report may come first: this is then not a second
            # Ctrl-C.
            self._asked_by(signal.SIGTERM if self._signalled_elsewhere else number)
            self._signalled_elsewhere, self._stopped_elsewhere = False, None

    def _asked_by(self, signum: int) -> None:
        worth_a_step = self._has_begun and self._spec.saves_after_a_step
        decided = answer_to_signal(signum, self._stage, worth_a_step=worth_a_step)
        if decided == "kill":
            self._kill()
        elif decided == "finish":
            self._ask_to_finish()
        else:
            self._ask_to_end()

    def _ask_to_finish(self) -> None:
        if self._stage == "running":  # it is asked only once
            self._child.signal(signal.SIGINT)
            self._stage = "finishing"
            self._record.add(PhaseBegun(time_s=time.time(), phase="end"))

    def _note_lost_state(self, failed: RankFailed) -> None:
        """Record that the worker could not finish its step; the signal remains the cause of the run's end."""
        if self._stage == "finishing" and failed.kind not in STOPPED_FROM_OUTSIDE:
            self._record.add(Noticed(time_s=time.time(), says=f"The last state is lost: {failed.cause}"))

    def _give_a_sign(self) -> None:
        """Record a long silence of the worker, and what the worker is doing."""
        if self._limits.serves and not is_stuck(self._child.state()[0]):
            self._watchdog.record_life(time.monotonic())
        if self._cpu is None and self._watchdog.silent_s(time.monotonic()) >= CPU_S:
            self._cpu = time.monotonic(), self._child.state()[1]
        sign = self._watchdog.sign(time.monotonic())
        if sign is not None:
            seconds, during = sign
            does = self._process()
            self._record.add(Silent(time_s=time.time(), seconds=seconds, during=during, process=does))

    def _process(self) -> str:
        """Return what the worker is doing, from its CPU time since the last call."""
        now, (state, cpu_s) = time.monotonic(), self._child.state()
        began, used = self._cpu or (now, cpu_s)
        self._cpu = now, cpu_s
        return process_words(state, (cpu_s - used) / max(now - began, CPU_S))

    def _look_for_a_hang(self) -> None:
        """End a worker that hangs; `_judge` records the failure after the worker has written its stacks."""
        verdict = self._watchdog.verdict(time.monotonic())
        if verdict is not None:
            gpus = failure.gpu_words(self._sample, self._spec.devices)
            servers = self._spec.servers
            others = [
                f"that of {servers[rank].host} (rank {rank}) {does}" for rank, does in self._stuck.items()
            ]
            worker = f"the worker {self._process()}"
            self._hung = "; ".join([verdict, worker, *others, *([gpus] if gpus else [])])
            self._note_lost_state(failure.hung(self._hung, time_s=time.time()))
            self._ask_to_end()

    def _too_late(self) -> None:
        if self._stage == "closing":
            seconds = f"{self._limits.after_last_event:g} s"
            self._record.add(self._broken(f"the worker sent its last event and did not end within {seconds}"))
            self._ask_to_end()
        elif self._stage == "asked":
            self._kill()
        elif self._stage == "killed":
            self._stage = "over"

    def _expect_end(self) -> None:
        """Limit the time until the worker ends, because it has sent its last event."""
        if self._is_watched:
            self._stage = "closing"
            self._deadline = time.monotonic() + self._limits.after_last_event

    def _ask_to_end(self) -> None:
        if self._stage in ("running", "finishing", "closing"):
            self._child.signal_group(signal.SIGTERM)
            self._stage = "asked"
            self._deadline = time.monotonic() + self._limits.after_term

    def _kill(self) -> None:
        if self._stage in ("running", "finishing", "closing", "asked"):
            self._child.signal_group(signal.SIGKILL)
            self._stage = "killed"
            self._deadline = time.monotonic() + self._limits.after_kill

    def _judge(self, status: int | None) -> None:
        """Record why the worker ended, unless it finished its work."""
        if self._hung is not None:
            self._record.add(failure.hung(self._hung, time_s=time.time(), last_lines=self._output.last_lines))
        if status is None:
            stuck = f"process {self._child.pid} does not end after SIGKILL: it is stuck in the driver"
            self._record.add(self._broken(stuck))
        elif status == 0 and self._lines.unfinished:
            self._record.add(self._broken("the worker's last event was cut short"))
        elif status != 0 or not (self._record.has_steps or self._spec.after(self._record.resumed) is None):
            kills, before = cgroup.oom_kills(), self._oom_kills_before
            self._record.add(
                failure.failure_of_exit(
                    status,
                    self._spec,
                    time_s=time.time(),
                    last_lines=self._output.last_lines,
                    oom_kills=0 if kills is None or before is None else kills - before,
                    peak_bytes=self._child.peak_bytes,
                    memory_bytes=cgroup.memory_bytes(),
                    phase=self._watchdog.phase,
                )
            )

    def _broken(self, cause: str) -> RankFailed:
        return failure.broken(cause, time_s=time.time(), last_lines=self._output.last_lines)


def _empty(handle: int, take: Callable[[bytes], None]) -> None:
    for _ in range(_MAX_CHUNKS):
        data = _read(handle)
        if not data:
            return
        take(data)


def _read(handle: int) -> bytes | None:
    """Read a non-blocking pipe: b"" at its end, None if it is empty."""
    try:
        return os.read(handle, _CHUNK_BYTES)
    except BlockingIOError:
        return None


def answer_to_signal(signum: int, stage: Stage, *, worth_a_step: bool) -> Answer:
    """Decide what a signal to the launcher does. A second Ctrl-C kills immediately.

    SIGTERM and SIGHUP may come twice for one request, to the group and again from a parent, and their sender
    can use SIGKILL. They therefore do not interrupt the step that the worker was asked to finish.

    `worth_a_step`: the worker has started its steps, and saves their result.
    """
    if signum == signal.SIGINT and stage in ("finishing", "asked", "killed"):
        return "kill"
    return "finish" if stage in ("running", "finishing") and worth_a_step else "end"
