"""The hosts of a run: whether each is too busy to judge, and hosts that are slow as a whole."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gputopo.values.run.events import OTHER_CPU_SHARE, Device, HostLoad, Sample
from gputopo.values.run.verdict import HostSummary

# 256 pages of 4 KiB a second. Not measured; chosen because a host that swaps stops threads of single devices.
SWAP_BYTES_PER_S = 1_048_576.0
MEMORY_AVAILABLE_SHARE = 0.02  # not measured; below it the kernel reclaims memory while programs wait
# A fifth of the samples. Not measured; chosen because a median over the steps ignores fewer.
BUSY_SHARE = 0.20
_BINS = 100  # of a share: one for each percent


class HostRecord:
    """Counts and sums over the samples of a host."""

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
        self._others = [0] * (_BINS + 1)  # number of samples by the CPU share of other programs

    def add(self, load: HostLoad) -> None:
        """Add a sample."""
        self._samples += 1
        self._cores = load.cores or self._cores
        swaps = [rate for rate in (load.swap_in_bytes_per_s, load.swap_out_bytes_per_s) if rate is not None]
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
        self._full += load.leaves_no_core
        self._swapped += swap is not None and swap >= SWAP_BYTES_PER_S

    def summary(self, *, cpu_devices: int) -> HostSummary | None:
        """Return the load of the host; None without a sample. `cpu_devices`: number in the run."""
        if not self._samples:
            return None
        summary = HostSummary(
            samples=self._samples,
            other_cpu_share=self._mean("other"),
            run_queue=self._mean("queue"),
            cores=self._cores,
            memory_available_share=self._memory,
            swap_bytes_per_s=self._mean("swap"),
        )
        busy = self._busy(summary, cpu_devices > 0)
        may_cost = None
        lacks_memory = max(self._swapped, self._short) > BUSY_SHARE * self._samples
        if busy is not None and cpu_devices and not lacks_memory:
            may_cost = 100 * self._most_for_one(cpu_devices)
        return msgspec.structs.replace(summary, busy=busy, may_cost_percent=may_cost)

    def _most_for_one(self, cpu_devices: int) -> float:
        """Return the maximum share of its pace that other programs can cost one CPU device.

        It is based on the highest CPU share of other programs, without the highest `BUSY_SHARE` of the
        samples, which a median ignores. In the worst case all of it came from this device's part of the
        cores, or from one core with a thread that the device's other threads wait for.
        """
        left, place = BUSY_SHARE * self._samples, _BINS
        while place and self._others[place] <= left:
            left -= self._others[place]
            place -= 1
        return min(1.0, place / _BINS * max(cpu_devices, self._cores or math.inf))

    def _busy(self, summary: HostSummary, on_cpu: bool) -> str | None:
        allowed = BUSY_SHARE * self._samples
        if (self._by_programs if on_cpu else self._full) > allowed and summary.other_cpu_share is not None:
            return f"other programs used {100 * summary.other_cpu_share:.0f}% of the CPU"
        if self._swapped > allowed and summary.swap_bytes_per_s is not None:
            return f"the host swapped {summary.swap_bytes_per_s / 1e6:.0f} MB/s"
        if self._short > allowed and summary.memory_available_share is not None:
            return f"only {100 * summary.memory_available_share:.1f}% of the host's memory was available"
        return None

    def _mean(self, name: str) -> float | None:
        return self._sum[name] / self._count[name] if name in self._count else None


class HostLoads:
    """The load of each host while the steps of a run are counted; if there are none yet, the load before."""

    def __init__(self) -> None:
        self._records: dict[int, HostRecord] = {}  # by rank
        self._begins = False

    def begin(self) -> None:
        """Note that the counted steps start."""
        self._begins = True

    def add(self, sample: Sample) -> None:
        """Add a sample. Samples without the load of their host change nothing."""
        if (load := sample.host) is None:
            return
        if self._begins:
            self._records.clear()
            self._begins = False
        self._records.setdefault(sample.rank, HostRecord()).add(load)

    def summaries(self, devices: Sequence[Device]) -> dict[int, HostSummary]:
        """Return the load of each sampled host, by rank. With several hosts, `busy` has the host's name."""
        on_cpu = bool(devices) and all(device.is_cpu for device in devices)
        by_rank = {}
        for rank, record in self._records.items():
            on_host = [device for device in devices if device.rank == rank]
            load = record.summary(cpu_devices=len(on_host) if on_cpu else 0)
            if load is not None and load.busy is not None and on_host and on_host[0].host is not None:
                load = msgspec.structs.replace(load, busy=f"on {on_host[0].host} {load.busy}")
            if load is not None:
                by_rank[rank] = load
        return by_rank


def whole_hosts(devices: Sequence[Device], slow: Mapping[int, object]) -> dict[int, tuple[Device, ...]]:
    """Return the hosts on which all devices, at least two, are slow in the same way, with their devices.

    By rank. `slow`: in what a device is slow, by tower. A host with one device is reported as that device.
    """
    by_rank: dict[int, list[Device]] = {}
    for device in devices:
        by_rank.setdefault(device.rank, []).append(device)
    if len(by_rank) < 2:
        return {}
    return {
        rank: tuple(on_host)
        for rank, on_host in by_rank.items()
        if len(on_host) > 1
        and all(device.tower in slow for device in on_host)
        and len({slow[device.tower] for device in on_host}) == 1
    }


def host_name(devices: Sequence[Device]) -> str:
    """Return the name of a slow host with its devices: "host n3: all 4 GPUs"."""
    noun = "CPU devices" if devices[0].is_cpu else "GPUs"
    return f"host {devices[0].host}: all {len(devices)} {noun}"
