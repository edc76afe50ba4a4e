"""What is expected beside each number, and its source."""

from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.copies import with_expectations
from gputopo.reference import expected_link, expected_nvlink, fitting_links
from gputopo.values.bandwidth import Bandwidth, CopyLatency, CopyRate, Expectation, Samples
from gputopo.values.ends import End
from gputopo.values.machine import Ecc, Gpu, Machine, Mig, Pcie
from tests import there
from tests.findings.boxes import UP, every_gpu, gpu, node, pair, sound
from tests.findings.measured.machines import sample, seen


def expected(machine: Machine, *samples: CopyRate) -> tuple[CopyRate, ...]:
    return with_expectations(Bandwidth(source="live", samples=Samples(samples)), machine).copies


def one(machine: Machine, kind: Any, source: str, destination: str, **more: Any) -> CopyRate:
    return expected(machine, sample(kind, source, destination, 5.0, **more))[0]


def h2d(machine: Machine, **more: Any) -> CopyRate:
    return one(machine, "h2d", "host", "gpu:1", **({"pinned": True} | more))


def row(generation: int, width: int) -> Any:
    found = there(expected_link(generation, width))
    return found


def test_the_link_seen_under_load_counts_and_is_named() -> None:
    found = h2d(sound(), conditions=(seen(1, pcie_gen=2, pcie_width=8),))
    assert found.expectation.gb_per_s == row(2, 8).copy_to_device_gb_per_s
    assert found.expectation.low_gb_per_s == row(2, 8).copy_low_gb_per_s
    assert "Gen2 x8 observed under load" in there(found.expectation.source)


def test_without_a_reading_under_load_the_card_and_its_slot_count_and_never_the_idle_link() -> None:
    machine = gpu(1, pcie={"gen_now": 1})(sound())
    for conditions in ((), (seen(1, readings=0, pcie_gen=1),), (seen(0, pcie_gen=1),)):
        found = h2d(machine, conditions=conditions)
        assert found.expectation.gb_per_s == row(3, 16).copy_to_device_gb_per_s


def test_a_slower_bridge_above_the_slot_limits() -> None:
    machine = gpu(1, pcie={"limiting_hop": UP})(node(UP, max_speed_gt_per_s=8.0, max_width=4)(sound()))
    found = h2d(machine, conditions=(seen(1),))
    assert found.expectation.gb_per_s == row(3, 4).copy_to_device_gb_per_s
    assert UP in (found.expectation.source or "")


def test_copies_to_the_host_have_their_own_figure_and_both_directions_their_sum() -> None:
    to_host = one(sound(), "d2h", "gpu:1", "host", pinned=True)
    assert to_host.expectation.gb_per_s == row(3, 16).copy_to_host_gb_per_s
    both = one(sound(), "bidirectional", "host", "gpu:1", pinned=True)
    link = row(3, 16)
    whole = link.copy_to_device_gb_per_s + link.copy_to_host_gb_per_s
    assert both.expectation.gb_per_s == pytest.approx(0.9 * whole, abs=0.001)


@pytest.mark.parametrize(
    "more",
    [
        {"pinned": False},
        {"group": "h2d gpus:0,1"},
        {"bytes": 4096},
        {"method": "kernel_read"},
        {"numa_node": 1},
    ],
)
def test_what_no_source_reports_has_no_expectation(more: dict[str, Any]) -> None:
    assert h2d(sound(), **more).expectation.gb_per_s is None


def test_host_memory_and_latency_have_none() -> None:
    memory = one(sound(), "host_memory", "node:0", "node:0")
    latency = CopyLatency(source=End("gpu:0"), destination=End("gpu:1"), median_us=7.0)
    assert memory.expectation.gb_per_s is None
    bandwidth = Bandwidth(source="live", samples=Samples((latency,)))
    assert with_expectations(bandwidth, sound()) == bandwidth


def capture(name: str) -> Machine:
    return Machine(source="bandwidthTest", gpus=(Gpu(index=0, name=name),))


