"""Which facts the rates between the places of a machine are taken from."""

from itertools import combinations, permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.copies import BIDIRECTIONAL_SHARE
from gputopo.planner import Request, plan
from gputopo.prediction import (
    Paths,
    paths_of,
)
from gputopo.prediction.links import Flows, slowest_of
from gputopo.reference import expected_link
from gputopo.values.bandwidth import Bandwidth, CopyRate, Kind, Sample, Samples
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Hop, Link, Machine, Pcie, PciNode
from tests import there

BYTES = 2**29


def machine(
    name: str | None,
    count: int = 2,
    *,
    hop: Hop | None = Hop.PHB,
    nvlinks: int | None = 0,
    samples: tuple[Sample, ...] = (),
    widths: tuple[int | None, ...] = (),
    p2p: str | None = None,
) -> Machine:
    """Return a machine whose GPUs and pairs are all alike."""
    lanes = widths or (16,) * count
    return Machine(
        source="invented",
        gpus=tuple(
            Gpu(
                index=index,
                name=name,
                pcie=Pcie(gen_max=3 if width else None, width_max=width, width_now=width),
            )
            for index, width in enumerate(lanes)
        ),
        links=tuple(
            Link(a=a, b=b, hop=hop, nvlinks=nvlinks, p2p_read=p2p) for a, b in combinations(range(count), 2)
        ),
        bandwidth=Bandwidth(source="live", samples=Samples(samples)) if samples else None,
    )


def copy(kind: Kind, source: str, destination: str, rate: float, **facts: object) -> CopyRate:
    """Return a large copy by the copy engine."""
    return msgspec.convert(
        {
            "kind": kind,
            "source": End(source),
            "destination": End(destination),
            "bytes": BYTES,
            "method": "copy_engine",
            "median_gb_per_s": rate,
            **facts,
        },
        CopyRate,
    )


def test_measured_copies_come_before_what_links_and_models_should_reach() -> None:
    """Of both directions; an invalid number counts as none."""
    found = paths_of(
        machine(
            "Tesla V100-PCIE-16GB",
            samples=(
                copy("h2d", "host", "gpu:0", 11.0),
                copy("d2h", "gpu:0", "host", 12.0),
                copy("h2d", "host", "gpu:1", 99.0, invalid="above_link"),
            ),
        )
    )
    row = there(expected_link(3, 16))

    assert found.hosts[0][:3] == (12.0, 11.0, "measured")
    assert found.hosts[1][:3] == (row.copy_to_host_gb_per_s, row.copy_to_device_gb_per_s, "link")


def test_no_facts_are_called_an_assumption_and_named() -> None:
    """A card of an unknown model in an unknown slot, at an unknown distance."""
    nothing = machine(None, hop=None, nvlinks=None, widths=(None, None))
    found = paths_of(nothing)

    assert {host.basis for host in found.hosts.values()} == {"assumed"}
    assert found.pair(0, 1).basis == "assumed"
    one = paths_of(machine(None, widths=(16, None)))
    assert (one.hosts[0].basis, one.pair(0, 1).basis) == ("link", "assumed")
    assert not_known(nothing) == [
        "PCIe link, and no known model, of GPUs 0-1",
        "PCIe hops between GPUs 0-1",
        "copy rates of this machine",
    ]


def test_copies_are_staged_where_the_driver_does_not_allow_direct_ones() -> None:
    """By the model, or by the status that the driver reports; staged ones load the uplink and memory."""
    assert paths_of(machine("GeForce RTX 4090")).pair(0, 1).kind == "staged"
    assert paths_of(machine("GeForce RTX 4090", p2p="OK")).pair(0, 1).kind == "direct"
    found = paths_of(machine("Tesla V100-PCIE-16GB", hop=Hop.PIX, p2p="CNS"))
    direct = paths_of(machine("Tesla V100-PCIE-16GB", hop=Hop.PIX, p2p="OK"))

    assert found.pair(0, 1).gb_per_s == 0.87 * min(found.hosts[0][:2]) < direct.pair(0, 1).gb_per_s
    newest = paths_of(machine("GeForce RTX 5090", widths=(None, None))).pair(0, 1)
    assert newest[:2] == ("staged", 38.0)
    assert [key[0] for key in _loaded(found)] == ["up", "down", "pair", "memory", "uplink up", "uplink down"]
    assert [key[0] for key in _loaded(direct)] == ["up", "down", "pair"]


def test_copies_that_access_control_redirects_load_the_uplink_of_their_switch() -> None:
    """As far as a host bridge, up to it and down again."""
    bridges = [
        PciNode(address="0000:00:01.0", root="0000:00", kind="bridge", max_speed_gt_per_s=8.0, max_width=16)
    ]
    for port in range(2):
        above = f"0000:01:0{port}.0"
        bridges += [
            PciNode(address=above, root="0000:00", parent="0000:00:01.0", kind="bridge", acs=True),
            PciNode(address=f"0000:0{port + 2}:00.0", root="0000:00", parent=above, kind="gpu"),
        ]
    before = machine("Tesla V100-PCIE-16GB", hop=Hop.PIX)
    gpus = (msgspec.structs.replace(gpu, pci_address=f"0000:0{gpu.index + 2}:00.0") for gpu in before.gpus)
    found = paths_of(msgspec.structs.replace(before, gpus=tuple(gpus), pci=tuple(bridges)))

    assert found.pair(0, 1).kind == "redirected"
    assert [key[0] for key in _loaded(found)] == ["up", "down", "pair", "uplink up", "uplink down"]


