from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo import captures, planner
from gputopo.copies.network import AT_ONCE
from gputopo.planner.network import (
    Cards,
    HostNetwork,
    SavedNetwork,
    fastest_port,
    port_of,
    rates_in_words,
    rates_of,
)
from gputopo.planner.request import Request
from gputopo.prediction.links.hosts import GRPC_GB_PER_S, GRPC_OF_CARD, rate_of_card
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.machine import Hop, Machine
from tests.planner.joint_machines import box, two_switches

TOPO = Path(__file__).parents[3] / "shared/captures/topo"
HOPS = st.sampled_from([Hop.PIX, Hop.PXB, Hop.PHB, Hop.NODE, Hop.SYS])


def chosen(machine: Machine, request: Request) -> tuple[int, ...]:
    return planner.plan(machine, request, keep=1).choice.gpus


@pytest.mark.parametrize("model", [None, "resnet50"])
def test_of_sets_that_are_as_good_the_one_near_the_card_is_taken_and_the_reason_says_so(
    model: str | None,
) -> None:
    alone = Request(num_gpus=4, model=model)
    assert chosen(two_switches(), alone) == (0, 1, 2, 3), "no other hosts: the card does not matter"
    plan = planner.plan(two_switches(), msgspec.structs.replace(alone, nic="eth0"))
    assert plan.choice.gpus == (4, 5, 6, 7)
    assert "GPUs 4-7 are on the same PCIe switch as mlx5_0" in plan.choice.reasons
    assert any("then the distance to the network card" in one for one in plan.choice.reasons)


def test_a_single_gpu_is_the_nearest_to_the_card() -> None:
    plan = planner.plan(two_switches(), Request(num_gpus=1, nic="eth0"))
    assert plan.choice.gpus == (4,)
    assert any("the nearest to the network card" in one for one in plan.choice.reasons)


def test_near_gpus_come_before_a_near_card() -> None:
    card = {0: Hop.SYS, 1: Hop.SYS, 2: Hop.PIX, 3: Hop.SYS}
    pairs = {pair: Hop.PIX if pair == (0, 1) else Hop.PHB for pair in combinations(range(4), 2)}
    assert chosen(box(pairs, [card], gpus=4), Request(num_gpus=2, nic="eth0")) == (0, 1)