@pytest.mark.parametrize(
    ("name", "rate", "first"),
    [
        ("GeForce GTX 1070", 0.7635, "Gen3 x1"),
        ("GeForce GTX 1070", 0.3529, "Gen2 x1"),
        ("GeForce GTX 1080", 6.2345, "Gen3 x8"),
        ("GeForce GTX 1080 Ti", 11.7269, "Gen3 x16"),
        ("H200", 55.3, "Gen5 x16"),
    ],
)
def test_where_no_link_is_reported_the_widest_of_the_model_is_expected_and_the_rate_names_others(
    name: str, rate: float, first: str
) -> None:
    (found,) = expected(capture(name), sample("h2d", "host", "gpu:0", rate, pinned=True))
    widest = {"GeForce GTX 1080 Ti": row(3, 16), "H200": row(5, 16)}.get(name, row(3, 16))
    assert found.expectation.gb_per_s == widest.copy_to_device_gb_per_s
    assert found.expectation.low_gb_per_s == widest.copy_low_gb_per_s
    source = found.expectation.source or ""
    assert f"{widest.name}, the widest that {name} supports (gpus.csv); its slot is unknown" in source
    assert ("the rate fits" in source) == (first != widest.name)
    assert first in source


@pytest.mark.parametrize(("rate", "width"), [(6.069, 8), (3.1, 8), (11.9, 16)])
def test_the_lanes_that_servers_give_a_model_are_expected_of_what_they_carry(rate: float, width: int) -> None:
    (found,) = expected(capture("Tesla M60"), sample("h2d", "host", "gpu:0", rate, pinned=True))
    assert found.expectation.gb_per_s == row(3, width).copy_to_device_gb_per_s
    assert ("as servers usually give Tesla M60" in (found.expectation.source or "")) == (width == 8)


def test_the_link_of_an_unknown_model_is_inferred_from_the_number_and_marked_so() -> None:
    (found,) = expected(capture("Unheard Of"), sample("h2d", "host", "gpu:0", 6.2345, pinned=True))
    assert found.expectation.gb_per_s is None  # a number is no expectation of itself
    assert found.expectation.source == (
        "link not reported; inferred from the rate: Gen5 x2 (or Gen4 x4, Gen3 x8, Gen2 x16)"
    )


@pytest.mark.parametrize("name", ["GH200 480GB", "NVIDIA GB200"])
def test_copies_faster_than_pcie_are_of_another_link(name: str) -> None:
    (found,) = expected(capture(name), sample("h2d", "host", "gpu:0", 359.0, pinned=True))
    assert found.expectation.gb_per_s is None


def test_the_other_links_that_fit_are_reported_and_none_that_the_card_cannot_have() -> None:
    names = [link.name for link in fitting_links(0.7635, [Gpu(index=0, name="GeForce GTX 1070")])]
    assert names == ["Gen3 x1", "Gen2 x2", "Gen1 x4"]
    assert fitting_links(3.3, [])[0].name == "Gen5 x1"
    assert fitting_links(359.0, []) == ()  # NVLink-C2C of a GH200 is no PCIe


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("GeForce GTX 1070", 3),
        ("Tesla V100-PCIE-16GB", 3),
        ("NVIDIA Tesla V100-PCIE-16GB", 3),
        ("Tesla V100-FHHL-16GB", 3),  # in no row
        ("NVIDIA A100-PG509-200", 4),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 4),
        ("NVIDIA H100 80GB HBM2e", 5),
        ("NVIDIA Future 9000", 5),
    ],
)
def test_no_link_is_later_than_the_model(name: str, generation: int) -> None:
    for rate in (0.7, 3.3, 6.3, 12.4, 13.4):
        found = fitting_links(rate, [Gpu(index=0, name=name)])
        assert max(link.generation for link in found) <= generation, rate


@pytest.mark.parametrize(
    ("name", "rate", "ecc", "share"),
    [
        ("Tesla K80", 240, None, 0.7 * 0.8),
        ("Tesla K80", 240, True, 0.7 * 0.8),
        ("Tesla K80", 240, False, 0.7),
        ("GeForce GTX 1080 Ti", 484, None, 0.7),
        ("Tesla V100-SXM2-16GB", 900, True, 0.7),  # HBM
    ],
)
def test_where_error_correction_may_take_some_of_gddr_less_is_no_fault(
    name: str, rate: float, ecc: bool | None, share: float
) -> None:
    machine = Machine(source="a test", gpus=(Gpu(index=0, name=name, ecc=Ecc(mode=ecc)),))
    (found,) = expected(machine, sample("d2d_local", "gpu:0", "gpu:0", 100.0))
    assert found.expectation.low_gb_per_s == pytest.approx(share * rate, rel=0.01)
    assert ("for ECC" in (found.expectation.source or "")) == (share < 0.7)


