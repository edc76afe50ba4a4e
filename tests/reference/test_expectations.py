import csv
from importlib import resources

import pytest

from gputopo.reference.expectations import (
    GpuExpectation,
    expected_gpu,
    expected_link,
    known_gpus,
    matching_rows,
)

ROWS = known_gpus()
# Lengths of a row are rounded, and makers publish rounded bandwidths (H200: 2.4 % under its clock's).
BANDWIDTH_SHARE = 0.03


def by_name(row: GpuExpectation) -> str:
    return row.name


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_the_memory_clock_and_bus_give_the_published_bandwidth(row: GpuExpectation) -> None:
    if row.max_memory_mhz is None or row.memory_bus_bits is None or row.memory_gb_per_s is None:
        pytest.skip("a figure of this row is not known")
    by_clock = row.max_memory_mhz * 2 * row.memory_bus_bits / 8 / 1000
    assert by_clock == pytest.approx(row.memory_gb_per_s, rel=BANDWIDTH_SHARE)


def test_most_rows_can_be_checked_by_their_bandwidth() -> None:
    assert sum(row.max_memory_mhz is not None and row.memory_gb_per_s is not None for row in ROWS) >= 30


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_every_card_has_a_source_and_is_the_only_row_of_its_name(row: GpuExpectation) -> None:
    assert row.source
    for name in (row.name, f"NVIDIA {row.name}", row.name.upper()):
        assert matching_rows(name) == (row,)
        assert expected_gpu(name) == row


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_what_a_row_tells_is_in_the_range_of_such_cards(row: GpuExpectation) -> None:
    for value, low, high in (
        (row.boost_mhz, 500, 4000),
        (row.max_core_mhz, row.boost_mhz or 500, 4000),
        (row.max_memory_mhz, 500, 20_000),
        (row.slowdown_c, 80, 105),
        (row.pcie_width_seen, 1, (row.pcie_width or 1) - 1),
        (row.power_w, 40, 1500),
        (row.nvlinks, 1, 18),
    ):
        assert value is None or low <= value <= high, (row.name, value)
    assert (row.pcie_generation, row.pcie_width) != (None, None)
    assert (row.nvlinks is None) == (row.nvlink_by_bridge is None)


@pytest.mark.parametrize(("file", "fewest"), [("gpus.csv", 30), ("links.csv", 30), ("nvlinks.csv", 5)])
def test_every_line_of_a_table_has_a_source(file: str, fewest: int) -> None:
    lines = resources.files("gputopo.reference.data").joinpath(file).read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    assert len(rows) >= fewest
    assert all(row["source"].strip() for row in rows)
    assert all(None not in row and None not in row.values() for row in rows)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("GeForce GTX 1070", "GeForce GTX 1070"),
        ("GeForce GTX 1080", "GeForce GTX 1080"),
        ("NVIDIA GeForce GTX 1080 Ti", "GeForce GTX 1080 Ti"),
        ("NVIDIA GeForce RTX 2080 Super", "GeForce RTX 2080 SUPER"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
    ],
)
def test_names_as_drivers_tell_them_find_their_row(name: str, row: str) -> None:
    expected = expected_gpu(name)
    assert expected is not None
    assert expected.name == row


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA Future 9000",
        "GeForce GTX 1070 Ti",
        "NVIDIA GeForce RTX 3080 Ti",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 2080 Super with Max-Q Design",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA RTX A4000",
        "NVIDIA A100X",
        "NVIDIA L40",
        "NVIDIA H200 NVL",
        "GRID T4-16Q",
        "NVIDIA A40-48C",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Tesla T40",
        "",
        None,
    ],
)
def test_a_card_that_is_in_no_row_has_no_expectation(name: str | None) -> None:
    assert expected_gpu(name) is None


def test_the_pci_id_counts_only_where_the_name_says_nothing() -> None:
    for nameless in (None, "", "Graphics Device", "NVIDIA Graphics Device"):
        expected = expected_gpu(nameless, "20B0")
        assert expected is not None
        assert expected.name == "A100-SXM4-40GB"
    assert expected_gpu("NVIDIA Future 9000", "20b0") is None
    assert expected_gpu(None, "1e30") is None  # two cards have it
    assert expected_gpu(None, "0000") is None  # a virtual machine that hides it


def test_the_rate_of_a_link_grows_with_its_generation_and_its_lanes() -> None:
    widths = (1, 2, 4, 8, 16)
    for generation in range(1, 7):
        links = [expected_link(generation, width) for width in widths]
        rates = [link.data_rate_gb_per_s for link in links if link]
        assert len(rates) == len(widths)
        assert rates == sorted(rates)
        assert rates[-1] == pytest.approx(16 * rates[0], rel=0.01)
    for width in widths:
        links = [expected_link(generation, width) for generation in range(1, 7)]
        assert [link.gt_per_s for link in links if link] == [2.5, 5, 8, 16, 32, 64]
        copies = [link.copy_to_device_gb_per_s for link in links if link]
        assert copies == sorted(copies)


def test_no_copy_is_expected_faster_than_its_link() -> None:
    for generation in range(1, 7):
        for width in (1, 2, 4, 8, 16):
            link = expected_link(generation, width)
            assert link is not None
            assert link.copy_low_gb_per_s <= link.copy_to_device_gb_per_s <= link.data_rate_gb_per_s
            assert link.copy_to_host_gb_per_s <= link.data_rate_gb_per_s


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (3, None), (3, 5), (0, 16), (9, 16)])
def test_a_link_that_is_in_no_row_has_no_expectation(generation: int | None, width: int | None) -> None:
    assert expected_link(generation, width) is None
