"""What is expected beside each number, and its source: `golden/expected.txt`."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.copies import with_expectations
from gputopo.reference import fitting_links
from gputopo.values.bandwidth import Bandwidth, CopyRate, Expectation, Samples
from gputopo.values.machine import Ecc, Gpu, Machine, Mig, Pcie
from tests import there
from tests.findings.boxes import UP, every_gpu, gpu, node, pair, sound
from tests.findings.measured.machines import sample, seen
from tests.kit.golden import assert_golden

Case = tuple[Machine, list[CopyRate]]
NO_SLOTS = every_gpu(pcie=Pcie())(sound())  # nothing is known of the links of its cards


def expected(machine: Machine, *samples: CopyRate) -> tuple[CopyRate, ...]:
    return with_expectations(Bandwidth(source="live", samples=Samples(samples)), machine).copies


def copy(kind: Any, source: str, destination: str, rate: float = 5.0, **more: Any) -> CopyRate:
    with_host = "host" in (source, destination)
    return sample(kind, source, destination, rate, **(({"pinned": True} if with_host else {}) | more))


def h2d(rate: float = 5.0, index: int = 1, **more: Any) -> CopyRate:
    return copy("h2d", "host", f"gpu:{index}", rate, **more)


def local(rate: float, **more: Any) -> CopyRate:
    return copy("d2d_local", "gpu:0", "gpu:0", rate, **more)


def peers(*kinds: str, **more: Any) -> list[CopyRate]:
    """Copies from GPU 0 to GPU 1; `both direct`: in both directions at once."""
    return [
        copy("bidirectional", "gpu:0", "gpu:1", path=kind.removeprefix("both "), **more)
        if kind.startswith("both")
        else copy(f"p2p_{kind}", "gpu:0", "gpu:1", **more)
        for kind in kinds
    ]


def capture(name: str, **facts: Any) -> Machine:
    return Machine(source="bandwidthTest", gpus=(Gpu(index=0, name=name, **facts),))


def narrow(machine: Machine) -> Machine:
    """A bridge above all slots has four lanes."""
    return node(UP, max_speed_gt_per_s=8.0, max_width=4)(machine)


CASES: dict[str, Case] = {
    # The link seen under load counts, else the card and its slot, and never the idle link.
    "seen under load": (sound(), [h2d(conditions=(seen(1, pcie_gen=2, pcie_width=8),))]),
    "not seen under load": (
        gpu(1, pcie={"gen_now": 1})(sound()),
        [h2d(conditions=seen_) for seen_ in ((), (seen(1, readings=0, pcie_gen=1),), (seen(0, pcie_gen=1),))],
    ),
    "a slower bridge above the slot": (
        gpu(1, pcie={"limiting_hop": UP})(narrow(sound())), [h2d(conditions=(seen(1),))],
    ),
    "each direction, and their sum": (
        sound(),
        [h2d(), copy("d2h", "gpu:1", "host"), copy("bidirectional", "host", "gpu:1")],
    ),
    "what no source reports": (
        sound(),
        [
            h2d(pinned=False),
            h2d(group="h2d gpus:0,1"),
            h2d(bytes=4096),
            h2d(method="kernel_read"),
            h2d(numa_node=1),
            copy("host_memory", "node:0", "node:0"),
        ],
    ),
    # Without a link, the widest of the model is expected; the rate names others that fit.
    "a GTX 1070": (capture("GeForce GTX 1070"), [h2d(0.7635, 0)]),
    "a GTX 1080 Ti": (capture("GeForce GTX 1080 Ti"), [h2d(11.7269, 0)]),
    # The lanes that servers give a model are expected of what they carry.
    "an M60": (capture("Tesla M60"), [h2d(6.069, 0)]),
    "a faster M60": (capture("Tesla M60"), [h2d(11.9, 0)]),
    "a GB200": (capture("NVIDIA GB200"), [h2d(359.0, 0)]),
    # Where error correction may take some of GDDR less is no fault.
    "memory of a K80": (capture("Tesla K80"), [local(100.0)]),
    "memory of a K80 with ECC": (capture("Tesla K80", ecc=Ecc(mode=True)), [local(100.0)]),
    "HBM with ECC": (capture("Tesla V100-SXM2-16GB", ecc=Ecc(mode=True)), [local(100.0)]),
    "memory of a GTX 1080 Ti": (capture("GeForce GTX 1080 Ti"), [local(353.5)]),
    "memory of a P100": (capture("Tesla P100-PCIE-16GB"), [local(444.0)]),
    "memory of an instance": (capture("GeForce GTX 1080 Ti", mig=Mig(mode=True)), [local(50.0)]),
    # In every table of a tool, but not short copies of fast memory.
    "memory of an H200 in a table of pairs": (
        capture("NVIDIA H200"), [local(2880.0, bytes=None, group="Unidirectional P2P=Enabled")],
    ),
    # Pairs over PCIe expect the slower of what both cards were measured at, else what their links carry.
    "pairs of measured cards": (
        NO_SLOTS, [copy("d2h", "gpu:0", "host", 12.7), h2d(6.1), *peers("staged", "direct")],
    ),
    "pairs in unknown slots": (NO_SLOTS, peers("direct", "staged", "both direct", "both staged")),
    "pairs below a narrow bridge": (
        every_gpu(pcie={"limiting_hop": UP})(narrow(sound())),
        peers("direct", "staged", conditions=(seen(0), seen(1))),
    ),
    "NVLinks of an H200": (
        pair(0, 1, nvlinks=18)(sound(2, "H200")), peers("direct", "both direct", "staged"),
    ),
    "NVLinks of a V100": (
        pair(0, 1, nvlinks=2)(sound(2, "Tesla V100-SXM2-16GB")), peers("direct", "both direct", "staged"),
    ),
    # One direction while the other is used has an expectation, and one among others none.
    "one direction while the other is used": (
        sound(),
        [
            h2d(12.0),
            h2d(9.0, group="both gpu:1", with_reverse=True),
            h2d(9.0, group="all", with_reverse=True),
            h2d(9.0, 2, group="all", with_reverse=True),
        ],
    ),
    "an expectation that a session wrote stays": (
        sound(), [replace(h2d(), expectation=Expectation(gb_per_s=4.0))],
    ),
}  # fmt: skip


def told(one: CopyRate) -> str:
    usual = one.expectation
    rates = f"{usual.gb_per_s} (low {usual.low_gb_per_s})"
    return f"  {one.kind} {one.source} to {one.destination}: {rates}: {usual.source or None}"


def test_expectations_are_as_they_were() -> None:
    lines = list[str]()
    for name, (machine, samples) in CASES.items():
        lines += [name, *map(told, expected(machine, *samples))]
    assert_golden(Path(__file__).with_name("golden") / "expected.txt", "\n".join([*lines, ""]))


def test_the_other_links_that_fit_are_reported_and_none_that_the_card_cannot_have() -> None:
    names = [link.name for link in fitting_links(0.7635, [Gpu(index=0, name="GeForce GTX 1070")])]
    assert names == ["Gen3 x1", "Gen2 x2", "Gen1 x4"]
    assert fitting_links(3.3, [])[0].name == "Gen5 x1"
    assert fitting_links(359.0, []) == ()  # NVLink-C2C of a GH200 is no PCIe


SLOTS: dict[str, Machine] = {
    "known": sound(),
    "unknown": NO_SLOTS,
    "NVLink": pair(0, 1, nvlinks=2)(sound()),
}


@pytest.mark.parametrize("slot", SLOTS)
def test_every_kind_of_copy_that_has_an_expectation_has_a_lower_limit(slot: str) -> None:
    with_host = [copy("d2h", "gpu:0", "host"), copy("bidirectional", "host", "gpu:0"), h2d(index=0)]
    for one in (*with_host, local(5.0), *peers("direct", "staged", "both direct", "both staged")):
        (found,) = expected(SLOTS[slot], one)
        usual, low = there(found.expectation.gb_per_s), there(found.expectation.low_gb_per_s)
        assert 0.699 * usual <= low <= usual, one.kind
