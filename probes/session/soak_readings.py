"""What the GPUs report while they are under load: clocks and Xid errors, and every counter of errors."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, Self

import msgspec

from gputopo.probes.child import Stop
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.sampling.watch import WatcherChild
from gputopo.values.history import History
from gputopo.values.machine import Machine, Sample
from gputopo.values.run.events import MachineSample
from gputopo.values.samples import Facts, facts_of, of_sample, without_settings

# Clocks change within a second; a reading takes NVML some milliseconds a GPU.
WATCH_EVERY_S = 2.0


class _Watcher(Protocol):
    xid_reason: str | None
    stop: Stop | None

    def observe(self) -> MachineSample: ...

    def close(self) -> None: ...


class SoakReadings:
    """Readings of `machine` beside its copies, in child processes of their own; a context manager.

    `read` reads the whole machine anew, every `every_s`: its counters. `watch` opens what samples clocks,
    temperature, throttling and Xid errors of `gpus` (None: all). `history`: of those samples.
    """

    def __init__(
        self,
        machine: Machine,
        every_s: float,
        read: Callable[[], Machine],
        *,
        gpus: Sequence[int] | None = None,
        watch: Callable[[Sequence[int]], _Watcher] = WatcherChild,
        now: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._first, self._machine = machine, machine
        self._every_s, self._read = every_s, read
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
        """Read what it is time for."""
        if self._watcher is not None and self._now() >= self._next_watch_s:
            self.history.add(self._watcher.observe())
            self._next_watch_s = self._now() + WATCH_EVERY_S
        if self._now() >= self._next_read_s:
            self._add(self._read())

    def port_errors(self) -> dict[str, dict[str, int]]:
        """Return by how much the AER counters of PCI bridges rose from the first reading to the last."""
        before = {node.address: node.aer or {} for node in self._first.pci if node.kind != "gpu"}
        found: dict[str, dict[str, int]] = {}
        for node in self._machine.pci:
            if node.address in before:
                counts = before[node.address]
                rose = {kind: count - counts.get(kind, count) for kind, count in (node.aer or {}).items()}
                if grown := {kind: count for kind, count in rose.items() if count > 0}:
                    found[node.address] = grown
        return found

    def notes(self) -> tuple[str, ...]:
        """Return what could not be read, and why."""
        notes = []
        if self._reason is not None:
            notes.append(f"no clocks, temperatures and Xid errors were sampled: NVML {self._reason}")
        elif self._watcher is not None and self._watcher.xid_reason is not None:
            notes.append(f"Xid errors were not watched: NVML {self._watcher.xid_reason}")
        if self._watcher is not None and self._watcher.stop is not None:
            notes.append(f"no clocks, temperatures and Xid errors from then on: {self._watcher.stop.text}")
        return tuple(notes)

    def machine(self) -> Machine:
        """Read once more, and return the machine with all samples."""
        self._add(self._read())
        return msgspec.structs.replace(
            self._machine, samples=tuple(self._samples), series=tuple(self.history.gpus.values())
        )

    def _add(self, machine: Machine) -> None:
        if machine.driver.status not in ("ok", "not_read"):
            self._next_read_s = float("inf")  # a driver that hangs is not asked again
            return
        self._machine = machine
        if not self._samples:
            self._lasting = {gpu.index: facts_of(gpu) for gpu in machine.gpus}
        at = datetime.fromtimestamp(self._epoch(), UTC).isoformat(timespec="milliseconds")
        gpus = tuple({"index": gpu.index} | of_sample(facts_of(gpu)) for gpu in machine.gpus)
        for facts in gpus:
            facts.pop("processes", None)  # a list of all programs, at each time
        lasting = self._lasting if self._lasting.keys() == {one["index"] for one in gpus} else {}
        sample = Sample(source=machine.source, time=at, gpus=gpus)
        self._samples.append(without_settings(sample, lasting) if lasting else sample)
        self._next_read_s = self._now() + self._every_s
