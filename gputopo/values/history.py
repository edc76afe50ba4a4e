"""What was counted over many samples of the GPUs, in constant memory: from a watch, or from a log.

An idle GPU lowers its link and clocks to save power, so only samples under load are used for these.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from gputopo.values.grouping import medians_of_others

if TYPE_CHECKING:  # every `inspect` loads this module, but only a watch needs these
    from gputopo.values.run.events import GpuSample, MachineSample, Xid
    from gputopo.values.run.verdict import HostSummary

# Not measured; chosen because a GPU that computes for less than half of the time may lower its clocks in
# between.
BUSY_PERCENT = 50
# GPUs whose utilization differs from the median by at most these percentage points have the same load.
SAME_LOAD_POINTS = 10
IDLE_BIT = 0x1  # nvml.h, nvmlClocksEventReasonGpuIdle
# The running mean of the clock follows a change within about ten samples.
MEAN_WEIGHT = 0.1
# A longer gap between two samples, in seconds, was not watched (suspend).
MAX_GAP_S = 60.0
# Maximum number of kinds of Xid events, and of throttle masks of a GPU, that are counted separately.
MAX_KINDS = 64


class GpuHistory(msgspec.Struct, kw_only=True):
    """What was seen of one GPU so far: counts and running means, no samples. Times in seconds.

    `masks`, `mask_s`: number of samples and time with each throttle mask. `generations`, `widths`: number of
    samples under load.
    """

    gpu: int
    samples: int = 0
    silent: int = 0  # samples without an answer
    loaded: int = 0
    peak_percent: int = 0  # highest utilization
    streak: int = 0  # samples under load since the last idle one
    watched_s: float = 0.0
    masks: dict[int, int] = {}
    mask_s: dict[int, float] = {}
    link: tuple[int | None, int | None] = (None, None)
    link_changes: int = 0
    generations: dict[int, int] = {}
    widths: dict[int, int] = {}
    mean_mhz: float | None = None
    best_mean_mhz: float = 0.0
    clocked: int = 0
    ecc: dict[str, int] = {}  # errors since the start of the watch, by kind

    def add(self, sample: "GpuSample", seconds: float, *, silent: bool) -> None:
        """Add a sample. `seconds`: time since the previous one; `silent`: the GPU did not answer."""
        self.samples += 1
        self.silent += silent
        self.watched_s += seconds
        counted = {"corrected": sample.ecc_corrected, "uncorrected": sample.ecc_uncorrected}
        self.ecc |= {kind: count for kind, count in counted.items() if count}
        mask = max(sample.throttle_mask or 0, 0)
        if mask and (mask in self.masks or len(self.masks) < MAX_KINDS):
            self.masks[mask] = self.masks.get(mask, 0) + 1
            self.mask_s[mask] = self.mask_s.get(mask, 0.0) + seconds
        self.peak_percent = max(self.peak_percent, int(sample.gpu_utilization_percent or 0))
        if not under_load(sample):
            self.streak = 0
            return
        self.loaded += 1
        self._add_link(sample)
        self._add_clock(sample)
        self.streak += 1

    def _add_link(self, sample: "GpuSample") -> None:
        # In a run the width is read less often than the generation.
        link = (sample.pcie_gen, self.link[1] if sample.pcie_width is None else sample.pcie_width)
        # The first sample under load may still show the link of the idle GPU.
        if self.streak > 1 and None not in link and None not in self.link and link != self.link:
            self.link_changes += 1
        self.link = link
        if sample.pcie_gen is not None:
            self.generations[sample.pcie_gen] = self.generations.get(sample.pcie_gen, 0) + 1
        if link[1] is not None:
            self.widths[link[1]] = self.widths.get(link[1], 0) + 1

    def _add_clock(self, sample: "GpuSample") -> None:
        if sample.graphics_mhz is None or self.streak == 0:
            return
        mean = sample.graphics_mhz if self.mean_mhz is None else self.mean_mhz
        self.mean_mhz = mean + MEAN_WEIGHT * (sample.graphics_mhz - mean)
        self.clocked += 1
        if self.clocked > 1 / MEAN_WEIGHT:
            self.best_mean_mhz = max(self.best_mean_mhz, self.mean_mhz)


class PeerClock(msgspec.Struct):
    """Sum over samples of a GPU's core clock, as a share of the median of its peers at the same load."""

    samples: int = 0
    shares: float = 0.0


