"""Counts over the samples of a run's GPUs and host, in memory that does not grow with the run. Pure."""

from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from gputopo.findings.clocks import SAME_LOAD_POINTS
from gputopo.runs.bounded import Thinned
from gputopo.runs.hardware.placement import PlacementRecord
from gputopo.runs.verdict.sampled import HostRecord
from gputopo.values.history import History, under_load
from gputopo.values.run.events import Device, GpuSample, MachineSample, Sample

KEPT_RATIOS = 1000  # of a clock to its peers', for the median. Ours.


class Others(msgspec.Struct):
    """Processes on a GPU that are not of the run: at the first sample that shows them, and at most."""

    first: int
    most: int


class HardwareRecord:
    """What the samples show of the GPUs of a run, and of the host. `placement`: where its processes were."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.names = {one.gpu: one.gpu_name for one in devices if one.gpu is not None}
        self.history = History()
        self.host = HostRecord()
        self.placement = PlacementRecord(self.names)
        self.samples = 0
        self.with_reasons: set[int] = set()  # GPUs whose throttle reasons are known
        self.lost: set[int] = set()
        self.others: dict[int, Others] = {}
        self.ratios: dict[int, Thinned[float]] = {}
        self._widths: dict[int, int] = {}  # asked more seldom than the generation

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        if sample.host is not None:
            self.host.add(sample.host)
        gpus = tuple(self._complete(gpu) for gpu in sample.gpus if gpu.gpu in self.names)
        if gpus:
            self.samples += 1
            self.placement.add(sample)
            for gpu in gpus:
                self._add(gpu)
            self._compare(gpus)
        xids = tuple(xid for xid in sample.xids if xid.gpu is None or xid.gpu in self.names)
        if gpus or xids:
            self.history.add(MachineSample(time_s=sample.time_s, gpus=gpus, xids=xids))

    def _complete(self, gpu: GpuSample) -> GpuSample:
        if gpu.silent:
            return gpu
        if gpu.pcie_width is not None:
            self._widths[gpu.gpu] = gpu.pcie_width
        return msgspec.structs.replace(gpu, pcie_width=self._widths.get(gpu.gpu))

    def _add(self, gpu: GpuSample) -> None:
        if gpu.lost:
            self.lost.add(gpu.gpu)
        if gpu.throttle_mask is not None:
            self.with_reasons.add(gpu.gpu)
        if gpu.other_processes is not None:
            others = self.others.setdefault(gpu.gpu, Others(gpu.other_processes, gpu.other_processes))
            others.most = max(others.most, gpu.other_processes)

    def _compare(self, gpus: Sequence[GpuSample]) -> None:
        for alike in self._at_the_same_load(gpus):
            for gpu, mhz in alike.items():
                peers = median(clock for other, clock in alike.items() if other != gpu)
                self.ratios.setdefault(gpu, Thinned(KEPT_RATIOS)).add(mhz / peers)

    def _at_the_same_load(self, gpus: Sequence[GpuSample]) -> Iterator[dict[int, int]]:
        """Return the clocks of GPUs of one model that are under about the same load, by GPU."""
        by_name: dict[str | None, list[GpuSample]] = {}
        for gpu in gpus:
            if under_load(gpu) and gpu.graphics_mhz:
                by_name.setdefault(self.names[gpu.gpu], []).append(gpu)
        for group in by_name.values():
            usual = median(gpu.gpu_utilization_percent or 0 for gpu in group)
            alike = {
                gpu.gpu: gpu.graphics_mhz or 0
                for gpu in group
                if abs((gpu.gpu_utilization_percent or 0) - usual) <= SAME_LOAD_POINTS.value
            }
            if len(alike) > 1:
                yield alike
