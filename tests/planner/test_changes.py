"""What a changed machine would do: `--what-if`."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, effect_of_changes, plan
from gputopo.prediction import paths_of
from gputopo.values.bandwidth import Bandwidth, CopyRate, Samples
from gputopo.values.ends import End
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Hop, Link, Machine, Pcie, PciNode
from gputopo.values.run.plan import Plan, WhatIf
from tests import there
from tests.matrices import machine_of

REQUEST = Request(model="alexnet", batch_size=128)


def choose(machine: Machine, request: Request) -> Plan:
    return plan(machine, request, keep=1)


def answer(machine: Machine, *changes: str, request: Request = REQUEST) -> WhatIf:
    return effect_of_changes(machine, request, changes, choose)


def planned(machine: Machine, *changes: str) -> list[Machine]:
    """Return the machines that are planned for: before and after the changes, or after each that is tried."""
    machines = []

    def choose_and_keep(machine: Machine, request: Request) -> Plan:
        machines.append(machine)
        return choose(machine, request)

    effect_of_changes(machine, REQUEST, changes, choose_and_keep)
    return machines


def widths_of(machine: Machine) -> list[int | None]:
    return [gpu.pcie.width_max for gpu in machine.gpus]


def box(*widths: int, name: str = "GeForce GTX 1080 Ti", measured: bool = False) -> Machine:
    """Return a machine whose GPUs have links of these widths, all of generation 3."""
    names = " ".join
    matrix = "\n".join(
        names("X" if a == b else "PHB" for b in range(len(widths))) for a in range(len(widths))
    )
    machine = machine_of(matrix)
    gpus = tuple(
        Gpu(index=index, name=name, pcie=Pcie(gen_max=3, width_now=width, width_max=width))
        for index, width in enumerate(widths)
    )
    machine = msgspec.structs.replace(machine, gpus=gpus)
    if not measured:
        return machine
    samples = []
    for index, host in paths_of(machine).hosts.items():
        place = f"gpu:{index}"
        up, down = 0.9 * host.up, 0.9 * host.down
        samples += [
            CopyRate(
                kind="h2d", source=End("host"), destination=End(place), pinned=True, median_gb_per_s=down
            ),
            CopyRate(kind="d2h", source=End(place), destination=End("host"), pinned=True, median_gb_per_s=up),
        ]
    return msgspec.structs.replace(machine, bandwidth=Bandwidth(source="a test", samples=Samples(samples)))


@pytest.mark.parametrize("measured", [False, True])
def test_a_narrow_card_in_a_wide_slot_is_as_fast_as_its_peers(*, measured: bool) -> None:
    machine = box(16, 16, 16, 4, measured=measured)
    hosts = paths_of(planned(machine, "gpu3: x16")[1]).hosts
    assert hosts[3].up == pytest.approx(hosts[0].up)
    assert hosts[3].down == pytest.approx(hosts[0].down)
    found = answer(machine, "gpu3: x16")
    assert found.share > 0.05
    assert (found.before.images_per_sec or 0) < (found.after.images_per_sec or 0)
    assert any("Gen3 x16 instead of Gen3 x4" in words for words in found.basis)


def test_several_changes_are_made_in_their_order() -> None:
    assert widths_of(planned(box(16, 16, 16, 16), "gpus 0-1, 3: x4")[1]) == [4, 4, 16, 4]
    assert widths_of(planned(box(16, 16), "all: x4", "gpu0: x16")[1]) == [16, 4]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("gpu9: x16", "no such GPU"),
        ("faster", "does not know"),
        ("gpu0: x3", "no PCIe link x3"),
        ("gpu0: gen6", "3 at most, not 6"),
        ("nvlink 0-1", "have no free NVLinks"),
        ("gpu0: GTX 9999", "does not know the GPU"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(change: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        answer(box(16, 16), change)
    assert refused.value.hint


def test_another_model_has_its_own_speed_and_link() -> None:
    after = planned(box(16, 16), "all: RTX 2080 Ti")[1]
    assert {gpu.name for gpu in after.gpus} == {"GeForce RTX 2080 Ti"}
    assert answer(box(16, 16), "all: RTX 2080 Ti").share > 0.02
    # A card of 16 lanes has 8 in a slot that has no more; below one of 8 lanes the slot may have 16.
    for name, width in (("GeForce GTX 1080 Ti", 8), ("GeForce RTX 4060 Ti", 16)):
        assert widths_of(planned(box(8, name=name), "all: RTX 2080 Ti")[1]) == [width]


def test_speeds_that_were_given_are_not_those_of_another_model() -> None:
    request = msgspec.structs.replace(REQUEST, single_gpu_images_per_sec=(100.0,))
    assert (answer(box(16, 16), "all: RTX 2080 Ti", request=request).after.images_per_sec or 0) > 250
    assert answer(box(16, 4), "gpu1: x16", request=request).after.images_per_sec
    with pytest.raises(UsageError, match="which --what-if replaces"):
        answer(box(16, 16), "gpu0: RTX 2080 Ti", request=request)


def test_nvlink_joins_two_gpus_by_all_free_links() -> None:
    machine = box(16, 16, name="GeForce RTX 3090")
    after = planned(machine, "nvlink 0-1")[1]
    assert there(after.link(0, 1)).nvlinks == 4
    assert paths_of(after).pair(0, 1).kind == "nvlink"
    with pytest.raises(UsageError, match="no free NVLinks"):
        answer(after, "nvlink 0-1")
    assert answer(machine).changes == ("nvlink 0-1",)
    assert answer(after).changes == ()


@pytest.mark.parametrize(("count", "tried"), [(3, 3), (5, 0)])
def test_every_bridge_between_few_gpus_is_tried(count: int, tried: int) -> None:
    machines = planned(box(*[16] * count, name="GeForce RTX 3090"))
    bridges = [[(link.a, link.b) for link in machine.links if link.nvlinks] for machine in machines]
    assert len({pair for pairs in bridges for pair in pairs}) == tried


def tree(*, acs: bool = False) -> Machine:
    """Return two GPUs behind a switch, and a third in a port of another socket."""
    root = {"kind": "bridge", "max_speed_gt_per_s": 8.0, "max_width": 16, "acs": False}
    ports = {
        "0000:00:01.0": ("pci0000:00", None, 0, 16),
        "0000:01:00.0": ("pci0000:00", "0000:00:01.0", 0, 16),
        "0000:02:00.0": ("pci0000:00", "0000:01:00.0", 0, 16),
        "0000:02:01.0": ("pci0000:00", "0000:01:00.0", 0, 16),
        "0000:80:02.0": ("pci0000:80", None, 1, 4),
    }
    nodes = [
        msgspec.convert(
            {**root, "address": address, "root": at, "parent": parent, "numa_node": node, "max_width": width},
            PciNode,
        )
        for address, (at, parent, node, width) in ports.items()
    ]
    nodes = [msgspec.structs.replace(one, acs=acs and one.address.startswith("0000:02:0")) for one in nodes]
    places = {"0000:03:00.0": "0000:02:00.0", "0000:04:00.0": "0000:02:01.0", "0000:81:00.0": "0000:80:02.0"}
    roots = {"0000:80:02.0": "pci0000:80"}
    cards = [
        PciNode(address=address, root=roots.get(port, "pci0000:00"), parent=port, kind="gpu")
        for address, port in places.items()
    ]
    hops = {(0, 1): Hop.PIX, (0, 2): Hop.SYS, (1, 2): Hop.SYS}
    return Machine(
        source="a test",
        gpus=tuple(
            Gpu(
                index=index,
                name="Tesla P100-PCIE-16GB",
                pci_address=address,
                pcie=Pcie(gen_max=3, width_now=width, width_max=width),
            )
            for index, (address, width) in enumerate(zip(places, (16, 16, 4), strict=True))
        ),
        links=tuple(Link(a=a, b=b, hop=hop) for (a, b), hop in hops.items()),
        pci=(*nodes, *cards),
    )


def test_without_acs_gpus_of_a_switch_copy_directly() -> None:
    with_acs, without = tree(acs=True), tree()
    assert paths_of(with_acs).pair(0, 1).gb_per_s < paths_of(without).pair(0, 1).gb_per_s
    assert paths_of(planned(with_acs, "acs off")[1]) == paths_of(planned(without, "acs off")[0])
    redirects = [any(node.acs for node in machine.pci) for machine in planned(with_acs)]
    assert False in redirects, "it is tried"


@pytest.mark.parametrize(
    ("widths", "best"),
    [
        ((16, 16, 16, 4), [("gpu3: x16",)]),
        ((1, 1), [("all: x16",), ("gpu0: x16",)]),  # no card alone makes them faster
        ((16, 16), [()]),  # all cards have their lanes
    ],
)
def test_the_change_that_pays_most_is_found(widths: tuple[int, ...], best: list[tuple[str, ...]]) -> None:
    found = answer(box(*widths))
    assert found.changes in best
    assert not found.asked
    assert found.share > 0.05 if found.changes else found.share == 0.0


lanes = st.sampled_from([1, 4, 8, 16])


@given(st.lists(lanes, min_size=2, max_size=3), st.booleans(), st.integers(0, 2), lanes)
def test_an_improved_link_never_lowers_the_prediction(
    widths: list[int], measured: bool, index: int, width: int
) -> None:
    index %= len(widths)
    batches = (128,) * len(widths)  # with a number for each GPU, no smaller batches are tried
    request = msgspec.structs.replace(REQUEST, batch_size=batches)
    share = answer(box(*widths, measured=measured), f"gpu{index}: x{width}", request=request).share
    assert share >= 0 or width < widths[index]
    assert share <= 0 or width > widths[index]
