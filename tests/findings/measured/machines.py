"""Sound measured copies of the box of `boxes`, and changes that break one thing in them."""

from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Any

from msgspec.structs import replace

from gputopo.copies import checked
from gputopo.values.bandwidth import (
    Bandwidth,
    Collective,
    CollectiveRate,
    Conditions,
    CopyRate,
    CopyRateKind,
    Failure,
    Kind,
    Sample,
    Samples,
    Soak,
    SoakInterval,
    SoakRate,
    UplinkGroup,
)
from gputopo.values.ends import HOSTS, End
from gputopo.values.machine import Gpu, Machine, Nic, NicPort, NumaNode
from tests import there
from tests.findings.boxes import at_times, every_gpu, host, pair, sound

LARGE = 1 << 28
Measure = Callable[[Machine], Machine]


def sample(kind: CopyRateKind, source: str, destination: str, gb_per_s: float, **more: Any) -> CopyRate:
    fields: dict[str, Any] = {
        "bytes": LARGE,
        "method": "copy_engine",
        "repeats_gb_per_s": (gb_per_s * 0.999, gb_per_s, gb_per_s * 1.001),
        "spread_percent": 0.2,
        "median_gb_per_s": gb_per_s,
    }
    return CopyRate(kind=kind, source=End(source), destination=End(destination), **(fields | more))


def seen(gpu: int, **more: Any) -> Conditions:
    fields: dict[str, Any] = {
        "readings": 3,
        "pstate": "P0",
        "pcie_gen": 3,
        "pcie_width": 16,
        "throttle_mask": 0,
        "throttle_reasons": (),
    }
    return Conditions(gpu=gpu, **(fields | more))


def sound_copies(count: int) -> tuple[Sample, ...]:
    """Generation 3 with 16 lanes, V100s, peers over PCIe: what sound machines of that kind gave."""
    samples = [sample("host_memory", "node:0", "node:0", 500.0, bytes=None)]
    for gpu in range(count):
        place, conditions = f"gpu:{gpu}", (seen(gpu),)
        samples += [
            sample("h2d", "host", place, 12.2, pinned=True, conditions=conditions),
            sample("d2h", place, "host", 12.8, pinned=True, conditions=conditions),
            sample("bidirectional", "host", place, 22.5, pinned=True, conditions=conditions),
            sample("d2d_local", place, place, 783.0, conditions=(seen(gpu),)),
        ]
    for a, b in permutations(range(count), 2):
        both = (seen(a), seen(b))
        samples.append(sample("p2p_direct", f"gpu:{a}", f"gpu:{b}", 12.0, conditions=both))
        samples.append(sample("p2p_staged", f"gpu:{a}", f"gpu:{b}", 11.0, conditions=both))
    return tuple(samples)


def measured(count: int = 4, **more: Any) -> Machine:
    # Read before the measurement, when nothing else ran.
    machine = every_gpu(utilization_percent={"gpu": 0}, memory_mib={"used": 4}, power_w={"draw": 50.0})(
        sound(count)
    )
    return replace(machine, bandwidth=Bandwidth(source="live", samples=Samples(sound_copies(count)), **more))


def copies(machine: Machine) -> tuple[CopyRate, ...]:
    return there(machine.bandwidth).copies


def with_copies(machine: Machine, samples: Iterable[Sample], **more: Any) -> Machine:
    return replace(machine, bandwidth=replace(there(machine.bandwidth), samples=tuple(samples), **more))


def changed(wanted: Callable[[Sample], bool], change: Callable[[Sample], Sample]) -> Measure:
    return lambda machine: with_copies(
        machine, (change(one) if wanted(one) else one for one in copies(machine))
    )


def at(gb_per_s: float) -> Callable[[Sample], Sample]:
    return lambda one: replace(
        one, median_gb_per_s=gb_per_s, repeats_gb_per_s=(gb_per_s * 0.999, gb_per_s, gb_per_s * 1.001)
    )


