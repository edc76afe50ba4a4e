"""Samples of the GPUs and the host, as rows that match the rows of the paces."""

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from gputopo.reference import CLOCK_EVENT_BITS, expected_link
from gputopo.values.run.bounded import Blocks
from gputopo.values.run.events import OTHER_CPU_SHARE, Device, GpuSample, HostLoad, Sample, Step, gpu_key
from gputopo.values.run.hosts import SWAP_BYTES_PER_S
from gputopo.values.run.verdict import Known

# A reading is valid for the steps until the next one, but at most this long. Not measured; chosen because the
# rarest of these facts is read every 4 s.
MAX_AGE_S = 15.0
REUSED_S = 1.0  # s: short steps without a sample reuse the facts of the step before. Not measured.
THERMAL = CLOCK_EVENT_BITS["sw_thermal_slowdown"] | CLOCK_EVENT_BITS["hw_thermal_slowdown"]
POWER = CLOCK_EVENT_BITS["sw_power_cap"]
HARDWARE = (
    CLOCK_EVENT_BITS["hw_slowdown"]
    | CLOCK_EVENT_BITS["hw_power_brake_slowdown"]
    | CLOCK_EVENT_BITS["sync_boost"]
    | CLOCK_EVENT_BITS["board_limit"]
    | CLOCK_EVENT_BITS["reliability"]
)
# Share of a GPU's memory above which faster kernels have no room for their work space. Not measured.
MEMORY_FULL_SHARE = 0.98
# Facts of a GPU: MHz; MHz; 1 if throttled for this reason, else 0 (three facts); GB/s of the link in one
# direction; number of other processes; 1 if its memory is full, else 0. Named as in `GpuReading`.
CORE, MEMORY = "graphics_mhz", "memory_mhz"
THROTTLED_POWER, THROTTLED_THERMAL = "throttled_power", "throttled_thermal"
THROTTLED_HARDWARE = "throttled_hardware"
LINK, OTHERS, FULL = "link_gb_per_s", "other_processes", "memory_full"
OF_GPU = (CORE, MEMORY, THROTTLED_POWER, THROTTLED_THERMAL, THROTTLED_HARDWARE, LINK, OTHERS, FULL)
SHARED = (
    "shared"  # from the marks: the share of the wait for weights that a link shared with other GPUs costs
)
# Facts of the host: share of the CPU that other programs use while no core is idle; 1 if it swaps, else 0;
# maximum share of its pace that a CPU device can lose to other programs.
HOST_CPU, HOST_SWAP, HOST_TAKEN = OF_HOST = ("host_cpu", "host_swap", "host_taken")
# Parts of a step in seconds: waiting for the input, waiting for weights, computing (both of the slowest
# device), the rest, and all of them.
INPUT, WEIGHTS, COMPUTE, REST, STEP = OF_STEP = ("input", "weights", "compute", "rest", "step")

_Place = tuple[int, int | None]  # rank of a host, and index of its GPU; None: the host itself
_Fact = tuple[_Place, str]


