"""Measures the links of this machine: a session from host memory to the last pair of GPUs."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gputopo.copies import checked, l2_mib, uplink_groups
from gputopo.probes.copy_jobs import SessionRequest, Setting, WindowRunner
from gputopo.probes.cuda.door import NoCudaError
from gputopo.probes.cuda.start import open_cuda
from gputopo.probes.nvml.monitor import Monitor
from gputopo.probes.session.budget import QUICK_SECONDS
from gputopo.probes.session.conditions import GpuSampler, Meter
from gputopo.probes.session.host_memory import (
    MIB,
    REPEATS,
    HostMemoryRates,
    available_bytes,
    measure_host_memory,
)
from gputopo.probes.session.jobs import LOCAL_CACHES
from gputopo.probes.session.ramp_up import ramp_up
from gputopo.probes.session.selection import far_nodes, match, near_nodes, selected_gpus
from gputopo.probes.session.session import (
    INTERRUPTED,
    EarlierSession,
    NothingMeasured,
    OnNews,
    Results,
    Session,
    SessionEnd,
    SessionProgress,
)
from gputopo.probes.session.soak import Soaking
from gputopo.reference import known_gpus
from gputopo.values.bandwidth import Bandwidth, NotMeasured, Soak
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.index_ranges import parse_cpus
from gputopo.values.machine import Machine

_QUICK_HOST_BYTES = 256 * MIB
_QUICK_HOST_REPEATS = 5
# The engine uses 768 MiB of a GPU, and never more than nine tenths of the free memory.
_AMPLE_BYTES = 860 * MIB
_WRITTEN_SHARE = 0.9 * 2 / 3  # of free memory, for received data
# Page-locked memory for all GPUs. A quick session must stay well under 1.5 GiB, including the measurement of
# host memory, pageable memory and Python. A full session has 512 MiB for received data on each of two nodes.
_QUICK_PINNED_BYTES = 768 * MIB
_FULL_PINNED_BYTES = 1280 * MIB
_SHARE_OF_AVAILABLE = 0.25
_KERNEL = "kernel_read"
ALL_COPIES = "all copies of the GPUs"


class NoGpuMeasuredError(HardwareError):
    """No GPU could be measured. `bandwidth` contains the host memory's rates, and what was not measured."""

    def __init__(self, what: str, hint: str, bandwidth: Bandwidth) -> None:
        super().__init__(what, hint)
        self.bandwidth = bandwidth


@contextlib.contextmanager
def live_engine(
    cuda: Any, ordinals: Mapping[int, int], node_cpus: Mapping[int, Sequence[int]], pinned_bytes: int
) -> Iterator[WindowRunner]:
    """Open the engine that copies with CUDA. `pinned_bytes`: its limit of page-locked host memory."""
    from gputopo.probes.cuda.engine import Engine

    with Engine(cuda, ordinals, node_cpus, pinned_bytes=pinned_bytes) as engine:
        yield engine


@dataclass(frozen=True)
class Doors:
    """A session's access to the machine. Tests use doubles."""

    open_cuda: Callable[[], AbstractContextManager[Any]] = open_cuda
    open_engine: Callable[
        [Any, Mapping[int, int], Mapping[int, Sequence[int]], int], AbstractContextManager[WindowRunner]
    ] = live_engine
    open_sampler: Callable[[int], GpuSampler] = lambda gpu: Monitor([gpu])
    host_memory: Callable[[Machine, SessionRequest], HostMemoryRates] = lambda machine, request: (
        measure_host_memory(machine.host, repeats=_QUICK_HOST_REPEATS, max_bytes=_QUICK_HOST_BYTES)
        if request.level == "quick"
        else measure_host_memory(machine.host, repeats=REPEATS)
    )
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    now: Callable[[], float] = time.perf_counter


def check(machine: Machine, request: SessionRequest) -> None:
    """Raise UsageError for a GPU or a NUMA node that the machine does not have."""
    selected_gpus(machine, request.gpus)
    nodes = [node.index for node in machine.host.numa_nodes or ()]
    if request.numa is not None and request.numa not in nodes:
        nodes_there = ", ".join(map(str, nodes)) or "none is reported by this system"
        raise UsageError(f"there is no NUMA node {request.numa} in this machine", f"its nodes: {nodes_there}")