def is_of(kind: Kind, *ways: tuple[int | None, int | None]) -> Callable[[Sample], bool]:
    """Copies of a kind by their GPUs; None stands for the host."""
    places = {tuple("host" if one is None else f"gpu:{one}" for one in way) for way in ways}
    return lambda one: one.kind == kind and (not places or (one.source, one.destination) in places)


def conditions(gpu: int, **more: Any) -> Measure:
    """Other conditions of all copies of a GPU over its link."""

    def change(one: Sample) -> Sample:
        reported = tuple(replace(each, **more) if each.gpu == gpu else each for each in one.conditions)
        return replace(one, conditions=reported)

    return changed(lambda one: one.kind != "d2d_local", change)


def added(*samples: Sample, **more: Any) -> Measure:
    return lambda machine: with_copies(machine, (*copies(machine), *samples), **more)


def failed(reason: str, *ways: tuple[str, str], kind: Kind = "p2p_direct") -> Measure:
    failures = tuple(
        Failure(kind=kind, source=End(a), destination=End(b), reason=reason, says="it did") for a, b in ways
    )
    return added(failures=failures)


def far(gpu: int, gb_per_s: float) -> Sample:
    return sample("h2d", "node:1", f"gpu:{gpu}", gb_per_s, pinned=True, numa_node=1)


def memory(near: float, far_rate: float | None = None) -> Measure:
    def change(machine: Machine) -> Machine:
        machine = host(numa_nodes=(NumaNode(index=0), NumaNode(index=1)))(machine)
        rest = [one for one in copies(machine) if one.kind != "host_memory"]
        rest.append(sample("host_memory", "node:0", "node:0", near, bytes=None))
        if far_rate is not None:
            rest.append(sample("host_memory", "node:0", "node:1", far_rate, bytes=None))
        return with_copies(machine, rest)

    return change


def unsteady(one: Sample) -> Sample:
    return replace(one, repeats_gb_per_s=(12.2, 9.0, 12.3, 12.2), spread_percent=27.0)


def shares(*gpus: int) -> Measure:
    group = UplinkGroup(
        gpus=gpus, from_kind="h2d", alone_gb_per_s=12.2 * len(gpus), together_gb_per_s=12.0, bridge=None
    )
    return added(uplink_groups=(group,))


def unknown_links(machine: Machine) -> Machine:
    """A published output: nothing but names and numbers."""
    from gputopo.values.machine import Pcie

    machine = every_gpu(pcie=Pcie(), numa_node=None)(machine)
    return with_copies(machine, (replace(one, conditions=()) for one in copies(machine)))


def as_read(machine: Machine) -> Machine:
    """Check the numbers, as all that were read or measured are."""
    return replace(machine, bandwidth=checked(there(machine.bandwidth), machine))


def then(*changes: Measure) -> Measure:
    def change(machine: Machine) -> Machine:
        for one in changes:
            machine = one(machine)
        return machine

    return change


