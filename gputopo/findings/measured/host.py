"""What measured copies tell of the host: pageable memory, far nodes, shared uplinks, slow host memory."""

from collections.abc import Iterator

from gputopo.copies.numbers import host_copies, host_gpu, is_far, is_large, judged, rate, rates
from gputopo.copies.sharing import HOST_KINDS, uplink_groups
from gputopo.findings.fault import Fault, findings_of, numbers, present, roughly
from gputopo.findings.finding import Finding, Severity
from gputopo.findings.uplinks import SHARED_TIMES
from gputopo.values.bandwidth import Kind, Sample, UplinkGroup, gpu_of, node_of
from gputopo.values.machine import Machine

# Pageable copies go through a small pinned buffer of the driver, which costs more the faster the link is.
# Below this share of a pinned copy it is worth to be told. Ours.
PAGEABLE_SHARE = 0.70
# Copies from the far node of sound two-socket machines lose some percent; half and less is told as a fault:
# a P100 had 3.78 of 12.15 GB/s from the remote node (gearshifft, pull request 82).
FAR_SHARE = 0.90
FAR_BAD_SHARE = 0.50

_NEAR = (
    "bind the program to the node of its GPUs (numactl --cpunodebind=NODE --membind=NODE), and measure with "
    "--numa NODE what that gives"
)
_ONE_GROUP = (
    "all GPUs share it, so none is a better choice: use fewer of them for work that is fed from the host, "
    "and keep what they exchange on the GPUs; where it is no bridge, it is a link of the CPU or host memory "
    "(see that all its channels are filled)"
)
_WAYS = {"h2d": "from the host", "d2h": "to the host"}


def pageable(machine: Machine) -> Iterator[Finding]:
    """Find how much slower copies from memory are that is not page-locked."""
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    for kind in HOST_KINDS:
        faults = []
        for gpu in present(machine):
            pair = _pageable_and_pinned(samples, kind, gpu.index, machine)
            if pair is None or pair[0] >= PAGEABLE_SHARE * pair[1]:
                continue
            says = (
                f"copies {_WAYS[kind]} reach about {roughly(pair[0] / pair[1])} of the pinned rate with "
                "memory that is not page-locked"
            )
            evidence: dict[str, object] = {"pageable_gb_per_s": pair[0], "pinned_gb_per_s": pair[1]}
            faults.append(Fault(gpu, says, evidence, "info"))
        yield from findings_of(
            "bandwidth.pageable_slow",
            faults,
            "feed the GPUs from page-locked memory: TensorFlow does so for what tf.data prefetches to the "
            "device (prefetch_to_device)",
            machine,
        )


def far_nodes(machine: Machine) -> Iterator[Finding]:
    """Find GPUs and cores that are slow with the memory of another node."""
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    for kind in HOST_KINDS:
        near = rates(host_copies(samples, kind, machine))
        faults = []
        for gpu in present(machine):
            far = _fastest_far(samples, kind, gpu.index, machine)
            share = far / near[gpu.index] if gpu.index in near and far is not None else 1.0
            if share < FAR_SHARE:
                severity: Severity = "warning" if share < FAR_BAD_SHARE else "info"
                slow = f"about {roughly(share)} of the near rate"
                says = f"copies {_WAYS[kind]} reach {slow} with memory of another node"
                evidence: dict[str, object] = {
                    "far_gb_per_s": far,
                    "near_gb_per_s": near[gpu.index],
                    "near_node": gpu.numa_node,
                }
                faults.append(Fault(gpu, says, evidence, severity))
        yield from findings_of("numa.far_slow", faults, _NEAR, machine)
    yield from _far_memory(samples)


def shared_uplinks(machine: Machine) -> Iterator[Finding]:
    """Tell the measured groups that share an uplink, and whether the PCI tree shows the same."""
    groups = measured_groups(machine)
    if not groups:
        return
    bad = any(_share(group) < 1 / SHARED_TIMES for group in groups)
    yield Finding(
        id="pcie.shared_uplink",
        severity="warning" if bad else "info",
        subject="machine",
        says=f"measured: {'; '.join(map(_group_words, groups))}",
        evidence={
            "groups": [
                {
                    "gpus": list(group.gpus),
                    "from": group.from_kind,
                    "alone_gb_per_s": group.alone_gb_per_s,
                    "together_gb_per_s": group.together_gb_per_s,
                    "bridge": group.bridge,
                    "as_in_the_pci_tree": group.agrees,
                }
                for group in groups
            ]
        },
        remedy=_ONE_GROUP
        if {gpu.index for gpu in present(machine)} <= set(groups[0].gpus)
        else "take GPUs of different groups for work that is fed from the host or staged through it; "
        "a group that is no bridge of the tree shares a link of the chipset, of the CPU, or host memory",
    )


def memory_slow(machine: Machine) -> Iterator[Finding]:
    """Find host memory that is slower than what all links can ask of it at once.

    A copy reads or writes host memory once; the measured rate counts bytes read and written.
    """
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    near = {
        one.source: max(one.repeats_gb_per_s, default=rate(one))  # the most that it was seen to carry
        for one in judged(samples)
        if one.kind == "host_memory" and one.source == one.destination
    }
    to_device, to_host = _asked_at_once(machine, "h2d"), _asked_at_once(machine, "d2h")
    has = sum(near.values())
    if not near or has >= to_device + to_host or not to_device or not to_host:
        return
    one_way = has < max(to_device, to_host)
    yield Finding(
        id="host.memory_slow",
        severity="warning" if one_way else "info",
        subject="machine",
        says=f"host memory carries {has:.1f} GB/s, and all GPUs at once can ask "
        f"{to_device + to_host:.1f}: it "
        f"limits staged copies and a parameter server on the CPU{' even one way' if one_way else ''}",
        evidence={
            "host_memory_gb_per_s": {place: round(one, 3) for place, one in near.items()},
            "all_from_host_gb_per_s": round(to_device, 3),
            "all_to_host_gb_per_s": round(to_host, 3),
        },
        remedy="fill all memory channels of every socket with equal modules (sudo dmidecode -t memory shows "
        "them), see their speed in the BIOS, and keep gradients on the GPUs where links allow it",
    )


