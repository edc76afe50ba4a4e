"""Samples of the GPUs and the host, as rows beside the paces; whether the host is too busy to judge."""

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import msgspec

from gputopo.reference.clock_events import BITS
from gputopo.reference.expectations import expected_link
from gputopo.values.run.bounded import Blocks
from gputopo.values.run.events import Device, GpuSample, HostLoad, Sample, Step, gpu_key
from gputopo.values.run.verdict import HostSummary, Known

# Share of all cores' time. CPU devices compute on the cores that another program takes. Ours.
OTHER_CPU_SHARE = 0.10
# GPUs are served by a few threads: they are slowed only where no core is left. Ours.
CORES_TAKEN_SHARE = 0.90
# A host that swaps stops threads of one device and not of others. Pages of 4 KiB: 256 a second. Ours.
SWAP_BYTES_PER_S = 1_048_576.0
MEMORY_AVAILABLE_SHARE = 0.02  # below, the kernel reclaims memory while programs wait. Ours.
# A fifth of the samples: a median over the steps ignores fewer. Ours.
BUSY_SHARE = 0.20
_BINS = 100  # of a share: percents


class OneMachine:
    """The ranks of a run that share a machine: what one of them computes is of no other program to the next.

    These are the ones whose servers have one address, or one of the loopback network. `spec`: the run's.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        servers = spec.get("servers")
        places = [_machine(one) for one in servers] if isinstance(servers, list) else []
        self._beside = {
            rank: [other for other, its in enumerate(places) if other != rank and its == place]
            for rank, place in enumerate(places)
            if place is not None
        }
        self._own: dict[int, float] = {}  # by rank: the share that it took last

    def without_ranks(self, sample: Sample) -> Sample:
        """Return a sample in which the CPU time of other programs is without that of the other ranks."""
        load, beside = sample.host, self._beside.get(sample.rank)
        if load is None or not beside:
            return sample
        self._own[sample.rank] = load.run_cpu_share or 0.0
        if load.other_cpu_share is None:
            return sample
        others = max(0.0, load.other_cpu_share - sum(self._own.get(rank, 0.0) for rank in beside))
        return msgspec.structs.replace(sample, host=msgspec.structs.replace(load, other_cpu_share=others))


def _machine(server: object) -> str | None:
    """Return what two servers on one machine have in common, None where nothing is known."""
    address = server.get("address") if isinstance(server, Mapping) else None
    if not isinstance(address, str):
        return None
    name = address.rpartition(":")[0].strip("[]")
    return "localhost" if name.startswith("127.") or name == "::1" else name


def cores_taken(load: HostLoad) -> bool:
    """Whether other programs leave no core."""
    other = load.other_cpu_share or 0.0
    queued = load.run_queue is not None and load.cores is not None and load.run_queue > load.cores
    return other >= OTHER_CPU_SHARE and (other + (load.run_cpu_share or 0.0) >= CORES_TAKEN_SHARE or queued)


class HostRecord:
    """Sums over the samples of the host."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._sum: dict[str, float] = {}
        self._cores: int | None = None
        self._memory: float | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the samples so far."""
        self._samples, self._by_programs, self._full, self._swapped, self._short = 0, 0, 0, 0, 0
        self._count, self._sum, self._memory = {}, {}, None
        self._others = [0] * (_BINS + 1)  # samples by the share that others took

    def add(self, load: HostLoad) -> None:
        """Add a sample."""
        self._samples += 1
        self._cores = load.cores or self._cores
        swaps = [one for one in (load.swap_in_bytes_per_s, load.swap_out_bytes_per_s) if one is not None]
        swap = sum(swaps) if swaps else None
        for name, value in (("other", load.other_cpu_share), ("queue", load.run_queue), ("swap", swap)):
            if value is not None:
                self._count[name] = self._count.get(name, 0) + 1
                self._sum[name] = self._sum.get(name, 0.0) + value
        if load.memory_available_share is not None:
            known = self._memory
            self._memory = min(load.memory_available_share, 1.0 if known is None else known)
            self._short += load.memory_available_share < MEMORY_AVAILABLE_SHARE
        other = load.other_cpu_share or 0.0
        self._others[min(_BINS, math.ceil(_BINS * other))] += 1
        self._by_programs += other >= OTHER_CPU_SHARE
        self._full += cores_taken(load)
        self._swapped += swap is not None and swap >= SWAP_BYTES_PER_S

    def summary(self, *, cpu_devices: int) -> HostSummary | None:
        """Return the load of the host; None without a sample. `cpu_devices`: those the run computes on."""
        if not self._samples:
            return None
        found = HostSummary(
            samples=self._samples,
            other_cpu_share=self._mean("other"),
            run_queue=self._mean("queue"),
            cores=self._cores,
            memory_available_share=self._memory,
            swap_bytes_per_s=self._mean("swap"),
        )
        busy = self._busy(found, cpu_devices > 0)
        may_cost = None
        lacks_memory = max(self._swapped, self._short) > BUSY_SHARE * self._samples
        if busy is not None and cpu_devices and not lacks_memory:
            may_cost = 100 * self._most_for_one(cpu_devices)
        return msgspec.structs.replace(found, busy=busy, may_cost_percent=may_cost)

    def _most_for_one(self, cpu_devices: int) -> float:
        """Return the share of its pace that other programs can cost one CPU device at most.

        They took no more than some share of all cores' time in all samples but `BUSY_SHARE` of them, which a
        median ignores. At worst all of it was taken from that device's part of the cores; or from one core,
        with a thread that the others of the device wait for.
        """
        left, place = BUSY_SHARE * self._samples, _BINS
        while place and self._others[place] <= left:
            left -= self._others[place]
            place -= 1
        return min(1.0, place / _BINS * max(cpu_devices, self._cores or math.inf))

    def _busy(self, found: HostSummary, on_cpu: bool) -> str | None:
        allowed = BUSY_SHARE * self._samples
        if (self._by_programs if on_cpu else self._full) > allowed and found.other_cpu_share is not None:
            return f"other programs used {100 * found.other_cpu_share:.0f}% of the CPU"
        if self._swapped > allowed and found.swap_bytes_per_s is not None:
            return f"the host swapped {found.swap_bytes_per_s / 1e6:.0f} MB/s"
        if self._short > allowed and found.memory_available_share is not None:
            return f"only {100 * found.memory_available_share:.1f}% of the host's memory was available"
        return None

    def _mean(self, name: str) -> float | None:
        return self._sum[name] / self._count[name] if name in self._count else None


class HostLoads:
    """The load of each host while the steps of a run are counted; of a shorter run, that before.

    `spec`: the run's, as of `OneMachine`.
    """

    def __init__(self, spec: Mapping[str, Any] = {}) -> None:
        self._one_machine = OneMachine(spec)
        self._records: dict[int, HostRecord] = {}  # by rank
        self._begins = False

    def begin(self) -> None:
        """Note that the counted steps begin."""
        self._begins = True

    def add(self, sample: Sample) -> None:
        """Add a sample; one without the load of its host changes nothing."""
        load = self._one_machine.without_ranks(sample).host
        if load is None:
            return
        if self._begins:
            self._records.clear()
            self._begins = False
        self._records.setdefault(sample.rank, HostRecord()).add(load)

    def summaries(self, devices: Sequence[Device]) -> dict[int, HostSummary]:
        """Return the load of each host that was sampled, by rank; of several, `busy` names the host."""
        on_cpu = bool(devices) and all(device.is_cpu for device in devices)
        found = {}
        for rank, record in self._records.items():
            own = [device for device in devices if device.rank == rank]
            load = record.summary(cpu_devices=len(own) if on_cpu else 0)
            if load is not None and load.busy is not None and own and own[0].host is not None:
                load = msgspec.structs.replace(load, busy=f"on {own[0].host} {load.busy}")
            if load is not None:
                found[rank] = load
        return found


# A reading stands for the steps until the next, and for so long at most: what is asked most seldom of these
# is asked every 4 s. Ours.
MAX_AGE_S = 15.0
REUSED_S = 1.0  # short steps without a sample have the facts of the step before for so long. Ours.
THERMAL = BITS["sw_thermal_slowdown"] | BITS["hw_thermal_slowdown"]
POWER = BITS["sw_power_cap"]
HARDWARE = (
    BITS["hw_slowdown"]
    | BITS["hw_power_brake_slowdown"]
    | BITS["sync_boost"]
    | BITS["board_limit"]
    | BITS["reliability"]
)
# Of a GPU's memory: from here on no room is left for the work space of faster kernels. Ours.
MEMORY_FULL_SHARE = 0.98
# Facts of a GPU. MHz; 1 where a reason throttles, else 0; GB/s of the link in one direction; processes; 1
# where its memory is full, else 0.
CORE, MEMORY, THROTTLED_POWER, THROTTLED_THERMAL, THROTTLED_HARDWARE, LINK, OTHERS, FULL = range(8)
OF_GPU = 8
SHARED = 8  # by the marks: share of the wait for weights that a link shared with other GPUs costs
# Facts of the host: share of the CPU that others take where no core is left; 1 where it swaps, else 0; share
# of its pace that one CPU device can lose to others at most.
HOST_CPU, HOST_SWAP, HOST_TAKEN = range(3)
OF_HOST = 3
# Parts of a step in seconds: waiting for the input, for weights, computing (of the slowest device), the rest,
# and all of them.
INPUT, WEIGHTS, COMPUTE, REST, STEP = range(5)
OF_STEP = 5

_Place = tuple[int, int | None]  # rank of a host, and index of its GPU there; None: the host itself


class Facts:
    """Means of the facts over the steps of each row of `gputopo.runs.verdict.paces.Paces`; NaN: not known."""

    def __init__(self, devices: Sequence[Device], known: Known | None = None) -> None:
        known = known or Known()
        self._sharing = known.sharing
        self._memory_mib = known.memory_mib
        self._towers = [device.tower for device in devices]
        self._places = {device.tower: place for place, device in enumerate(devices)}
        self._gpus = [(device.rank, device.gpu) for device in devices]
        self._ranks = [device.rank for device in devices]
        self._hosts = sorted({*self._ranks})
        self._fresh: dict[tuple[_Place, int], list[float]] = {}  # since the last step
        self._last: dict[tuple[_Place, int], tuple[float, float]] = {}  # time and value
        self._sampled: list[float] = []
        self._read_s = -math.inf  # when that row was made
        self._link: dict[_Place, tuple[int | None, int | None]] = {}
        self.lost: set[_Place] = set()  # GPUs that NVML reported as lost
        self.xids: dict[_Place, int] = {}  # the last one of each GPU
        self._blocks = Blocks()

    def add(self, sample: Sample) -> None:
        """Add a sample: of the step that is not over yet."""
        for gpu in sample.gpus:
            place = (sample.rank, gpu.gpu)
            if gpu.lost:
                self.lost.add(place)
            for fact, value in self._of_gpu(place, gpu).items():
                self._note(place, fact, value, sample.time_s)
        self.xids.update(((sample.rank, xid.gpu), xid.code) for xid in sample.xids if xid.gpu is not None)
        if sample.host is not None:
            for fact, value in _of_host(sample.host, self._ranks.count(sample.rank)).items():
                self._note((sample.rank, None), fact, value, sample.time_s)

    def end_step(self, step: Step, *, counted: bool) -> None:
        """Add the row of a step. `counted`: whether the paces have a row for it."""
        if counted:
            if self._fresh or abs(step.time_s - self._read_s) > REUSED_S:
                self._sampled = self._read_all(step.time_s)
                self._read_s = step.time_s
            self._blocks.add(step.step, [*self._sampled, *_of_step(step), *self._shared(step)])
        self._fresh.clear()

    def latest(self) -> "Facts":
        """Return the facts of the recent steps."""
        found = copy.copy(self)
        found._blocks = self._blocks.latest()
        return found

    def forget_recent(self) -> None:
        """Forget which steps are recent."""
        self._blocks.recent.clear()

    def of_gpu(self, tower: int, fact: int) -> list[float]:
        """Return a fact of a tower's GPU, by row."""
        if fact == SHARED:
            return self._blocks.means(self._after_hosts + OF_STEP + self._places[tower])
        return self._blocks.means(OF_GPU * self._places[tower] + fact)

    def of_host(self, tower: int, fact: int) -> list[float]:
        """Return a fact of a tower's host, by row."""
        host = self._hosts.index(self._ranks[self._places[tower]])
        return self._blocks.means(OF_GPU * len(self._gpus) + OF_HOST * host + fact)

    def of_step(self, part: int) -> list[float]:
        """Return the seconds of a part of the step, by row."""
        return self._blocks.medians(self._after_hosts + part)

    def first_steps(self) -> list[int]:
        """Return the number of the first step of each row."""
        return self._blocks.first_steps

    @property
    def _after_hosts(self) -> int:
        """The first column after those of the GPUs and the hosts."""
        return OF_GPU * len(self._gpus) + OF_HOST * len(self._hosts)

    def _note(self, place: _Place, fact: int, value: float | None, time_s: float) -> None:
        if value is not None:
            self._fresh.setdefault((place, fact), []).append(value)
            self._last[place, fact] = (time_s, value)

    def _read_all(self, time_s: float) -> list[float]:
        row = [self._read(gpu, fact, time_s) for gpu in self._gpus for fact in range(OF_GPU)]
        return row + [
            self._read((rank, None), fact, time_s) for rank in self._hosts for fact in range(OF_HOST)
        ]

    def _read(self, place: _Place, fact: int, time_s: float) -> float:
        if fresh := self._fresh.get((place, fact)):
            return fmean(fresh)
        read_s, value = self._last.get((place, fact), (-math.inf, math.nan))
        return value if abs(time_s - read_s) <= MAX_AGE_S else math.nan

    def _shared(self, step: Step) -> list[float]:
        if not self._sharing:
            return [0.0] * len(self._towers)
        copies = {mark.tower: (mark.start_s, mark.start_s + mark.weights_s) for mark in step.marks}
        return [
            _contended(copies[tower], [copies[one] for one in self._sharing.get(tower, ()) if one in copies])
            if tower in copies
            else math.nan
            for tower in self._towers
        ]

    def _of_gpu(self, place: _Place, gpu: GpuSample) -> Mapping[int, float | None]:
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