MEASURED: dict[str, tuple[Measure, set[str]]] = {
    "nothing": (lambda machine: machine, set()),
    "generation falls under load": (
        then(
            conditions(1, pcie_gen=1),
            changed(is_of("h2d", (None, 1)), at(3.1)),
            changed(is_of("d2h", (1, None)), at(3.2)),
            changed(is_of("bidirectional", (None, 1)), at(5.6)),
            changed(lambda one: "gpu:1" in (one.source, one.destination) and one.kind[:3] == "p2p", at(3.0)),
        ),
        {"pcie.generation_degraded"},
    ),
    "lanes lost under load": (
        then(
            conditions(2, pcie_width=8),
            changed(is_of("h2d", (None, 2)), at(6.2)),
            changed(is_of("d2h", (2, None)), at(6.4)),
            changed(is_of("bidirectional", (None, 2)), at(11.3)),
            changed(lambda one: "gpu:2" in (one.source, one.destination) and one.kind[:3] == "p2p", at(6.0)),
        ),
        {"pcie.width_degraded"},
    ),
    "link flaps": (conditions(0, link_changes=4), {"pcie.link_flapping"}),
    "narrow link of a published output": (
        then(
            unknown_links,
            changed(is_of("h2d", (None, 3)), at(0.7635)),
            changed(is_of("d2h", (3, None)), at(0.7991)),
            changed(is_of("bidirectional", (None, 3)), at(1.4)),
            changed(lambda one: "gpu:3" in (one.source, one.destination) and one.kind[:3] == "p2p", at(0.76)),
        ),
        {"pcie.slot_narrow"},
    ),
    "slow both directions": (
        then(changed(is_of("h2d", (None, 0)), at(9.5)), changed(is_of("d2h", (0, None)), at(9.8))),
        {"bandwidth.below_expected"},
    ),
    "one direction": (
        changed(is_of("h2d", (None, 1)), at(6.0)),
        {"bandwidth.below_expected"},
    ),
    "slow memory of a card": (changed(is_of("d2d_local", (2, 2)), at(500.0)), {"bandwidth.below_expected"}),
    "direct slower": (changed(is_of("p2p_direct"), at(10.4)), {"p2p.direct_slower_than_staged"}),
    "one pair slow": (
        changed(is_of("p2p_direct", (0, 3), (3, 0)), at(10.6)),
        {"bandwidth.pair_slower"},
    ),
    "one pair slow directly and staged": (
        then(
            changed(is_of("p2p_direct", (0, 3), (3, 0)), at(10.0)),
            changed(is_of("p2p_staged", (0, 3), (3, 0)), at(9.8)),
        ),
        {"bandwidth.pair_slower"},
    ),
    "NVLink slow": (
        then(*(pair(a, b, nvlinks=1) for a in range(4) for b in range(a + 1, 4))),
        {"bandwidth.below_expected"},
    ),
    "far node": (added(far(0, 5.0), far(1, 5.0)), {"numa.far_slow"}),
    "far memory": (memory(500.0, 200.0), {"numa.far_slow"}),
    "shared uplink": (shares(0, 1, 2, 3), {"pcie.shared_uplink"}),
    "wrong data": (failed("WRONG_DATA", ("gpu:0", "gpu:1")), {"bandwidth.wrong_data"}),
    "refused": (failed("CUDA_ERROR_OUT_OF_MEMORY", ("gpu:0", "gpu:1")), {"bandwidth.copy_failed"}),
    "hosts cannot connect": (
        failed("NETWORK_ERROR", ("host:client", "host:server"), kind="network"),
        {"network.failed"},
    ),
    "hung": (failed("TIMED_OUT", ("gpu:0", "gpu:1")), {"bandwidth.hung"}),
    "held down": (
        conditions(1, throttle_mask=0x40, throttle_reasons=("hw_thermal_slowdown",)),
        {"bandwidth.throttled"},
    ),
    "clock ramp-up": (
        changed(is_of("d2d_local", (1, 1)), lambda one: replace(one, discarded_gb_per_s=(300.0, 320.0))),
        {"bandwidth.woke_up"},
    ),
    "unsteady": (changed(is_of("h2d", (None, 2)), unsteady), {"bandwidth.unsteady"}),
    "cache": (then(added(sample("d2d_local", "gpu:0", "gpu:0", 4000.0)), as_read), {"bandwidth.cache_rate"}),
    "above the link": (
        then(added(sample("p2p_direct", "gpu:0", "gpu:1", 400.0)), as_read),
        {"bandwidth.above_link"},
    ),
    "both below one": (
        then(added(sample("bidirectional", "gpu:0", "gpu:1", 9.0, path="direct")), as_read),
        {"bandwidth.below_expected"},
    ),
    "both above twice one": (
        then(added(sample("bidirectional", "gpu:0", "gpu:1", 27.0, path="direct")), as_read),
        {"bandwidth.inconsistent"},
    ),
    "two runs": (
        then(added(sample("h2d", "host", "gpu:0", 5.0, pinned=True, run="2")), as_read),
        {"bandwidth.several_runs"},
    ),
}


