"""The hardware during the run of a user's program, from its samples: faults, and which GPUs its processes
use.

Nothing here is about the program's speed, which is not measured. Rules: `gputopo.findings.watched`.
"""

from collections.abc import Collection, Iterable, Sequence

from gputopo.findings import CONTEXT_MIB, faults_of_run
from gputopo.values.history import BUSY_PERCENT, History
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.events import Device, MachineSample, Sample
from gputopo.values.run.hosts import HostRecord
from gputopo.values.run.verdict import (
    AS_PLANNED,
    FAULTY,
    NOT_CHECKED,
    NOT_JUDGED,
    NOT_SEEN,
    OUTSIDE,
    SOUND,
    Hardware,
    Placed,
)

# Importing a framework, opening data and building a model take less time. Not measured on hardware.
NOT_SEEN_S = 60.0


class HardwareRecord:
    """What the samples show of a run's GPUs and of the host.

    `placement`: the GPUs that its processes used.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        names = {device.gpu: device.gpu_name for device in devices if device.gpu is not None}
        self._machine = Machine(
            source="run", gpus=tuple(Gpu(index=gpu, name=name) for gpu, name in sorted(names.items()))
        )
        self._history = History(models=names)
        self._host = HostRecord()
        self.placement = PlacementRecord(names)

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        if sample.host is not None:
            self._host.add(sample.host)
        names = self._history.models
        gpus = tuple(gpu for gpu in sample.gpus if gpu.gpu in names)
        xids = tuple(xid for xid in sample.xids if xid.gpu is None or xid.gpu in names)
        if gpus:
            self.placement.add(sample)
        if gpus or xids:
            self._history.add(MachineSample(time_s=sample.time_s, gpus=gpus, xids=xids))

    def judge(self) -> Hardware:
        """Return what the samples so far show, errors first."""
        history = self._history
        history.host = self._host.summary(cpu_devices=0)
        faults, loaded, missing = faults_of_run(self._machine, history)
        bad = any(fault.severity != "info" for fault in faults)
        word = FAULTY if bad else SOUND if loaded else NOT_JUDGED
        least = min(loaded.values(), default=0)
        if word == NOT_JUDGED:
            why = "no GPU was under load long enough" if history.samples else "no GPU was sampled"
            says = f"not judged: {why}"
        else:
            what = "something is wrong" if word == FAULTY else "nothing wrong found"
            says = f"{what}, in {history.samples} samples, {least} of each GPU under load"
        return Hardware(
            word=word,
            says=says,
            faults=faults,
            samples=history.samples,
            loaded=least,
            checked=tuple(name for name, why in missing.items() if why is None),
            not_checked={name: why for name, why in missing.items() if why is not None},
        )


class PlacementRecord:
    """The GPUs that processes of the run were seen on. `planned`: the GPUs that they should use."""

    def __init__(self, planned: Iterable[int]) -> None:
        self._planned = frozenset(planned)
        self._seen: set[int] = set()
        self._asked = False  # NVML listed the processes of a planned GPU, even if there were none
        self._hidden = False  # NVML does not list all processes, or lists them with unknown numbers
        self._first_mib: dict[int, int] = {}
        self._used: set[int] = set()  # planned GPUs that something uses
        self._first_s: float | None = None
        self._last_s = 0.0
        self._reported: set[str] = set()

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self._first_s = sample.time_s if self._first_s is None else self._first_s
        self._last_s = sample.time_s
        for gpu in sample.gpus:
            if gpu.gpu in self._planned:
                is_used = (gpu.gpu_utilization_percent or 0) >= BUSY_PERCENT
                if (mib := gpu.memory_used_mib) is not None:
                    first_mib = self._first_mib.setdefault(gpu.gpu, mib)
                    is_used = is_used or mib - first_mib >= CONTEXT_MIB.value
                self._used |= {gpu.gpu} if is_used else set()
            if gpu.processes is None:
                continue
            if gpu.other_processes is None:
                self._hidden = True
                continue
            self._asked = self._asked or gpu.gpu in self._planned
            if gpu.processes > gpu.other_processes:
                self._seen.add(gpu.gpu)

    def placed(self) -> Placed:
        """Return which GPUs the program uses, as far as known."""
        gpus = tuple(sorted(self._seen))
        outside = sorted(self._seen - self._planned)
        planned = _named(self._planned)
        if outside:
            says = f"the program runs on {_named(outside)}; planned: {planned}"
            return Placed(word=OUTSIDE, says=says, gpus=gpus)
        if self._seen:
            return Placed(word=AS_PLANNED, says=f"the program ran on {_named(gpus)}, as planned", gpus=gpus)
        if not self._planned:
            return Placed(word=NOT_CHECKED, says="the plan has no GPU")
        if self._hidden or not self._asked or self._used:
            says = "NVML does not list the processes of this program (in a container it may not)"
            return Placed(word=NOT_CHECKED, says=says)
        seconds = self._last_s - (self._first_s or 0.0)
        says = f"the program was seen on no GPU in {seconds:.0f} s; planned: {planned}"
        return Placed(word=NOT_SEEN, says=says)

    def news(self) -> str | None:
        """Return what a user wants to read at once; each kind only once."""
        placed = self.placed()
        late = self._first_s is not None and self._last_s - self._first_s >= NOT_SEEN_S
        wrong = placed.word == OUTSIDE or (placed.word == NOT_SEEN and late)
        if not wrong or placed.word in self._reported:
            return None
        self._reported.add(placed.word)
        return placed.says


def _named(gpus: Collection[int]) -> str:
    return f"GPU{'' if len(gpus) == 1 else 's'} {index_ranges(sorted(gpus))}"