def _contended(own: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    """Return the share of a copy's time that it loses as `others` copy over the same link, each as much."""
    begin, end = own
    if end <= begin:
        return 0.0
    times = sorted({begin, end, *(min(max(time, begin), end) for other in others for time in other)})
    lost = 0.0
    for a, b in pairwise(times):
        copying = 1 + sum(first <= a and b <= last for first, last in others)
        lost += (b - a) * (1 - 1 / copying)
    return lost / (end - begin)


def _of_step(step: Step) -> list[float]:
    slowest = max(step.marks, key=lambda mark: mark.weights_s + mark.compute_s, default=None)
    waited_s = math.nan if step.waited_s is None else step.waited_s
    if slowest is None:
        return [waited_s, math.nan, math.nan, math.nan, step.seconds]
    busy_s = slowest.weights_s + slowest.compute_s
    rest_s = max(0.0, step.seconds - busy_s - (step.waited_s or 0.0))
    return [waited_s, slowest.weights_s, slowest.compute_s, rest_s, step.seconds]


def _flag(mask: int | None, bits: int) -> float | None:
    return None if mask is None or mask < 0 else float(bool(mask & bits))


def _of_host(load: HostLoad, devices: int) -> Mapping[int, float | None]:
    other = load.other_cpu_share
    swap = (load.swap_in_bytes_per_s, load.swap_out_bytes_per_s)
    return {
        HOST_CPU: None if other is None else other if cores_taken(load) else 0.0,
        HOST_TAKEN: None
        if other is None or load.cores is None
        else min(1.0, other * max(devices, load.cores))
        if other >= OTHER_CPU_SHARE
        else 0.0,
        HOST_SWAP: None if None in swap else float(sum(one or 0.0 for one in swap) >= SWAP_BYTES_PER_S),
    }
