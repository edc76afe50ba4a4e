"""Measured copies and the host: far NUMA nodes and their memory, shared uplinks."""

from collections.abc import Iterator

from gputopo.copies import uplink_groups
from gputopo.findings.pcie import (
    ALL_GPUS,
    ALL_GPUS_FROM_THE_HOST,
    ALL_GPUS_TO_THE_HOST,
    FROM_THE_HOST,
    SHARED_SHARE,
    SHARED_UPLINK,
    TO_THE_HOST,
)
from gputopo.findings.rule import Case, Fault, Rule, Threshold, check, copies_of, present, roughly
from gputopo.values.bandwidth import HOST_KINDS, CopyRate, Kind, UplinkGroup
from gputopo.values.finding import Severity
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine
from gputopo.values.rates import host_link_rates, is_far, judged
from gputopo.values.subject import MACHINE

FAR_SHARE = Threshold(
    "slow copies with a far NUMA node",
    0.9,
    "of the near rate",
    (
        "not measured on hardware: copies from the far node of two-socket machines without a fault lose "
        "some percent"
    ),
)
FAR_BAD_SHARE = Threshold(
    "very slow copies with a far NUMA node",
    0.5,
    "of the near rate",
    "A P100 had 3.78 of 12.15 GB/s from the remote node (gearshifft, pull request 82)",
)

FAR_SLOW = Rule(
    "numa.far_slow",
    "copies with memory of another NUMA node are slower",
    remedy=(
        "Bind the program to the node of its GPUs (numactl --cpunodebind=NODE --membind=NODE), and "
        "measure the effect with --numa NODE."
    ),
    severities=("info", "warning"),
    thresholds=(FAR_SHARE, FAR_BAD_SHARE),
)

ELSEWHERE = Rule(
    "numa.memory_elsewhere",
    "host memory is on another NUMA node than requested",
    remedy=(
        "Let the container or job use the CPUs and the memory of the GPUs' nodes (docker: --cpuset-cpus, "
        "--cpuset-mems; Slurm --gpu-bind=closest), and check that the node has free memory (numactl -H)."
    ),
    severities=("warning", "info"),
)

_PATHS = {"h2d": "from the host", "d2h": "to the host"}


@check(FAR_SLOW)
def far_nodes(machine: Machine) -> Iterator[Fault]:
    """Find GPUs and cores that are slow with the memory of another node."""
    samples = copies_of(machine).copies
    for kind in HOST_KINDS:
        near = host_link_rates(samples, kind, machine)
        for gpu in present(machine):
            far = max(
                (
                    sample.rate
                    for sample in judged(samples)
                    if sample.kind == kind and sample.host_gpu == gpu.index and sample.pinned is not False
                    if is_far(sample, gpu.index, machine)
                ),
                default=None,
            )
            if far is None or gpu.index not in near or far >= FAR_SHARE.value * near[gpu.index]:
                continue
            share = far / near[gpu.index]
            reach = f"copies {_PATHS[kind]} reach about {roughly(share)} of the near rate"
            evidence = {"far_gb_per_s": far, "near_gb_per_s": near[gpu.index], "near_node": gpu.numa_node}
            severity: Severity = "warning" if share < FAR_BAD_SHARE.value else "info"
            says = f"{reach} with memory of another NUMA node"
            yield FAR_SLOW.fault(gpu, says, evidence, severity, part=kind)
    yield from _far_memory(samples)


