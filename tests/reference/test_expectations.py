import csv
from importlib import resources

import pytest

from gputopo.reference import (
    expected_bus,
    expected_gpu,
    expected_link,
    expected_nvlink,
    known_gpus,
    name_of,
    reference_rows,
)
from gputopo.values.bandwidth import COLLECTIVE_NAMES
from gputopo.values.machine import Gpu
from tests import there

ROWS = known_gpus()
# Lengths of a row are rounded, and makers publish rounded bandwidths (H200: 2.4 % under its clock's).
BANDWIDTH_SHARE = 0.03


def test_the_memory_clock_and_bus_give_the_published_bandwidth() -> None:
    for row in ROWS:
        if row.max_memory_mhz is None or row.memory_bus_bits is None or row.memory_gb_per_s is None:
            continue
        by_clock = row.max_memory_mhz * 2 * row.memory_bus_bits / 8 / 1000
        assert by_clock == pytest.approx(row.memory_gb_per_s, rel=BANDWIDTH_SHARE), row.name


def test_every_card_has_a_peak_rate_and_those_with_tensor_cores_that_of_these() -> None:
    assert all(row.fp32_tflops for row in ROWS)
    for row in ROWS:
        small = row.name.startswith(("GeForce GTX 16", "T4", "T6", "T1"))  # Turing chips without tensor cores
        older = row.architecture in ("Kepler", "Maxwell", "Pascal")
        assert (row.tensor_tflops is None) == (small or older), row.name


# NVIDIA's tables of CUDA GPUs (developer.nvidia.com/cuda-gpus and cuda-legacy-gpus).
CAPABILITIES = {
    "Kepler": {(3, 0), (3, 7)},
    "Maxwell": {(5, 2)},
    "Pascal": {(6, 0), (6, 1)},
    "Volta": {(7, 0)},
    "Turing": {(7, 5)},
    "Ampere": {(8, 0), (8, 6)},
    "Ada": {(8, 9)},
    "Hopper": {(9, 0)},
    "Blackwell": {(10, 0), (10, 3), (12, 0)},
}


def test_the_architecture_decides_which_compute_capabilities_its_gpus_have() -> None:
    found: dict[str, set[tuple[int, int] | None]] = {}
    for row in ROWS:
        found.setdefault(row.architecture, set()).add(row.compute_capability)
    assert found == CAPABILITIES


def test_every_card_has_sources_and_is_the_only_row_of_its_names() -> None:
    for row in ROWS:
        sources = [one for one in row.source.split(";") if "PCI id" not in one]
        assert any("TechPowerUp" not in one for one in sources), f"{row.name}: one database alone"
        for own in (row.name, *row.other_names):
            assert [one.name for one in ROWS if own in (one.name, *one.other_names)] == [row.name]
            for name in (own, f"NVIDIA {own}", own.upper()):
                assert expected_gpu(name) == row


@pytest.mark.parametrize(
    ("file", "fewest"), [("gpus.csv", 130), ("links.csv", 30), ("nvlinks.csv", 5), ("nccl_bus.csv", 30)]
)
def test_every_line_of_a_table_has_a_source(file: str, fewest: int) -> None:
    lines = resources.files("gputopo.reference.data").joinpath(file).read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    assert len(rows) >= fewest
    assert all(row["source"].strip() for row in rows)
    assert all(None not in row and None not in row.values() for row in rows)


# Names as drivers report them, which differ from those of another row by a word.
REPORTED = """
    GRID K520, Tesla M40 24GB, GeForce GTX 1070, GeForce GTX 1070 Ti, NVIDIA TITAN X (Pascal), Quadro P400,
    Quadro P4000, Tesla V100-PCIE-32GB, Tesla V100S-PCIE-32GB, NVIDIA Tesla T4, NVIDIA T400, NVIDIA T400 4GB,
    Quadro RTX 4000, NVIDIA A10, NVIDIA A10G, NVIDIA RTX A4000, NVIDIA A100-SXM4-80GB, NVIDIA A100 80GB PCIe,
    NVIDIA A800 40GB Active, NVIDIA GeForce RTX 4090 D, NVIDIA RTX 4000 Ada Generation, NVIDIA L40,
    NVIDIA RTX 4000 SFF Ada Generation, NVIDIA L40S, NVIDIA H100 80GB HBM3, NVIDIA H100 NVL, NVIDIA H200 NVL,
    NVIDIA H800 PCIe, NVIDIA GH200 480GB, NVIDIA GB200, NVIDIA GB300, NVIDIA GeForce RTX 5090 D,
    NVIDIA RTX PRO 6000 Blackwell Server Edition
"""


def listed(names: str) -> list[str]:
    return [name.strip() for name in names.replace("\n", " ").split(",")]


def test_names_as_drivers_report_them_find_their_row() -> None:
    found = {name: expected_gpu(name) for name in listed(REPORTED)}
    assert {name: row and row.name for name, row in found.items()} == {
        name: name.removeprefix("NVIDIA ").replace("Super", "SUPER")
        if "Tesla" not in name
        else row and row.name
        for name, row in found.items()
    }
    other = {"NVIDIA GH200 120GB": "GH200 480GB", "NVIDIA GeForce RTX 2080 Super": "GeForce RTX 2080 SUPER"}
    assert {name: (row := expected_gpu(name)) and row.name for name in other} == other


