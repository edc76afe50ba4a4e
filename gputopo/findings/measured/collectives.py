"""Collective operations, measured by nccl-tests: bus bandwidth."""

from collections.abc import Iterator

import msgspec

from gputopo.copies import NETWORK_LOW_SHARE, expected_rate, network_ports, nvls_is_off
from gputopo.findings.measured.failures import BELOW_MINIMUM
from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of
from gputopo.values.bandwidth import (
    COLLECTIVE_NAMES,
    SEPARATE_RUNS,
    CollectiveRate,
    CollectiveSeries,
    Expectation,
    Failure,
    series_of,
)
from gputopo.values.ends import HOSTS
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE, Subject

RING_MARGIN = Threshold(
    "bus bandwidth of a ring, up to so much more",
    1.08,
    "of the ring's",
    "8 H200 reach 365.6 GB/s by the ring and 473.1 by NVLS; 5 of them 414.2 (stas00/ml-engineering)",
)
# A ring reaches 0.94 to 0.96, with a port behind the CPU 0.64 (NVIDIA/nccl issues 307 and 412).
OF_PORTS = Threshold(
    "bus bandwidth over several hosts, of the rate of the network ports of a host", NETWORK_LOW_SHARE, "of it"
)

SLOW = Rule(
    "collectives.slow",
    "bus bandwidth of a collective operation below what the links carry",
    remedy=(
        "Run it again with NCCL_DEBUG=INFO and compare the paths (via P2P, SHM or NET; NVLS) with "
        "gputopo inspect: NVLinks that are down, peer access that is refused, and variables such as "
        "NCCL_P2P_DISABLE come first."
    ),
)
SEPARATE = Rule(
    "collectives.separate_runs",
    "nccl-tests ran once in each process, without the other GPUs",
    remedy=(
        "Build nccl-tests with MPI: make MPI=1 MPI_HOME=..., or start one process for all GPUs of a host "
        "(-g N). Nothing was measured between the runs."
    ),
)
NETWORK_SLOW = Rule(
    "collectives.network_slow",
    "bus bandwidth over several hosts below what their network ports carry",
    remedy=(
        "Run it again with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET: NET/IB with all ports "
        "(NCCL_IB_HCA) and GDRDMA, not NET/Socket. Measure single ports with gputopo bandwidth "
        "--network, and the operation with NCCL_ALGO=Ring. See gputopo inspect for ports that are down, "
        "slow or far from GPUs, for ACS and nvidia_peermem."
    ),
    thresholds=(OF_PORTS,),
)
NVLS_UNUSED = Rule(
    "collectives.nvls_unused",
    "all-reduce no faster than a ring: the NVSwitches do not reduce (NVLS, NVLink SHARP)",
    remedy=(
        "Look for NVLS in NCCL_DEBUG=INFO. It needs NCCL 2.17 or later, a running fabric manager, and "
        "neither NCCL_NVLS_ENABLE=0 nor NCCL_ALGO without NVLS; in a virtual machine all GPUs of the "
        "host."
    ),
    thresholds=(RING_MARGIN,),
)


SHARED_GPU = Rule(
    "collectives.shared_gpu",
    "several ranks of a collective operation on one GPU",
    remedy=(
        "Give each rank its own GPU (srun --gpus-per-task=1, mpirun with one rank for each GPU, or "
        "CUDA_VISIBLE_DEVICES of each process), and measure again: these are not the rates of a link."
    ),
)


@check(SHARED_GPU)
def shared_gpu(machine: Machine) -> Iterator[Fault]:
    """Find operations of one host with more ranks than GPUs."""
    shared = grouped((_shares(series.best), series.best) for series in series_of(copies_of(machine).samples))
    for gpus, samples in shared.items():
        if gpus:
            ranks = max(series.ranks or 0 for series in samples)
            says = f"{ranks} ranks on GPU {index_ranges(gpus)}: copies within a GPU, not over a link"
            yield SHARED_GPU.fault(Subject.of_gpus(gpus), says, {"ranks": ranks})


def _shares(sample: CollectiveRate) -> tuple[int, ...]:
    """Return the GPUs of an operation of one host that has more ranks; none where each has its own."""
    gpus = sample.source.gpus
    return gpus if sample.hosts == 1 and gpus and (sample.ranks or 0) > len(gpus) else ()


@check(SLOW, NVLS_UNUSED, NETWORK_SLOW)
def slow(machine: Machine) -> Iterator[Fault]:
    """Find operations whose largest size is below the expected bus bandwidth."""
    margin = RING_MARGIN.value
    for series in _series(machine):
        best = series.best
        rate = expected_rate(best, machine)
        if rate is None or rate.low_gb_per_s is None or best.bus_gb_per_s is None:
            continue
        if best.bus_gb_per_s >= rate.low_gb_per_s:
            continue
        if best.source == HOSTS:
            causes = _network_causes(best, machine)
            words = [rate.source, *([f"possible causes: {'; '.join(causes)}"] if causes else [])]
            yield _finding(NETWORK_SLOW, best, rate, "; ".join(words))
        elif (ring := rate.without_nvls) and 1 / margin <= best.bus_gb_per_s / ring <= margin:
            yield _finding(NVLS_UNUSED, best, rate, f"as fast as a ring ({ring:g} GB/s)")
        else:
            causes = _causes(best, machine)
            yield _finding(SLOW, best, rate, f"possible causes: {'; '.join(causes)}" if causes else "")