def bandwidth_of(
    machine: Machine,
    request: SessionRequest,
    results: Results,
    refusal: NothingMeasured | None,
    measured_at: float,
    duration_s: float,
) -> Bandwidth:
    """Return the checked results of a session, with the groups of GPUs that share an uplink.

    Raises NoGpuMeasuredError.
    """
    soaks = request.soak_s is not None
    measured = Bandwidth(
        source="live",
        samples=results.samples,
        failures=tuple(results.failures),
        not_measured=tuple(results.not_measured),
        level=None if soaks else request.level,
        soak=Soak(asked_s=request.soak_s or 0.0, intervals=tuple(results.soak)) if soaks else None,
        complete=results.complete,
        measured_at=measured_at,
        duration_s=duration_s,
        driver_version=machine.driver.version,
        cuda_version=results.cuda_version or machine.driver.cuda_version,
        notes=tuple(results.notes),
        host_load=results.host_load,
    )
    bandwidth = checked(measured, machine)
    bandwidth = replace(bandwidth, uplink_groups=uplink_groups(bandwidth.copies, machine))
    if refusal is not None:
        raise NoGpuMeasuredError(refusal.what, refusal.hint, bandwidth)
    return bandwidth


@dataclass
class Measuring:
    """One session, measured into `results`. `earlier`: the session to continue."""

    machine: Machine
    request: SessionRequest
    results: Results
    doors: Doors
    on_news: OnNews
    begun: float
    earlier: EarlierSession | None = None

    def run(self) -> NothingMeasured | None:
        """Measure. A keyboard interrupt ends it. Return the reason if no GPU could be measured."""
        try:
            if self.earlier is None and self.request.soak_s is None:
                self._report("host memory")
                host_rates = self.doors.host_memory(self.machine, self.request)
                self.results.samples += host_rates.samples
                self.results.failures += host_rates.failures
                self.results.not_measured += host_rates.not_measured
                self.results.notes += host_rates.notes
                self.results.host_load = host_rates.load
            self._report("starting CUDA")
            return self._measure_gpus()
        except KeyboardInterrupt:
            self.results.complete = False
            self.results.not_measured.append(NotMeasured(what=ALL_COPIES, reason=INTERRUPTED))
        return None

    def _report(self, now: str) -> None:
        self.on_news(SessionProgress(done=0, total=1, seconds_left=None, now=now))

    def _measure_gpus(self) -> NothingMeasured | None:
        machine, results, doors = self.machine, self.results, self.doors
        given_up = self.earlier.given_up if self.earlier else {}
        gpus = [gpu for gpu in selected_gpus(machine, self.request.gpus) if gpu not in given_up]
        try:
            with doors.open_cuda() as cuda:
                results.cuda_version = cuda.driver_version
                results.notes += [cuda.doubt] if cuda.doubt else []
                ordinals, hidden = match(machine, gpus, cuda.devices, doors.environment)
                results.not_measured += hidden
                results.notes += [
                    f"gpu:{gpu.index} is split (MIG): its numbers are those of one instance"
                    for gpu in machine.gpus
                    if gpu.mig.mode and gpu.index in ordinals
                ]
                if not ordinals:
                    hint = "; ".join(f"{missing.what}: {missing.reason}" for missing in hidden)
                    return NothingMeasured("CUDA shows none of the selected GPUs", hint)
                # Never a large part of the memory that is free, on the host or in a container.
                pinned = _QUICK_PINNED_BYTES if self.request.level == "quick" else _FULL_PINNED_BYTES
                if (available := available_bytes()) is not None:
                    pinned = min(pinned, int(available * _SHARE_OF_AVAILABLE))
                cpus = {node.index: parse_cpus(node.cpus or "") for node in machine.host.numa_nodes or ()}
                node_cpus = {node: sorted(listed) for node, listed in cpus.items() if listed}
                with (
                    doors.open_engine(cuda, ordinals, node_cpus, pinned) as engine,
                    Meter(ordinals, open_sampler=doors.open_sampler, now=doors.now) as meter,
                ):
                    return self._measure_with(engine, meter, ordinals)
        except NoCudaError as error:
            results.not_measured.append(NotMeasured(what=ALL_COPIES, reason=error.says))
            return NothingMeasured(error.says, error.remedy)

    def _measure_with(
        self, engine: WindowRunner, meter: Meter, gpus: Mapping[int, int]
    ) -> NothingMeasured | None:
        results, request, now = self.results, self.request, self.doors.now
        if meter.reason is not None:
            results.notes.append(
                f"no P-states, clocks and links were read while it copied: NVML {meter.reason}"
            )
        given_up = _unusable(self.machine, gpus, engine, results)
        setting = _setting(self.machine, request, [gpu for gpu in gpus if gpu not in given_up], engine)
        results.not_measured += [
            NotMeasured(what=f"gpu:{gpu}", reason=reason) for gpu, reason in given_up.items()
        ]
        if not setting.gpus:
            return NothingMeasured("CUDA can use none of the selected GPUs", "; ".join(given_up.values()))
        self._report("clock ramp-up of the GPUs")
        try:
            results.notes += ramp_up(engine, meter, setting, now)
            if request.soak_s is not None:
                Soaking(engine, setting, request.soak_s, on_news=self.on_news, results=results, now=now).run()
            else:
                Session(
                    engine,
                    meter,
                    setting,
                    deadline_s=self.begun + QUICK_SECONDS if request.level == "quick" else None,
                    on_news=self.on_news,
                    now=now,
                    results=results,
                    earlier=self.earlier,
                ).run()
        finally:
            results.failures += engine.unreturned
            results.notes += engine.notes
        self.on_news(SessionEnd())
        return None