def _asked_at_once(machine: Machine, kind: Kind) -> float:
    """Give what all GPUs together can ask of the host in GB/s: measured, or the sum of their links."""
    samples = machine.bandwidth.samples if machine.bandwidth else ()
    alone = rates(host_copies(samples, kind, machine))
    at_once: dict[str, dict[int, float]] = {}
    for sample in samples:
        gpu = host_gpu(sample)
        if sample.kind == kind and sample.group and gpu is not None and is_large(sample):
            at_once.setdefault(sample.group, {})[gpu] = rate(sample)
    whole = [sum(told.values()) for told in at_once.values() if told.keys() >= alone.keys()]
    return max(whole) if whole and len(alone) > 1 else sum(alone.values())


def measured_groups(machine: Machine) -> tuple[UplinkGroup, ...]:
    """Give the groups that a session wrote down, else those that its samples show."""
    bandwidth = machine.bandwidth
    if bandwidth is None:
        return ()
    return bandwidth.uplink_groups or uplink_groups(bandwidth.samples, machine)


def _pageable_and_pinned(
    samples: tuple[Sample, ...], kind: Kind, gpu: int, machine: Machine
) -> tuple[float, float] | None:
    """Give the fastest pageable copy and the fastest pinned one that it can be compared with.

    That is one of the same size where there is one: two runs of different tools on a link that was slow in
    one of them would else look like a penalty.
    """
    own = [one for one in _host_samples(samples, kind, gpu) if not is_far(one, gpu, machine)]
    loose = max((one for one in own if one.pinned is False), key=rate, default=None)
    pinned = [one for one in own if one.pinned is not False]
    if loose is None or not pinned:
        return None
    same = [one for one in pinned if one.bytes == loose.bytes]
    return rate(loose), max(map(rate, same or pinned))


def _fastest_far(samples: tuple[Sample, ...], kind: Kind, gpu: int, machine: Machine) -> float | None:
    own = _host_samples(samples, kind, gpu)
    far = (rate(one) for one in own if one.pinned is not False and is_far(one, gpu, machine))
    return max(far, default=None)


def _host_samples(samples: tuple[Sample, ...], kind: Kind, gpu: int) -> list[Sample]:
    end = "destination" if kind == "h2d" else "source"
    return [one for one in judged(samples) if one.kind == kind and gpu_of(getattr(one, end)) == gpu]


def _far_memory(samples: tuple[Sample, ...]) -> Iterator[Finding]:
    near: dict[int, Sample] = {}
    far: dict[tuple[int, int], Sample] = {}  # by the node of the cores and that of the memory
    for sample in samples:
        memory, cores = node_of(sample.source), node_of(sample.destination)
        if sample.kind != "host_memory" or cores is None or memory is None or not is_large(sample):
            continue
        if cores == memory:
            near[cores] = sample
        else:
            far[cores, memory] = sample
    # Their own memory is what cores are held against; where it was not measured, that memory's own cores.
    beside = {way: near.get(way[0], near.get(way[1])) for way in far}
    slow = {way: (one, own) for way, one in far.items() if (own := beside[way]) and _clearly_far(one, own)}
    if slow:
        (cores, memory), (slowest, own) = min(slow.items(), key=lambda item: rate(item[1][0]))
        yield Finding(
            id="numa.far_slow",
            severity="warning" if rate(slowest) < FAR_BAD_SHARE * rate(own) else "info",
            subject="machine",
            says=f"the cores of node {cores} reach the memory of node {memory} at {rate(slowest):.1f} GB/s, "
            f"near memory at {rate(own):.1f}",
            evidence={
                "near_gb_per_s": {str(node): round(rate(one), 3) for node, one in near.items()},
                "far_gb_per_s": {
                    f"cores {way[0]}, memory {way[1]}": round(rate(one), 3) for way, (one, _) in slow.items()
                },
            },
            remedy=_NEAR,
        )


def _clearly_far(far: Sample, near: Sample) -> bool:
    """Tell whether far memory is slower, and no repeat of it was as fast as the slowest of the near one."""
    if rate(far) >= FAR_SHARE * rate(near):
        return False
    return max(far.repeats_gb_per_s, default=rate(far)) < min(near.repeats_gb_per_s, default=rate(near))


def _share(group: UplinkGroup) -> float:
    if not group.alone_gb_per_s or group.together_gb_per_s is None:
        return 1.0
    return group.together_gb_per_s / group.alone_gb_per_s


def _group_words(group: UplinkGroup) -> str:
    words = f"GPUs {numbers(group.gpus)} share "
    if group.agrees and group.bridge:
        words += f"bridge {group.bridge}"
    else:
        words += "a way to the host" + ("" if group.agrees is None else " that the PCI tree does not show")
    if group.alone_gb_per_s and group.together_gb_per_s is not None:
        what = "both ways at once" if group.from_kind == "bidirectional" else "at once"
        words += f" ({group.together_gb_per_s:.1f} GB/s {what}, {group.alone_gb_per_s:.1f} one by one)"
    return words