class Facts:
    """Means of the facts over the steps of each row of `gputopo.runs.verdict.paces.Paces`; NaN: unknown."""

    def __init__(self, devices: Sequence[Device], known: Known | None = None) -> None:
        known = known or Known()
        self._sharing = known.sharing
        self._memory_mib = known.memory_mib
        self._places = {device.tower: (device.rank, device.gpu) for device in devices}
        self._ranks = Counter(device.rank for device in devices)
        of_gpus = (((rank, gpu), fact) for rank, gpu in self._places.values() for fact in OF_GPU)
        of_hosts = (((rank, None), fact) for rank in self._ranks for fact in OF_HOST)
        self._sampled: list[_Fact] = [*dict.fromkeys((*of_gpus, *of_hosts))]
        columns = (*self._sampled, *OF_STEP, *((tower, SHARED) for tower in self._places))
        self._columns: dict[object, int] = {column: number for number, column in enumerate(columns)}
        self._fresh: dict[_Fact, list[float]] = {}  # since the last step
        self._last: dict[_Fact, tuple[float, float]] = {}  # time and value
        self._read: list[float] = []  # the latest row of the sampled facts
        self._read_s = -math.inf  # when it was added
        self._link: dict[_Place, tuple[int | None, int | None]] = {}
        self.lost: set[_Place] = set()  # GPUs that NVML reported as lost
        self.xids: dict[_Place, int] = {}  # the last Xid of each GPU
        self._blocks = Blocks()

    def add(self, sample: Sample) -> None:
        """Add a sample; it belongs to the current step."""
        rank = sample.rank
        for gpu in sample.gpus:
            if gpu.lost:
                self.lost.add((rank, gpu.gpu))
            self._note((rank, gpu.gpu), self._of_gpu((rank, gpu.gpu), gpu), sample.time_s)
        self.xids.update(((rank, xid.gpu), xid.code) for xid in sample.xids if xid.gpu is not None)
        if sample.host is not None:
            self._note((rank, None), _of_host(sample.host, self._ranks[rank]), sample.time_s)

    def end_step(self, step: Step, *, counted: bool) -> None:
        """Add the row of a step. `counted`: whether the paces have a row for it."""
        if counted:
            if self._fresh or abs(step.time_s - self._read_s) > REUSED_S:
                self._read = [self._value(fact, step.time_s) for fact in self._sampled]
                self._read_s = step.time_s
            self._blocks.add(step.step, [*self._read, *_of_step(step), *self._shared(step)])
        self._fresh.clear()

    def latest(self) -> "Facts":
        """Return the facts of the recent steps."""
        recent = copy.copy(self)
        recent._blocks = self._blocks.latest()
        return recent

    def forget_recent(self) -> None:
        """Forget which steps are recent."""
        self._blocks.recent.clear()

    def of_gpu(self, tower: int, fact: str) -> list[float]:
        """Return a fact of a tower's GPU, by row."""
        place = tower if fact == SHARED else self._places[tower]
        return self._blocks.means(self._columns[place, fact])

    def of_host(self, tower: int, fact: str) -> list[float]:
        """Return a fact of a tower's host, by row."""
        return self._blocks.means(self._columns[(self._places[tower][0], None), fact])

    def of_step(self, part: str) -> list[float]:
        """Return the seconds of a part of the step, by row."""
        return self._blocks.medians(self._columns[part])

    def first_steps(self) -> list[int]:
        """Return the number of the first step of each row."""
        return self._blocks.first_steps

    def _note(self, place: _Place, facts: Mapping[str, float | None], time_s: float) -> None:
        for fact, value in facts.items():
            if value is not None:
                self._fresh.setdefault((place, fact), []).append(value)
                self._last[place, fact] = (time_s, value)

    def _value(self, fact: _Fact, time_s: float) -> float:
        if fresh := self._fresh.get(fact):
            return fmean(fresh)
        read_s, value = self._last.get(fact, (-math.inf, math.nan))
        return value if abs(time_s - read_s) <= MAX_AGE_S else math.nan

    def _shared(self, step: Step) -> list[float]:
        if not self._sharing:
            return [0.0] * len(self._places)
        copies = {mark.tower: (mark.start_s, mark.start_s + mark.weights_s) for mark in step.marks}
        return [
            _contended(
                copies[tower], [copies[other] for other in self._sharing.get(tower, ()) if other in copies]
            )
            if tower in copies
            else math.nan
            for tower in self._places
        ]

    def _of_gpu(self, place: _Place, gpu: GpuSample) -> Mapping[str, float | None]:
        known = self._link.get(place, (None, None))
        link = (gpu.pcie_gen or known[0], gpu.pcie_width or known[1])
        self._link[place] = link
        expected = expected_link(*link)
        mask = gpu.throttle_mask
        return {
            CORE: gpu.graphics_mhz,
            MEMORY: gpu.memory_mhz,
            THROTTLED_POWER: _flag(mask, POWER),
            THROTTLED_THERMAL: _flag(mask, THERMAL),
            THROTTLED_HARDWARE: _flag(mask, HARDWARE),
            LINK: None if expected is None else expected.data_rate_gb_per_s,
            OTHERS: gpu.other_processes,
            FULL: None
            if gpu.memory_used_mib is None or (total := self._memory_mib.get(gpu_key(*place))) is None
            else float(gpu.memory_used_mib >= MEMORY_FULL_SHARE * total),
        }


def _contended(window: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    """Return the share of a copy's time lost because `others` copy equal amounts over the same link."""
    begin, end = window
    if end <= begin:
        return 0.0
    times = sorted({begin, end, *(min(max(time, begin), end) for other in others for time in other)})
    lost = 0.0
    for a, b in pairwise(times):
        copying = 1 + sum(first <= a and b <= last for first, last in others)
        lost += (b - a) * (1 - 1 / copying)
    return lost / (end - begin)


def _of_step(step: Step) -> list[float]:
    slowest = max(step.marks, key=lambda mark: mark.busy_s, default=None)
    waited_s = math.nan if step.waited_s is None else step.waited_s
    if slowest is None:
        return [waited_s, math.nan, math.nan, math.nan, step.seconds]
    rest_s = max(0.0, step.seconds - slowest.busy_s - (step.waited_s or 0.0))
    return [waited_s, slowest.weights_s, slowest.compute_s, rest_s, step.seconds]


def _flag(mask: int | None, bits: int) -> float | None:
    return None if mask is None or mask < 0 else float(bool(mask & bits))


def _of_host(load: HostLoad, devices: int) -> Mapping[str, float | None]:
    other = load.other_cpu_share
    swap = (load.swap_in_bytes_per_s, load.swap_out_bytes_per_s)
    return {
        HOST_CPU: None if other is None else other if load.leaves_no_core else 0.0,
        HOST_TAKEN: None
        if other is None or load.cores is None
        else min(1.0, other * max(devices, load.cores))
        if other >= OTHER_CPU_SHARE
        else 0.0,
        HOST_SWAP: None if None in swap else float(sum(rate or 0.0 for rate in swap) >= SWAP_BYTES_PER_S),
    }