@check(ELSEWHERE)
def memory_elsewhere(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies with the host used memory of another node.

    That of its own node is a warning: programs on this machine get such memory too.
    """
    for gpu in present(machine):
        seen: dict[int, int | None] = {}
        for sample in copies_of(machine).copies:
            if sample.numa_wanted is not None and sample.host_gpu == gpu.index:
                seen.setdefault(sample.numa_wanted, sample.numa_node)
        for wanted, lies in sorted(seen.items()):
            where = "is partly on others" if lies == wanted else f"is on node {lies}"
            evidence = {"wanted_node": wanted, "node": lies, "gpu_node": gpu.numa_node}
            severity: Severity = "warning" if wanted == gpu.numa_node else "info"
            says = f"host memory requested on NUMA node {wanted} {where}"
            yield ELSEWHERE.fault(gpu, says, evidence, severity, part=str(wanted))


@check(SHARED_UPLINK)
def shared_uplinks(machine: Machine) -> Iterator[Fault]:
    """Report the measured groups that share an uplink, and whether the PCI tree shows the same."""
    copies = copies_of(machine)  # those that a session recorded, else those that its samples show
    groups = copies.uplink_groups or uplink_groups(copies.copies, machine)
    if not groups:
        return
    all_gpus = {gpu.index for gpu in present(machine)} <= set(groups[0].gpus)
    bad = any(_share(group) < SHARED_SHARE.value for group in groups)
    evidence = [
        {
            "gpus": list(group.gpus),
            "from": group.from_kind,
            "slowed": list(group.directions),
            "alone_gb_per_s": group.alone_gb_per_s,
            "together_gb_per_s": group.together_gb_per_s,
            "bridge": group.bridge,
            "as_in_the_pci_tree": group.agrees,
        }
        for group in groups
    ]
    # Of one direction where the other is not slowed in any group.
    slowed = {kind for group in groups for kind in group.directions}
    case: Case | None
    if slowed == {"h2d"}:
        case = ALL_GPUS_FROM_THE_HOST if all_gpus else FROM_THE_HOST
    elif slowed == {"d2h"}:
        case = ALL_GPUS_TO_THE_HOST if all_gpus else TO_THE_HOST
    else:
        case = ALL_GPUS if all_gpus else None
    says = f"measured: {'; '.join(map(_group_words, groups))}"
    severity: Severity = "warning" if bad else "info"
    yield SHARED_UPLINK.fault(MACHINE, says, {"groups": evidence}, severity, case=case)


def _far_memory(samples: tuple[CopyRate, ...]) -> Iterator[Fault]:
    near: dict[int, CopyRate] = {}
    far: dict[tuple[int, int], CopyRate] = {}  # by the node of the cores and that of the memory
    for sample in samples:
        memory, cores = sample.source.node, sample.destination.node
        if sample.kind != "host_memory" or cores is None or memory is None or not sample.is_large:
            continue
        if cores == memory:
            near[cores] = sample
        else:
            far[cores, memory] = sample
    # Cores are compared with their own memory; where it was not measured, with that memory's own cores.
    beside = {nodes: near.get(nodes[0], near.get(nodes[1])) for nodes in far}
    slow = {
        nodes: (far_sample, near_sample)
        for nodes, far_sample in far.items()
        if (near_sample := beside[nodes]) and _clearly_far(far_sample, near_sample)
    }
    if slow:
        (cores, memory), (slowest, near_sample) = min(slow.items(), key=lambda item: item[1][0].rate)
        yield FAR_SLOW.fault(
            MACHINE,
            f"cores of NUMA node {cores} reach memory of node {memory} at {slowest.rate:.1f} GB/s, near "
            f"memory at {near_sample.rate:.1f}",
            {
                "near_gb_per_s": {str(node): round(far_sample.rate, 3) for node, far_sample in near.items()},
                "far_gb_per_s": {
                    f"cores {nodes[0]}, memory {nodes[1]}": round(far_sample.rate, 3)
                    for nodes, (far_sample, _) in slow.items()
                },
            },
            "warning" if slowest.rate < FAR_BAD_SHARE.value * near_sample.rate else "info",
        )


def _clearly_far(far: CopyRate, near: CopyRate) -> bool:
    """Return whether far memory is slower, and no repeat of it was as fast as the slowest of the near one."""
    if far.rate >= FAR_SHARE.value * near.rate:
        return False
    return max(far.repeats_gb_per_s, default=far.rate) < min(near.repeats_gb_per_s, default=near.rate)


def _share(group: UplinkGroup) -> float:
    if not group.alone_gb_per_s or group.together_gb_per_s is None:
        return 1.0
    return group.together_gb_per_s / group.alone_gb_per_s


def _group_words(group: UplinkGroup) -> str:
    words = f"GPUs {index_ranges(group.gpus)} share "
    if group.agrees and group.bridge:
        words += f"bridge {group.bridge}"
    else:
        words += "a path to the host" + ("" if group.agrees is None else " that is not in the PCI tree")
    words += _DIRECTIONS.get(group.directions, "")
    if group.alone_gb_per_s and group.together_gb_per_s is not None:
        how = "both directions at once" if group.from_kind == "bidirectional" else "at once"
        which = f"{_PATHS.get(group.from_kind, group.from_kind)} " if len(group.directions) > 1 else ""
        together, alone = f"{group.together_gb_per_s:.1f} GB/s", f"{group.alone_gb_per_s:.1f} one at a time"
        words += f" ({which}{together} {how}, {alone})"
    return words


_DIRECTIONS: dict[tuple[Kind, ...], str] = {
    ("h2d",): " in the direction from the host",
    ("d2h",): " in the direction to the host",
}