class OtherProcesses(msgspec.Struct):
    """Number of processes on a GPU outside the run: in the first known sample, and the maximum."""

    first: int
    max: int


class History:
    """The counts of all samples so far. The memory does not grow with the number of samples.

    `models`: of each GPU, to compare the clocks of one model. `reasons_known`: GPUs that report throttle
    reasons. `host`: its load, set by the caller that samples it.
    """

    def __init__(
        self, gpus: Iterable[GpuHistory] = (), models: Mapping[int, str | None] | None = None
    ) -> None:
        self.gpus: dict[int, GpuHistory] = {gpu.gpu: gpu for gpu in gpus}
        self.models = models or {}
        self.samples = 0
        self.xids: dict[Xid, int] = {}
        self.more_xids = 0
        self.lost: set[int] = set()  # as NVML reported
        self.reasons_known: set[int] = set()
        self.others: dict[int, OtherProcesses] = {}
        self.peers: dict[int, PeerClock] = {}
        self.host: HostSummary | None = None
        self._last_s: float | None = None

    def add(self, sample: "MachineSample") -> None:
        """Add the next sample of all GPUs. A GPU without any value did not answer."""
        seconds = self.passed_s(sample.time_s)
        self.samples += bool(sample.gpus)
        for gpu in sample.gpus:
            self.gpu(gpu.gpu).add(gpu, seconds, silent=gpu.silent)
            if gpu.lost:
                self.lost.add(gpu.gpu)
            if gpu.throttle_mask is not None:
                self.reasons_known.add(gpu.gpu)
            if gpu.other_processes is not None:
                others = self.others.setdefault(gpu.gpu, OtherProcesses(gpu.other_processes, 0))
                others.max = max(others.max, gpu.other_processes)
        self._compare(sample.gpus)
        for xid in sample.xids:
            if xid in self.xids or len(self.xids) < MAX_KINDS:
                self.xids[xid] = self.xids.get(xid, 0) + 1
            else:
                self.more_xids += 1

    def _compare(self, gpus: "Sequence[GpuSample]") -> None:
        for alike in self._at_the_same_load(gpus):
            usual = medians_of_others(alike)
            for gpu, mhz in alike.items():
                mine = self.peers.setdefault(gpu, PeerClock())
                mine.samples += 1
                mine.shares += mhz / usual[gpu]

    def _at_the_same_load(self, gpus: "Sequence[GpuSample]") -> Iterator[dict[int, int]]:
        """Yield the core clocks of two or more GPUs of one model that are under about the same load."""
        by_model: dict[str, list[GpuSample]] = {}
        for gpu in gpus:
            if (model := self.models.get(gpu.gpu)) and under_load(gpu) and gpu.graphics_mhz:
                by_model.setdefault(model, []).append(gpu)
        for group in by_model.values():
            like = at_the_usual_load({gpu.gpu: gpu.gpu_utilization_percent or 0 for gpu in group})
            alike = {gpu.gpu: gpu.graphics_mhz or 0 for gpu in group if gpu.gpu in like}
            if len(alike) > 1:
                yield alike

    def passed_s(self, time_s: float) -> float:
        """Return the seconds since the previous sample; 0 if time went back or after MAX_GAP_S."""
        passed = 0.0 if self._last_s is None else time_s - self._last_s
        self._last_s = time_s
        return passed if 0.0 <= passed <= MAX_GAP_S else 0.0

    def gpu(self, index: int) -> GpuHistory:
        """Return what was seen of a GPU so far."""
        if index not in self.gpus:
            self.gpus[index] = GpuHistory(gpu=index)
        return self.gpus[index]


def at_the_usual_load(percents: Mapping[int, float]) -> set[int]:
    """Return the GPUs whose utilization is within `SAME_LOAD_POINTS` of the median."""
    usual = median(percents.values())
    return {gpu for gpu, percent in percents.items() if abs(percent - usual) <= SAME_LOAD_POINTS}


def under_load(sample: "GpuSample") -> bool:
    """Return whether a GPU computed for half of the time and is not reported as idle."""
    used = sample.gpu_utilization_percent
    return used is not None and used >= BUSY_PERCENT and not (sample.throttle_mask or 0) & IDLE_BIT