def test_a_gpu_below_nvswitches_has_its_nvlinks_once_for_all_peers() -> None:
    """Every pair has all links; seven peers at once share those of the sender."""
    switched = paths_of(machine("A100-SXM4-40GB", 8, nvlinks=12))
    half = paths_of(machine("A100-SXM4-40GB", 8, nvlinks=6))
    meshed = paths_of(machine("Tesla V100-SXM2-16GB", 4, nvlinks=2))

    assert half.ports[0] == pytest.approx(2 * half.pair(0, 1).gb_per_s)
    assert set(switched.ports) == set(range(8))
    resource, seconds = _slowest(switched, [(0, other) for other in range(1, 8)])
    assert resource == ("nvlink out", 0)
    assert seconds == pytest.approx(7 * _slowest(switched, [(0, 1)])[1])
    assert meshed.ports == {}
    assert _slowest(meshed, [(0, 1), (0, 2)])[1] == pytest.approx(_slowest(meshed, [(0, 1)])[1])


def test_both_directions_slow_one_another_down_as_long_as_both_have_bytes() -> None:
    flows = Flows(found := paths_of(machine("Tesla V100-PCIE-16GB")))
    for source, destination in ((0, None), (0, None), (0, None), (None, 0)):
        flows.between(source, destination)
    host = found.hosts[0]
    alone = {("up", 0): 3 / host.up, ("down", 0): 1 / host.down}
    more = (1 / BIDIRECTIONAL_SHARE - 1) / host.down
    assert {link: 1e9 * load.seconds for link, load in flows.loads.items()} == pytest.approx(
        {link: seconds + more for link, seconds in alone.items()}
    )


def test_nvlinks_are_those_of_the_model_where_no_source_counts_them() -> None:
    """All pairs of eight A100 have twelve, of four A100 four."""
    eight, four = (paths_of(machine("A100-SXM4-40GB", count, nvlinks=None)) for count in (8, 4))

    assert eight.pair(0, 1).kind == four.pair(0, 1).kind == "nvlink"
    assert eight.pair(0, 1).gb_per_s == pytest.approx(3 * four.pair(0, 1).gb_per_s)
    assert four.ports == {}


def test_two_gpus_of_one_board_share_what_one_of_them_has() -> None:
    """K80 and M60: a switch on the board, one link to the host."""
    found = paths_of(machine("Tesla K80", hop=Hop.INTERNAL))

    (board,) = found.uplinks
    assert board.gpus == {0, 1}
    assert board.gb_per_s == max(found.hosts[0][:2])


@given(
    st.lists(st.sampled_from((1, 4, 8, 16)), min_size=3, max_size=3),
    st.integers(0, 2),
    st.sampled_from(list(Hop)),
    st.sampled_from(("Tesla V100-PCIE-16GB", "GeForce RTX 4090", "Tesla K80")),
    st.floats(1.0, 2.0),
)
def test_a_wider_slot_makes_no_copy_slower(
    widths: list[int], gpu: int, hop: Hop, name: str, factor: float
) -> None:
    """Neither to the host nor to any GPU, nor what all of them carry at once."""
    wider = [max(width, 16) if index == gpu else width for index, width in enumerate(widths)]
    before, after = (paths_of(machine(name, 3, hop=hop, widths=tuple(lanes))) for lanes in (widths, wider))
    every = list(permutations(range(3), 2))

    for copies in (every, *([one] for one in every)):
        assert _slowest(after, copies)[1] <= _slowest(before, copies)[1] * (1 + 1e-9)


def _slowest(paths: Paths, copies: list[tuple[int, int]]) -> tuple[tuple[str | int, ...], float]:
    flows = Flows(paths)
    for a, b in copies:
        flows.between(a, b)
    resource, seconds = slowest_of(flows.loads)
    assert resource is not None
    return resource, seconds


def _loaded(paths: Paths) -> list[tuple[str | int, ...]]:
    """Return what a copy from GPU 0 to GPU 1 loads."""
    flows = Flows(paths)
    flows.between(0, 1)
    return list(flows.seconds)


def not_known(box: Machine) -> list[str]:
    """Return what a plan says that its prediction lacks, without how to get it."""
    asked = Request(model="resnet50", single_gpu_images_per_sec=(100.0,))
    reasons = plan(box, asked).choice.reasons
    lacks = next((reason for reason in reasons if reason.startswith("not known: ")), "")
    return [fact.partition(" (")[0] for fact in lacks.removeprefix("not known: ").split("; ") if fact]
