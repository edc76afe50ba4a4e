"""The rate of the network between hosts: what was measured, else what cards of this rate reach."""

import pytest
from msgspec.structs import replace

from gputopo.planner import HostNetwork, NetworkRate, SavedNetwork, network_rate
from gputopo.values.bandwidth import (
    ALL_HOSTS_AT_ONCE,
    Bandwidth,
    CollectiveRate,
    Sample,
    Samples,
    TransferRate,
)
from gputopo.values.ends import HOSTS, End
from gputopo.values.machine import Hop, Machine
from tests.planner.joint_machines import box, two_switches

# Shares of the rate of TCP and of a card that TensorFlow's copies reach, and of cards that NCCL does.
GRPC_OF_TCP, GRPC_OF_CARD, NCCL_OF_CARDS, NCCL_BY_HOST = 0.69, 0.64, 0.8, 0.55
BARE = Machine(source="live")


def grpc(*hosts: HostNetwork, saved: SavedNetwork | None = None) -> NetworkRate:
    found = network_rate(hosts, [[0]] * len(hosts), saved, nccl=False)
    assert isinstance(found, NetworkRate), found
    return found


def measured(*samples: tuple[str, str, float, str | None]) -> SavedNetwork:
    return SavedNetwork(
        Bandwidth(
            source="live",
            samples=Samples(
                TransferRate(
                    kind="network",
                    source=End(f"host:{a}"),
                    destination=End(f"host:{b}"),
                    median_gb_per_s=rate,
                    group=ALL_HOSTS_AT_ONCE if kind == ALL_HOSTS_AT_ONCE else None,
                    with_reverse=kind == "both",
                )
                for a, b, rate, kind in samples
            ),
        ),
        "on 2026-11-20",
    )


def test_a_measurement_of_these_hosts_counts_before_the_rate_of_their_cards() -> None:
    saved = measured(("n1", "n2", 1.1, None), ("n2", "n1", 1.1, None))
    rate = grpc(HostNetwork("n1", BARE, "eth0", 100.0), HostNetwork("n2", BARE, "eth0", 100.0), saved=saved)
    assert rate == NetworkRate("n1", GRPC_OF_TCP * 1.1, "1.1 GB/s of TCP measured on 2026-11-20")


def test_only_what_tcp_carried_counts_for_copies_of_tensorflow() -> None:
    saved = measured(("n1", "n2", 40.0, "both"), ("n2", "n1", 40.0, "both"))
    by_others = replace(
        saved.bandwidth,
        samples=tuple(replace(one, transport="NCCL") for one in saved.bandwidth.samples),
    )
    hosts = [HostNetwork("n1", BARE, "eth0", 25.0), HostNetwork("n2", BARE, "eth0", 25.0)]
    assert grpc(*hosts, saved=saved._replace(bandwidth=by_others)) == grpc(*hosts)


@pytest.mark.parametrize("interface", ["lo", None])
def test_an_unknown_rate_is_named_with_what_measures_it(interface: str | None) -> None:
    hosts = [HostNetwork("n1", two_switches(), "eth0"), HostNetwork("n2", BARE, interface)]
    why = network_rate(hosts, [[0], [0]], None, nccl=False)
    assert isinstance(why, str)
    assert "the network of n2 is not known" in why
    assert "gputopo bandwidth --network --save" in why


@pytest.mark.parametrize("gbit", [10.0, 400.0])
def test_copies_of_tensorflow_reach_a_share_of_a_card_and_at_most_1_gb_per_s(gbit: float) -> None:
    fast, slow = HostNetwork("n1", BARE, "eth0", 1000.0), HostNetwork("n2", BARE, "eth0", gbit)
    rate = grpc(fast, slow)
    assert rate.gb_per_s == pytest.approx(min(GRPC_OF_CARD * gbit / 8, 1.0))
    assert rate.host == ("n2" if gbit < 12.5 else "n1"), "the slowest one"


def rails(gbit_per_s: float | None = 400.0, hop: Hop = Hop.PIX) -> Machine:
    """Return four GPUs with a card each."""
    nics = [{gpu: hop if gpu == nic else Hop.SYS for gpu in range(4)} for nic in range(4)]
    return box(Hop.NODE, nics, gpus=4, gbit_per_s=gbit_per_s)


def nccl_of(machine: Machine, gpus: list[int], saved: SavedNetwork | None = None) -> float:
    hosts = [HostNetwork("n1", machine), HostNetwork("n2", machine)]
    found = network_rate(hosts, [gpus, gpus], saved, nccl=True)
    assert isinstance(found, NetworkRate), found
    return found.gb_per_s


def test_nccl_uses_the_cards_near_to_the_gpus_of_a_job_together() -> None:
    whole = nccl_of(rails(), [0, 1, 2, 3])
    assert whole == pytest.approx(NCCL_OF_CARDS * 200), "4 x 50 GB/s"
    assert nccl_of(rails(), [0, 3]) == pytest.approx(whole / 2)
    assert nccl_of(rails(hop=Hop.PXB), [0, 1, 2, 3]) == whole
    shared = [replace(rails(), nics=box(Hop.PIX, [hops], gpus=2, gbit_per_s=400.0).nics)
              for hops in ({0: Hop.PIX, 1: Hop.NODE}, {0: Hop.NODE, 1: Hop.PIX})]  # fmt: skip
    assert {nccl_of(one, [0, 1]) for one in shared} == {whole / 4}, "one of its GPUs is near"
    # With cards behind a host bridge, bytes go through host memory.
    assert nccl_of(rails(hop=Hop.NODE), [0, 1, 2, 3]) == pytest.approx(NCCL_BY_HOST * 200)


def test_nccl_by_sockets_reaches_a_share_of_a_slow_card_and_a_few_gb_per_s_of_a_fast_one() -> None:
    def sockets(gbit_per_s: float) -> float:
        found = network_rate([HostNetwork("n1", BARE, "eth0", gbit_per_s)], [[0]], None, nccl=True)
        assert isinstance(found, NetworkRate)
        return found.gb_per_s

    assert sockets(10.0) == pytest.approx(0.7 * 1.25)
    assert sockets(100.0) == sockets(400.0) < 6.0
    for machine in (BARE, rails(gbit_per_s=None)):
        why = network_rate([HostNetwork("n1", machine)], [[0]], None, nccl=True)
        assert "of n1 is not known" in str(why)


def test_an_all_reduce_of_nccl_tests_over_as_many_gpus_of_as_many_hosts_counts_before_cards() -> None:
    def all_reduce(ranks: int, hosts: int, size: int, rate: float) -> Sample:
        more = {"bytes": size, "bus_gb_per_s": rate, "ranks": ranks, "hosts": hosts}
        return CollectiveRate(kind="allreduce", source=HOSTS, destination=HOSTS, **more)  # type: ignore[arg-type]

    found = [all_reduce(8, 2, 2**30, 90.0), all_reduce(8, 2, 2**10, 3.0), all_reduce(8, 1, 2**30, 300.0)]
    saved = SavedNetwork(Bandwidth(source="live", samples=Samples(found)), "on 2026-11-20")
    assert nccl_of(rails(), [0, 1, 2, 3], saved) == 90.0
    assert nccl_of(rails(), [0, 1], saved) == nccl_of(rails(), [0, 1]), "of other GPUs it says nothing"
