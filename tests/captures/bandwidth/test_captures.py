"""Every public capture of a bandwidth tool is read in full: as many numbers as cells, and no line left."""

import json
import re
from pathlib import Path

import pytest

from gputopo.captures import load
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.ends import End
from gputopo.values.machine import Machine
from tests import there

FOLDER = Path(__file__).parents[4] / "shared" / "captures" / "bandwidth"
FILES = sorted(path for path in FOLDER.glob("*") if path.name != "index.csv") if FOLDER.is_dir() else []

pytestmark = pytest.mark.skipif(not FILES, reason="the folder of public captures is not beside this checkout")


def read(*names: str) -> tuple[Machine, Bandwidth]:
    found = [sorted(FOLDER.glob(name)) for name in names]
    machine = load([str(path) for paths in found for path in paths])
    return machine, there(machine.bandwidth)


def cells(text: str) -> int:
    """Count the numbers that a text prints as results, without the parsers' help."""
    if text.lstrip().startswith("{"):
        cases = json.loads(text)["nvbandwidth"]["testcases"]
        return sum(len(row) for case in cases for row in case.get("bandwidth_matrix", []))
    if "bandwidth (GB/s):" in text:
        return text.count("bandwidth (GB/s):")
    if "bandwidthTest-" in text:
        return len(re.findall(r"Size = \d+ bytes", text))
    if "CUDA Bandwidth Test" in text:
        return len(re.findall(r"^\s+\d+\t+[\d.]+$", text, re.MULTILINE))
    counted, cpu = 0, False
    for line in text.splitlines():
        first, *rest = line.split() or [""]
        if first in ("D\\D", "CPU", "GPU"):
            cpu = first == "CPU"
        elif first.isdecimal() and not cpu and not all(re.fullmatch(r"\d", cell) for cell in rest):
            counted += sum(1 for cell in rest if re.fullmatch(r"\d+\.\d+|\d{3}", cell))
    return counted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:50])
def test_every_number_of_a_capture_is_a_sample_and_no_line_is_left(path: Path) -> None:
    machine, bandwidth = read(path.name)
    expected = cells(path.read_text(encoding="utf-8"))
    assert expected > 0
    assert len(bandwidth.samples) == expected
    assert machine.unread == ()
    assert machine.contradictions == ()
    places = {place for s in bandwidth.samples for place in (s.source, s.destination)}
    assert places <= {"host", *(f"gpu:{gpu.index}" for gpu in machine.gpus)}


def test_7gforce_is_one_machine_of_seven_from_all_its_files() -> None:
    machine, bandwidth = read("7gforce-p2p*", "7gforce-bandwidthTest_gpu_*", "7gforce-forall*")
    assert [gpu.name for gpu in machine.gpus] == ["GeForce GTX 1070"] * 6 + ["GeForce GTX 1080"]
    assert machine.contradictions == ()
    pinned = {
        s.destination: s.median_gb_per_s for s in bandwidth.samples if s.kind == "h2d" and s.bytes == 2**25
    }
    assert pinned == {
        "gpu:0": 0.7635,
        "gpu:1": 0.7645,
        "gpu:2": 0.7628,
        "gpu:3": 0.7628,
        "gpu:4": 0.7678,
        "gpu:5": 0.763,
        "gpu:6": 6.2345,
    }
    pageable = {s.destination: s.median_gb_per_s for s in bandwidth.copies if s.pinned is False}
    assert pageable[End("gpu:6")] == 2.441729


def test_across_the_host_bridge_of_7gforce_direct_is_slower_than_staged() -> None:
    _, bandwidth = read("7gforce-p2p*")
    told = {(s.kind, s.pair): s.median_gb_per_s for s in bandwidth.copies}
    assert told["p2p_direct", (1, 3)] == 0.73
    assert told["p2p_staged", (3, 1)] == 0.77
    # GPU 6 has 8 lanes, the others one: their uplink sends at most 0.80 GB/s, their downlink takes 0.77.
    assert (told["p2p_staged", (6, 0)], told["p2p_staged", (0, 6)]) == (0.78, 0.81)
    local = [s.median_gb_per_s for s in bandwidth.copies if (s.kind, s.source) == ("d2d_local", "gpu:0")]
    assert local == [84.88, 86.46, 193.04, 190.97]


@pytest.mark.parametrize("name", ["7gforce", "az-2x-m60"])
def test_a_bundled_machine_has_the_bandwidths_of_its_files_in_any_order(name: str) -> None:
    patterns = [f"{name}-p2p*", f"{name}-bandwidthTest_gpu_*"]
    patterns += ["7gforce-forall*"] if name == "7gforce" else []
    files = [str(path) for pattern in patterns for path in sorted(FOLDER.glob(pattern))]
    bundled = there(load([name]).bandwidth)
    for sources in (files, [*files[::-1], name]):
        machine = load(sources)
        assert machine.contradictions == ()
        assert sorted(map(repr, there(machine.bandwidth).samples)) == sorted(map(repr, bundled.samples))


def test_waived_tests_say_that_no_pair_has_access() -> None:
    machine, bandwidth = read("nvbandwidth-json*")
    assert len(bandwidth.not_measured) == 17
    assert {link.p2p_read for link in machine.links} == {"NOT_SUPPORTED"}
    assert "nf5468" not in repr(machine)