def test_with_a_card_for_each_pair_of_gpus_no_gpu_is_nearer_and_each_card_is_named() -> None:
    rails = [{gpu: Hop.PIX if gpu // 2 == rail else Hop.SYS for gpu in range(4)} for rail in range(2)]
    cards = Cards(box(Hop.PHB, rails, gpus=4), "")
    assert not cards.decide(range(4))
    assert cards.reasons(range(4)) == [
        "each GPU is on the same PCIe switch as a card: mlx5_0 0-1, mlx5_1 2-3"
    ]


def test_the_card_of_the_network_counts_alone_where_its_interface_is_known() -> None:
    rails = [{gpu: Hop.PIX if gpu // 2 == rail else Hop.SYS for gpu in range(4)} for rail in range(2)]
    machine = box(Hop.PHB, rails, gpus=4)
    assert chosen(machine, Request(num_gpus=2, nic="eth1")) == (2, 3)
    assert chosen(machine, Request(num_gpus=2, nic="")) == (0, 1)
    found = port_of(machine, "eth1")
    assert found is not None
    assert found[0].index == 1
    assert port_of(machine, "lo") is None


def test_a_card_without_a_link_does_not_count() -> None:
    down = two_switches()
    ports = tuple(msgspec.structs.replace(one, operstate="down") for one in down.nics[0].ports or ())
    down = msgspec.structs.replace(down, nics=(msgspec.structs.replace(down.nics[0], ports=ports),))
    assert chosen(down, Request(num_gpus=4, nic="")) == (0, 1, 2, 3)
    assert fastest_port(down) is None


@given(
    st.lists(HOPS, min_size=6, max_size=6),
    st.lists(HOPS, min_size=4, max_size=4),
    st.integers(1, 4),
)
def test_the_predicted_speed_is_never_worse_for_the_card(
    hops: list[Hop], to_card: list[Hop], size: int
) -> None:
    machine = box(dict(zip(combinations(range(4), 2), hops, strict=True)), [dict(enumerate(to_card))], gpus=4)
    asked = Request(model="vgg16", num_gpus=size)
    without = planner.plan(machine, asked, keep=1).choice
    near = planner.plan(machine, msgspec.structs.replace(asked, nic="eth0"), keep=1).choice
    assert near.images_per_sec == without.images_per_sec
    assert near.step_ms == without.step_ms


@pytest.mark.skipif(not TOPO.is_dir(), reason="no captures beside the repository")
@pytest.mark.parametrize(
    ("file", "size", "gpus", "reason"),
    [
        (
            "h200-8gpu-8nic-epyc9534_id71117534600.txt",
            4,
            None,
            "each GPU is on the same PCIe switch as a card",
        ),
        ("dgx1-v100-8gpu-4nic-indented_ucx-py.txt", 2, None, "on the same PCIe switch as"),
        (
            "v100-8gpu-2nic-ragged-tabs_dlperf.txt",
            2,
            (2, 3),
            "GPUs 2-3 are on the same PCIe switch as mlx5_0",
        ),
    ],
)
def test_published_matrices_name_the_card_that_is_near(
    file: str, size: int, gpus: tuple[int, ...] | None, reason: str
) -> None:
    machine = captures.load([str(TOPO / file)])
    plan = planner.plan(machine, Request(num_gpus=size, nic=""), keep=1)
    bare = planner.plan(machine, Request(num_gpus=size), keep=1)
    assert gpus is None or plan.choice.gpus == gpus
    assert any(reason in one for one in plan.choice.reasons)
    cards = Cards(machine, "")
    near = [sorted(map(cards.key, one.choice.gpus), reverse=True) for one in (plan, bare)]
    assert near[0] <= near[1]


BARE = Machine(source="live")


def measured(*samples: tuple[str, str, float, str | None]) -> SavedNetwork:
    return SavedNetwork(
        Bandwidth(
            source="live",
            samples=tuple(
                Sample(
                    kind="network",
                    source=f"host:{a}",
                    destination=f"host:{b}",
                    median_gb_per_s=rate,
                    group=AT_ONCE if kind == AT_ONCE else None,
                    with_reverse=kind == "both",
                )
                for a, b, rate, kind in samples
            ),
        ),
        "on 2026-11-20",
    )


def test_a_measurement_of_these_hosts_counts_before_the_rate_of_their_cards() -> None:
    saved = measured(("n1", "n2", 1.1, None), ("n2", "n1", 1.1, None))
    rates = rates_of([HostNetwork("n1", BARE, "eth0", 100.0), HostNetwork("n2", BARE, "eth0", 100.0)], saved)
    assert not isinstance(rates, str)
    assert {one.basis for one in rates} == {"measured"}
    assert rates[0].low < rates[0].gb_per_s <= 1.1
    assert "1.1 GB/s of TCP measured on 2026-11-20" in rates_in_words(["n1", "n2"], rates)[0]


def test_what_hosts_send_while_all_do_counts_before_what_one_sends_alone() -> None:
    saved = measured(
        ("n1", "n2", 1.2, None), ("n2", "n1", 1.2, None),
        ("n1", "n2", 1.0, "both"), ("n2", "n1", 0.9, "both"),
        ("n1", "n2", 0.5, AT_ONCE), ("n2", "n1", 0.4, AT_ONCE),
    )  # fmt: skip
    rates = rates_of([HostNetwork("n1", BARE), HostNetwork("n2", BARE)], saved)
    assert not isinstance(rates, str)
    assert rates[0].high == pytest.approx(0.4), "the slower direction"


@pytest.mark.parametrize("transport", ["NCCL", "RDMA write"])
def test_only_what_tcp_carried_counts_for_copies_of_tensorflow(transport: str) -> None:
    saved = measured(("n1", "n2", 40.0, "both"), ("n2", "n1", 40.0, "both"))
    by_others = replace(
        saved.bandwidth,
        samples=tuple(replace(one, transport=transport) for one in saved.bandwidth.samples),
    )
    hosts = [HostNetwork("n1", BARE, "eth0", 25.0), HostNetwork("n2", BARE, "eth0", 25.0)]
    assert rates_of(hosts, saved._replace(bandwidth=by_others)) == rates_of(hosts, None)


def test_a_card_is_read_by_its_interface_else_the_fastest_one_is_assumed() -> None:
    machine = two_switches()
    rates = [rates_of([HostNetwork("n1", machine, name)], None) for name in ("eth0", None)]
    named, assumed = (one[0] for one in rates if not isinstance(one, str))
    assert named == rate_of_card(25.0, "mlx5_0")
    assert "the fastest card, mlx5_0, 25 Gbit/s" in assumed.says
    assert named.gb_per_s == assumed.gb_per_s


@pytest.mark.parametrize("interface", ["lo", None])
def test_an_unknown_rate_is_named_with_what_measures_it(interface: str | None) -> None:
    why = rates_of([HostNetwork("n1", two_switches(), "eth0"), HostNetwork("n2", BARE, interface)], None)
    assert isinstance(why, str)
    assert "the network of n2 is not known" in why
    assert "gputopo bandwidth --network --save" in why


@pytest.mark.parametrize("gbit", [1.0, 10.0, 25.0, 100.0, 400.0])
def test_copies_of_tensorflow_reach_a_share_of_a_card_and_never_100_gbit_per_s(gbit: float) -> None:
    rate = rate_of_card(gbit, "eth0")
    assert rate.low <= rate.gb_per_s <= rate.high <= GRPC_GB_PER_S[2] < 100 / 8
    assert rate.gb_per_s <= GRPC_OF_CARD[1] * gbit / 8
