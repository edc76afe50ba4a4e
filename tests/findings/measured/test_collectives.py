"""Collective operations: sound ones of published machines are silent, each fault is found with its causes."""

from itertools import combinations

import pytest
from msgspec import convert
from msgspec.structs import replace

from gputopo.copies import expected_rate
from gputopo.findings import find_bandwidth
from gputopo.reference import reference_rows
from gputopo.values.bandwidth import Bandwidth, Collective, Failure, Sample, Samples
from gputopo.values.ends import HOSTS, End
from gputopo.values.machine import Gpu, Hop, Link, Machine, Nic, NicPort, NvLink
from tests import there
from tests.findings.measured.machines import timed

GIB = 2**30
H100, A100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"


def box(name: str, *samples: Sample, gpus: int = 8, links: tuple[Link, ...] = ()) -> Machine:
    return Machine(
        source="nccl-tests",
        gpus=tuple(Gpu(index=index, name=name) for index in range(gpus)),
        links=links,
        bandwidth=Bandwidth(source="nccl-tests", samples=Samples(samples)),
    )


def ids(machine: Machine) -> list[str]:
    return [finding.id for finding in find_bandwidth(machine)]


def test_ranks_that_share_a_gpu_are_named_and_not_judged() -> None:
    shared = replace(timed(3.0, ranks=4), source=End("gpu:0,1"), destination=End("gpu:0,1"))
    (finding,) = find_bandwidth(box(H100, shared))
    assert (finding.id, finding.subject.gpus) == ("collectives.shared_gpu", (0, 1))
    assert "4 ranks on GPU 0-1" in finding.says
    assert "collectives.shared_gpu" not in ids(box(H100, timed(3.0, ranks=4)))


def test_what_was_published_of_sound_machines_is_silent() -> None:
    for row in reference_rows("nccl_bus.csv"):
        nccl = ("NCCL_NVLS_ENABLE=0",) if row["nvls"] == "no" else ()
        ranks, kind = int(row["ranks"]), convert(row["operation"], Collective)
        pairs = combinations(range(ranks), 2)
        links = tuple(Link(a=a, b=b, hop=Hop.SYS, nvlinks=12) for a, b in pairs) if row["links"] else ()
        bus = float(row["bus_gb_per_s"] or row["low_gb_per_s"])
        sample = timed(bus, int(row["from_bytes"]), kind=kind, ranks=ranks, nccl=nccl)
        name = f"NVIDIA {row['gpu']}".replace("NVIDIA Tesla", "Tesla")
        machine = box(name, sample, gpus=ranks, links=links)
        rate = there(expected_rate(sample, machine))
        assert (rate.gb_per_s or bus, "nccl_bus.csv" in rate.source) == (bus, True), row
        assert nccl or ids(machine) == [], row


def test_an_all_reduce_far_below_is_found_with_its_causes() -> None:
    machine = box(H100, timed(40.0, nccl=("SHM", "NCCL_P2P_DISABLE=1")))
    down = replace(machine.gpus[3], nvlinks=(NvLink(link=0, active=False), NvLink(link=1, active=True)))
    machine = replace(machine, gpus=(*machine.gpus[:3], down, *machine.gpus[4:]))
    [found] = find_bandwidth(machine)
    assert found.id == "collectives.slow"
    assert str(found.subject) == "gpus:0-7"
    assert found.says == (
        "all-reduce over 8 GPUs, 8 GiB: 40 GB/s of bus bandwidth, expected 480, at least 460; "
        "possible causes: inactive NVLinks of gpu:3; NCCL_P2P_DISABLE=1"
    )
    assert found.evidence["low_bus_gb_per_s"] == 460


@pytest.mark.parametrize("nccl", [(), ("NCCL_NVLS_ENABLE=0",)])
def test_an_all_reduce_as_fast_as_a_ring_lacks_nvls(nccl: tuple[str, ...]) -> None:
    assert ids(box(H100, timed(366.0, nccl=nccl))) == ["collectives.nvls_unused"]