def _unusable(
    machine: Machine, gpus: Mapping[int, int], engine: WindowRunner, results: Results
) -> dict[int, str]:
    """Return the GPUs that cannot be measured, with CUDA's reason. Note GPUs with little free memory."""
    modes = {gpu.index: gpu.compute_mode for gpu in machine.gpus}
    given_up: dict[int, str] = {}
    for gpu in gpus:
        free = engine.free_bytes(gpu)
        unusable = engine.supports(gpu, "copy_engine")
        if unusable is not None or free == 0:
            why = f"CUDA cannot use gpu:{gpu}: {unusable or 'none of its memory is free'}"
            mode = modes.get(gpu) or "default"
            given_up[gpu] = why if mode == "default" else f"{why}; its compute mode is {mode}"
            continue
        if free < _AMPLE_BYTES:
            results.notes.append(
                f"gpu:{gpu} has only {free // MIB} MiB of its memory free: its copies are smaller, so "
                "their start-up cost has more influence"
            )
    return given_up


def _setting(machine: Machine, request: SessionRequest, gpus: Sequence[int], engine: WindowRunner) -> Setting:
    nodes = near_nodes(machine, gpus, request.numa)
    reasons = {gpu: engine.supports(gpu, _KERNEL) for gpu in gpus}
    largest_mib = max(model.l2_mib or 0 for model in known_gpus())  # for an unknown model
    caches = {
        gpu: engine.l2_bytes(gpu) or int(MIB * (l2_mib(machine.by_index.get(gpu)) or largest_mib))
        for gpu in gpus
    }
    return Setting(
        gpus=tuple(gpus),
        level=request.level,
        nodes=nodes,
        far_nodes=far_nodes(machine, nodes) if request.numa is None else {},
        peers=frozenset((a, b) for a in gpus for b in gpus if a != b and engine.peer_access(a, b)),
        no_kernels={gpu: reason for gpu, reason in reasons.items() if reason is not None},
        no_local={gpu: why for gpu in gpus if (why := _in_cache(caches[gpu], engine.free_bytes(gpu)))},
        l2_bytes=caches,
        sizes=request.sizes,
        loops=request.loops,
    )


def _in_cache(l2_bytes: int, free: int) -> str | None:
    """Return why a copy within a GPU's memory would measure its cache, or None if enough memory is free."""
    if free * _WRITTEN_SHARE >= LOCAL_CACHES * l2_bytes:
        return None
    return (
        f"only {free // MIB} MiB of its memory are free: such a small copy only measures the L2 cache "
        f"({l2_bytes / MIB:.3g} MiB)"
    )