def timed(
    bus: float,
    size: int = 8 << 30,
    *,
    kind: Collective = "allreduce",
    ranks: int = 8,
    us: float = 1000.0,
    in_place: bool = False,
    nccl: tuple[str, ...] = (),
) -> CollectiveRate:
    """A collective operation as nccl-tests prints it."""
    place = End.of_gpus(*range(ranks))
    return CollectiveRate(
        kind=kind,
        source=place,
        destination=place,
        bytes=size,
        median_us=us,
        bus_gb_per_s=bus,
        median_gb_per_s=bus / 2,
        algorithm="nccl-tests",
        ranks=ranks,
        hosts=1,
        in_place=in_place,
        data_type="float",
        reduction="sum",
        nccl=nccl,
    )


def eight(name: str, *samples: Sample) -> Machine:
    return Machine(
        source="nccl-tests",
        gpus=tuple(Gpu(index=index, name=name) for index in range(8)),
        bandwidth=Bandwidth(source="nccl-tests", samples=Samples(samples)),
    )


def over_two_hosts() -> Machine:
    """An all-reduce of 16 GPUs by one of eight ports."""
    ports = [
        NicPort(index=0, rdma_device=f"mlx5_{n}", state="ACTIVE", rate_gbit_per_s=400.0) for n in range(8)
    ]
    over = replace(timed(45.0), source=HOSTS, destination=HOSTS, ranks=16, hosts=2)
    nics = tuple(Nic(index=index, ports=(port,)) for index, port in enumerate(ports))
    return replace(eight("NVIDIA H100 80GB HBM3", over), nics=nics)


def soaked() -> Machine:
    """Copies under load of which one falls by half, while a counter rises."""
    rates = (12.0, 12.0, 12.0, 12.0, 6.0, 6.0, 6.0, 6.0)
    intervals = tuple(
        SoakInterval(
            end_s=10.0 * place,
            rates=(SoakRate(kind="h2d", source=End("host"), destination=End("gpu:1"), gb_per_s=rate),),
            copied_bytes={1: 1 << 33},
        )
        for place, rate in enumerate(rates, 1)
    )
    machine = at_times({"pcie.aer": {"fatal": 0}}, {"pcie.aer": {"fatal": 1}})
    return replace(machine, bandwidth=Bandwidth(source="live", soak=Soak(asked_s=80.0, intervals=intervals)))


# Faults that need other copies than those of `measured`.
OTHERS: tuple[Machine, ...] = (
    eight("NVIDIA H100 80GB HBM3", timed(40.0)),
    eight("NVIDIA H100 80GB HBM3", timed(366.0)),
    eight("NVIDIA H100 80GB HBM3", replace(timed(366.0), source=End("gpu:0,1"), destination=End("gpu:0,1"))),
    eight(
        "NVIDIA Tomorrow",
        *(timed(rate, (1 << 30) << place) for place, rate in enumerate((100, 101, 102, 70))),
    ),
    eight("NVIDIA Tomorrow", timed(0.0, 8, us=900.0), timed(100.0)),
    over_two_hosts(),
    Machine(
        source="nccl-tests",
        bandwidth=Bandwidth(
            source="nccl-tests",
            failures=(
                Failure(
                    kind="allreduce",
                    source=End("hosts"),
                    destination=End("hosts"),
                    reason="SEPARATE_RUNS",
                    says="2 separate runs of one GPU each",
                ),
            ),
        ),
    ),
    changed(is_of("h2d"), lambda one: replace(one, numa_node=0, numa_wanted=0))(measured()),
    soaked(),
)