def test_a_gpu_without_a_published_rate_is_judged_by_its_nvlinks() -> None:
    assert ids(box("NVIDIA H20", timed(360.0))) == []
    assert ids(box("NVIDIA H20", timed(150.0))) == ["collectives.slow"]
    assert ids(box(A100, timed(150.0, ranks=4), gpus=4)) == ["collectives.slow"]
    assert ids(box(A100, timed(150.0, GIB // 16, ranks=4), gpus=4)) == []


@pytest.mark.parametrize("kind", ["sendrecv", "alltoall"])
def test_an_exchange_is_judged_by_what_the_links_carry_at_most(kind: Collective) -> None:
    """18 NVLinks of an H100 carry 371 GB/s as NCCL counts them; through host memory a tenth arrives."""
    assert ids(box(H100, timed(320.0, kind=kind))) == []
    assert ids(box(H100, timed(31.0, kind=kind))) == ["collectives.slow"]
    assert ids(box(RTX, timed(10.0, kind=kind))) == []
    assert ids(box(RTX, timed(2.0, kind=kind))) == ["collectives.slow"]
    rate = there(expected_rate(timed(320.0, kind=kind), box(H100)))
    assert rate.is_limit
    assert rate.gb_per_s == pytest.approx(18 * 20.6)


def port(name: str, rate: float = 400.0, *, up: bool = True, rdma: bool = True) -> Nic:
    own = NicPort(
        index=0,
        rdma_device=name if rdma else None,
        interface=None if rdma else name,
        state=("ACTIVE" if up else "DOWN") if rdma else None,
        carrier=up,
        rate_gbit_per_s=rate,
    )
    return Nic(index=int(name[-1]), ports=(own,))


def over_hosts(
    bus: float, *nics: Nic, gpus: int = 8, name: str = H100, ranks: int = 16, nccl: tuple[str, ...] = ()
) -> Machine:
    sample = replace(timed(bus, ranks=ranks, nccl=nccl), source=HOSTS, destination=HOSTS, hosts=2)
    return replace(box(name, sample, gpus=gpus), nics=nics)


EIGHT = tuple(port(f"mlx5_{number}") for number in range(8))


def test_over_several_hosts_bus_bandwidth_is_compared_with_the_ports_of_a_host() -> None:
    assert ids(over_hosts(370.0, *EIGHT)) == []
    assert ids(over_hosts(190.0, *EIGHT)) == ["collectives.network_slow"]
    (found,) = find_bandwidth(over_hosts(45.0, *EIGHT))
    assert "45 GB/s of bus bandwidth, expected 400, at least 200" in found.says
    assert "a ring over 8 RDMA ports of 400 Gbit/s of each host" in found.says


def test_several_hosts_groups_and_unknown_gpus_are_not_judged() -> None:
    slow = timed(1.0)
    assert ids(box(H100, replace(slow, source=HOSTS, destination=HOSTS, hosts=2))) == []
    assert ids(box(H100, replace(slow, group="2 groups of GPUs at once"))) == []
    assert ids(box("NVIDIA Tomorrow", slow)) == []
    assert ids(box(H100, replace(slow, source=End("gpus"), destination=End("gpus")))) == ["collectives.slow"]
    assert ids(box(H100, replace(slow, source=End("gpus"), destination=End("gpus"), ranks=16))) == []


def test_wrong_results_and_a_failed_minimum_are_found() -> None:
    failures = tuple(
        Failure(
            kind="allgather",
            source=End("gpu:0,1"),
            destination=End("gpu:0,1"),
            reason=reason,
            says="37 of them",
        )
        for reason in ("WRONG_DATA", "BELOW_MINIMUM", "NCCL_ERROR")
    )
    machine = box(H100)
    found = find_bandwidth(replace(machine, bandwidth=replace(there(machine.bandwidth), failures=failures)))
    assert sorted(one.id for one in found) == [
        "bandwidth.copy_failed", "bandwidth.wrong_data", "collectives.slow",
    ]  # fmt: skip
    assert {str(one.subject) for one in found} == {"gpus:0-1"}
    assert all("gpu:0,1 to" not in one.says for one in found)