@check(SEPARATE, SLOW)
def reported(machine: Machine) -> Iterator[Fault]:
    """Find what nccl-tests itself reports: processes that did not meet, and operations that are too slow."""
    for reason, rule in ((BELOW_MINIMUM, SLOW), (SEPARATE_RUNS, SEPARATE)):
        for failure in copies_of(machine).failures:
            if failure.reason == reason:
                evidence = {"operation": failure.kind, "says": failure.says}
                says = f"{COLLECTIVE_NAMES[failure.kind]}: {failure.says}"
                yield rule.fault(_subject(failure), says, evidence)


@check(NVLS_UNUSED)
def nvls_off(machine: Machine) -> Iterator[Fault]:
    """Find all-reduces whose log or command excludes NVLS, where the GPUs have it."""
    for series in _series(machine):
        best = series.best
        if best.kind != "allreduce" or not nvls_is_off(best):
            continue
        with_nvls = expected_rate(msgspec.structs.replace(best, nccl=()), machine)
        if with_nvls and with_nvls.without_nvls and best.bus_gb_per_s:
            facts = ", ".join(fact for fact in best.nccl if "NVLS" in fact or "ALGO" in fact)
            yield _finding(NVLS_UNUSED, best, with_nvls, facts)


def _series(machine: Machine) -> list[CollectiveSeries]:
    samples = copies_of(machine).samples
    return [series for series in series_of(samples) if series.is_of_nccl_tests and not _shares(series.best)]


def _finding(rule: Rule, best: CollectiveRate, rate: Expectation, more: str) -> Fault:
    low = f"at least {rate.low_gb_per_s:.3g}"
    usual = f"{rate.gb_per_s:.3g}, {low}" if rate.gb_per_s and not rate.is_limit else low
    run = f" (run {best.run})" if best.run else ""
    ranks = f" over {best.ranks} GPUs" if best.ranks else ""
    what = f"{COLLECTIVE_NAMES[best.kind]}{ranks}{run}, {_size(best)}"
    says = f"{what}: {best.bus_gb_per_s:g} GB/s of bus bandwidth, expected {usual}"
    expected = {"expected_bus_gb_per_s": rate.gb_per_s, "low_bus_gb_per_s": rate.low_gb_per_s}
    evidence = _evidence(best) | expected | {"source": rate.source}
    return rule.fault(_subject(best), f"{says}; {more}" if more else says, evidence)


def _causes(sample: CollectiveRate, machine: Machine) -> list[str]:
    causes = []
    gpus = set(sample.source.gpus) or {gpu.index for gpu in machine.gpus}
    inactive = (gpu for gpu in machine.gpus if any(port.active is False for port in gpu.nvlinks or ()))
    if down := [gpu.index for gpu in inactive if gpu.index in gpus]:
        causes.append(f"inactive NVLinks of {Subject.of_gpus(down)}")
    if "NCCL_P2P_DISABLE=1" in sample.nccl:
        causes.append("NCCL_P2P_DISABLE=1")
    elif "SHM" in sample.nccl:
        causes.append("NCCL's log has paths via SHM, so through host memory")
    if "NET" in sample.nccl:
        causes.append("NCCL's log has paths via NET")
    refused = [
        f"{link.a}-{link.b}"
        for link in machine.links
        if {link.a, link.b} <= gpus and link.p2p_read not in (None, "OK")
    ]
    if refused:
        more = " ..." if len(refused) > 3 else ""
        causes.append(f"peer access refused between {', '.join(refused[:3])}{more}")
    return causes


def _network_causes(sample: CollectiveRate, machine: Machine) -> list[str]:
    causes = []
    ports = network_ports(machine)
    if "NET/Socket" in sample.nccl and any(port.rdma_device for port in ports):
        causes.append("NCCL's log has paths via NET/Socket, so TCP and not RDMA")
    elif "NET/IB" in sample.nccl and "GDRDMA" not in sample.nccl:
        causes.append("NCCL's log has no path with GDRDMA, so all bytes go through host memory")
    used = {fact.removeprefix("card ") for fact in sample.nccl if fact.startswith("card ")}
    unused = [port.name for port in ports if not used & {port.rdma_device, port.interface}]
    if used and unused and "NET/Socket" not in sample.nccl:
        causes.append(f"NCCL does not use {', '.join(unused)}")
    if "SHM" in sample.nccl:
        causes.append("NCCL's log has paths via SHM, so through host memory")
    return causes


def _size(sample: CollectiveRate) -> str:
    count = float(sample.bytes or 0)
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _subject(sample: CollectiveRate | Failure) -> Subject:
    gpus = sample.source.gpus
    return Subject.of_gpus(gpus) if gpus else MACHINE


def _evidence(sample: CollectiveRate) -> dict[str, object]:
    return {
        "operation": sample.kind,
        "ranks": sample.ranks,
        "bytes": sample.bytes,
        "bus_gb_per_s": sample.bus_gb_per_s,
        "in_place": sample.in_place,
        **({"nccl": list(sample.nccl)} if sample.nccl else {}),
    }