def test_local_copies_are_compared_with_the_memory_of_the_model() -> None:
    (found,) = expected(capture("GeForce GTX 1080 Ti"), sample("d2d_local", "gpu:0", "gpu:0", 353.5))
    assert found.expectation.gb_per_s == pytest.approx(0.8 * 484, rel=0.01)
    assert there(found.expectation.low_gb_per_s) < 353.5
    (unknown,) = expected(capture("Unheard Of"), sample("d2d_local", "gpu:0", "gpu:0", 353.5))
    assert unknown.expectation.gb_per_s is None
    assert unknown.expectation.source == "no reference data for Unheard Of"


def test_the_memory_of_a_p100_reaches_less_than_that_of_other_models() -> None:
    (found,) = expected(capture("Tesla P100-PCIE-16GB"), sample("d2d_local", "gpu:0", "gpu:0", 444.0))
    assert there(found.expectation.low_gb_per_s) < 444.0 < there(found.expectation.gb_per_s)
    assert there(found.expectation.gb_per_s) < 552.0  # of other sites


def test_copies_within_a_gpu_are_judged_in_every_table_of_a_tool_but_short_ones_of_fast_memory() -> None:
    diagonal = sample("d2d_local", "gpu:0", "gpu:0", 2880.0, bytes=None, group="Unidirectional P2P=Enabled")
    (of_h200,) = expected(capture("NVIDIA H200"), diagonal)
    assert of_h200.expectation.gb_per_s is None
    (of_a6000,) = expected(capture("NVIDIA RTX A6000"), replace(diagonal, median_gb_per_s=128.0))
    assert there(of_a6000.expectation.low_gb_per_s) > 128.0


def test_an_instance_of_a_card_is_not_compared_with_the_whole_card() -> None:
    whole = capture("GeForce GTX 1080 Ti")
    split = replace(whole, gpus=tuple(replace(gpu, mig=Mig(mode=True)) for gpu in whole.gpus))
    (found,) = expected(split, sample("d2d_local", "gpu:0", "gpu:0", 50.0))
    assert (found.expectation.gb_per_s, found.expectation.low_gb_per_s) == (None, None)
    assert "MIG" in (found.expectation.source or "")


def test_pairs_over_pcie_expect_the_slower_of_what_both_cards_were_measured_at() -> None:
    samples = (
        sample("d2h", "gpu:0", "host", 12.7, pinned=True),
        sample("h2d", "host", "gpu:1", 6.1, pinned=True),
        sample("p2p_staged", "gpu:0", "gpu:1", 5.8),
        sample("p2p_direct", "gpu:0", "gpu:1", 5.8),
    )
    found = expected(every_gpu(pcie=Pcie())(sound()), *samples)
    assert [one.expectation.gb_per_s for one in found[2:]] == [pytest.approx(0.8 * 6.1), 6.1]
    assert "host to GPU 1, measured alone" in (found[2].expectation.source or "")


def test_pairs_over_pcie_expect_what_their_links_should_carry_where_nothing_was_measured() -> None:
    machine = gpu(1, pcie={"width_now": 8})(sound())
    found = one(machine, "p2p_direct", "gpu:0", "gpu:1")
    assert found.expectation.gb_per_s == row(3, 8).copy_to_device_gb_per_s
    widest = one(every_gpu(pcie=Pcie())(sound()), "p2p_direct", "gpu:0", "gpu:1")
    assert widest.expectation.gb_per_s == row(3, 16).copy_to_host_gb_per_s
    assert widest.expectation.low_gb_per_s == pytest.approx(
        0.8 * row(3, 16).copy_to_host_gb_per_s
    )  # one switch
    assert "its slot is unknown" in (widest.expectation.source or "")


def test_staged_copies_have_an_expectation_of_their_own_and_both_directions_share_it() -> None:
    machine = every_gpu(pcie=Pcie())(sound())
    direct, staged, both = (
        one(machine, kind, "gpu:0", "gpu:1", path=path)
        for kind, path in (("p2p_direct", None), ("p2p_staged", None), ("bidirectional", "staged"))
    )
    assert staged.expectation.gb_per_s == pytest.approx(0.8 * there(direct.expectation.gb_per_s), abs=0.001)
    assert both.expectation.gb_per_s == staged.expectation.gb_per_s
    assert "through host memory" in (staged.expectation.source or "")