# Names of NVIDIA's list of products (open-gpu-kernel-modules README), of notebooks, of vGPUs and of MIG
# instances that contain the name of a row, or nearly.
NO_ROW = """
    NVIDIA Future 9000, GeForce GTX 1060, GeForce GTX 1070 with Max-Q Design, GeForce GTX TITAN X,
    Tesla P100-PCIE-12GB, Tesla V100-FHHL-16GB, Tesla P40-24Q, Tesla T4G, Quadro RTX 3000,
    Quadro RTX 6000 with Max-Q Design, NVIDIA T400E, NVIDIA T550 Laptop GPU, NVIDIA GeForce GTX 1650 Ti,
    NVIDIA GeForce RTX 2050, NVIDIA GeForce RTX 3050 OEM, NVIDIA GeForce RTX 3080 Laptop GPU,
    NVIDIA GeForce RTX 5090 D v2, NVIDIA RTX A400, NVIDIA RTX A2000 Embedded GPU, NVIDIA RTX A4000H,
    NVIDIA RTX 2000E Ada Generation, NVIDIA RTX 6000D, NVIDIA RTX PRO 6000 Blackwell, NVIDIA A10M,
    NVIDIA A100X, NVIDIA A100-PG509-200, NVIDIA A100-SXM4-40GB MIG 1g.5gb, NVIDIA A100 80GB PCIe LC,
    GRID T4-16Q, NVIDIA A10-24Q, NVIDIA L40S-48Q, NVIDIA L2, NVIDIA H100, NVIDIA H100XM-80C,
    NVIDIA H100 80GB HBM3 MIG 3g.40gb, NVIDIA H20-3e, NVIDIA B200 MIG 1g.23gb, NVIDIA GB10
"""


def test_a_card_that_is_in_no_row_has_no_expectation() -> None:
    names = [*listed(NO_ROW), "", None]
    assert [name for name in names if expected_gpu(name) is not None] == []


def test_the_pci_id_counts_only_where_the_name_does_not_decide() -> None:
    for nameless in (None, "", "Graphics Device", "NVIDIA Graphics Device"):
        expected = there(expected_gpu(nameless, "20B0"))
        assert expected.name == "A100-SXM4-40GB"
    assert expected_gpu("NVIDIA Future 9000", "20b0") is None
    for ambiguous in ("1e30", "25b6"):  # Quadro RTX 6000 and 8000; A2 and A16
        assert expected_gpu(None, ambiguous) is None
    assert expected_gpu(None, "0000") is None  # a virtual machine that hides it


@pytest.mark.parametrize(
    ("name", "desktop", "notebook"),
    [
        ("GeForce GTX 1070", "1b81", "1ba1"),
        ("Quadro RTX 5000", "1eb0", "1eb5"),
    ],
)
def test_the_pci_id_excludes_notebook_gpus_with_the_name_of_a_card(
    name: str, desktop: str, notebook: str
) -> None:
    expected = there(expected_gpu(name))
    assert expected_gpu(name, desktop) == expected
    assert expected_gpu(name, notebook) is None
    assert expected_gpu(None, notebook) is None


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
            link = there(expected_link(generation, width))
            assert link.copy_low_gb_per_s <= link.copy_to_device_gb_per_s <= link.data_rate_gb_per_s
            assert link.copy_to_host_gb_per_s <= link.data_rate_gb_per_s


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (3, None), (3, 5), (9, 16)])
def test_a_link_that_is_in_no_row_has_no_expectation(generation: int | None, width: int | None) -> None:
    assert expected_link(generation, width) is None


@pytest.mark.parametrize(
    ("name", "links", "gb_per_s"),
    [
        # Both directions together, as NVIDIA publishes them.
        ("Tesla P100-SXM2-16GB", 4, 160),
        ("NVIDIA RTX A6000", 4, 112.5),
        ("NVIDIA A100-SXM4-80GB", 12, 600),
        ("NVIDIA B200", 18, 1800),
    ],
)
def test_the_nvlinks_of_a_model_add_up_to_its_published_rate(name: str, links: int, gb_per_s: float) -> None:
    gpu = there(expected_gpu(name))
    assert gpu.nvlinks == links
    row = there(expected_nvlink(gpu.nvlink_generation, gpu.chip))
    assert 2 * links * row.link_gb_per_s == gb_per_s


def test_every_bus_rate_is_of_a_known_gpu_and_above_its_lower_limit() -> None:
    names = {row.name for row in known_gpus()}
    for written in reference_rows("nccl_bus.csv"):
        gpu, operation, size = written["gpu"], written["operation"], int(written["from_bytes"])
        assert gpu in names
        assert operation in COLLECTIVE_NAMES
        for row in expected_bus(gpu, int(written["ranks"]), operation, size):
            assert 0 < row.low_gb_per_s <= (row.bus_gb_per_s or row.low_gb_per_s)
            assert row.confidence in ("measured", "scaled", "threshold")


def test_a_gpu_without_a_name_has_the_name_of_its_pci_device_id() -> None:
    assert name_of(Gpu(index=0, pci_device_id="2231")) == "RTX A5000"
    assert name_of(Gpu(index=0, name="NVIDIA X", pci_device_id="2231")) == "NVIDIA X"
    assert name_of(Gpu(index=0, pci_device_id="ffff")) is None