@pytest.mark.parametrize("kind", ["h2d", "d2h"])
def test_one_direction_while_the_other_is_used_has_an_expectation_and_one_among_others_none(
    kind: Any,
) -> None:
    ends = ("host", "gpu:1") if kind == "h2d" else ("gpu:1", "host")
    other = ("host", "gpu:2") if kind == "h2d" else ("gpu:2", "host")
    alone, beside, *among = expected(
        sound(),
        sample(kind, *ends, 12.0, pinned=True),
        sample(kind, *ends, 9.0, pinned=True, group="both gpu:1", with_reverse=True),
        sample(kind, *ends, 9.0, pinned=True, group="all", with_reverse=True),
        sample(kind, *other, 9.0, pinned=True, group="all", with_reverse=True),
    )
    assert beside.expectation.gb_per_s == pytest.approx(0.75 * there(alone.expectation.gb_per_s), abs=0.001)
    assert [one.expectation.gb_per_s for one in among] == [None, None]


SLOTS: dict[str, Machine] = {
    "known": sound(),
    "unknown": every_gpu(pcie=Pcie())(sound()),
    "NVLink": pair(0, 1, nvlinks=2)(sound()),
}


@pytest.mark.parametrize("slot", SLOTS)
def test_every_kind_of_copy_that_has_an_expectation_has_a_lower_limit(slot: str) -> None:
    ways: list[tuple[Any, str, str, dict[str, Any]]] = [
        ("h2d", "host", "gpu:0", {"pinned": True}),
        ("d2h", "gpu:0", "host", {"pinned": True}),
        ("bidirectional", "host", "gpu:0", {"pinned": True}),
        ("d2d_local", "gpu:0", "gpu:0", {}),
        ("p2p_direct", "gpu:0", "gpu:1", {}),
        ("p2p_staged", "gpu:0", "gpu:1", {}),
        ("bidirectional", "gpu:0", "gpu:1", {"path": "direct"}),
        ("bidirectional", "gpu:0", "gpu:1", {"path": "staged"}),
    ]
    for kind, source, destination, more in ways:
        found = one(SLOTS[slot], kind, source, destination, **more)
        usual, low = there(found.expectation.gb_per_s), there(found.expectation.low_gb_per_s)
        assert 0.699 * usual <= low <= usual, kind


@pytest.mark.parametrize(
    ("name", "links", "direct"),
    [
        # Measured: NVIDIA/nvbandwidth README (A100), stas00/ml-engineering (H200), a DGX Station (V100).
        ("A100-SXM4-80GB", 12, 275.0),
        ("H200", 18, 396.4),
        ("Tesla V100-SXM2-16GB", 2, 48.44),
    ],
)
def test_nvlinks_expect_what_was_measured_of_that_version_and_count(
    name: str, links: int, direct: float
) -> None:
    machine = pair(0, 1, nvlinks=links)(sound(2, name))
    found = one(machine, "p2p_direct", "gpu:0", "gpu:1")
    assert found.expectation.gb_per_s == pytest.approx(direct, rel=0.02)
    both = one(machine, "bidirectional", "gpu:0", "gpu:1", path="direct")
    assert found.expectation.gb_per_s is not None
    assert found.expectation.gb_per_s < there(both.expectation.gb_per_s) <= 2 * found.expectation.gb_per_s
    staged = one(machine, "p2p_staged", "gpu:0", "gpu:1")
    assert (staged.expectation.gb_per_s or 0) < 13  # over PCIe


def test_a_bridge_of_the_smaller_ampere_chip_has_its_own_row() -> None:
    small, large = expected_nvlink(3, "GA102"), expected_nvlink(3, "GA100")
    assert small is not None
    assert large is not None
    assert small.link_gb_per_s < large.link_gb_per_s
    assert expected_nvlink(9) is None


def test_an_expectation_that_a_session_wrote_stays() -> None:
    written = replace(sample("h2d", "host", "gpu:1", 5.0, pinned=True), expectation=Expectation(gb_per_s=4.0))
    assert expected(sound(), written) == (written,)


def test_a_slow_bridge_above_both_cards_does_not_slow_what_they_copy_directly() -> None:
    narrow = node(UP, max_speed_gt_per_s=8.0, max_width=4)(sound())
    machine = every_gpu(pcie={"limiting_hop": UP})(narrow)
    conditions = (seen(0), seen(1))
    direct = one(machine, "p2p_direct", "gpu:0", "gpu:1", conditions=conditions)
    assert direct.expectation.gb_per_s == row(3, 16).copy_to_device_gb_per_s
    staged = one(machine, "p2p_staged", "gpu:0", "gpu:1", conditions=conditions)
    assert staged.expectation.gb_per_s == pytest.approx(0.8 * row(3, 4).copy_to_device_gb_per_s, abs=0.001)
