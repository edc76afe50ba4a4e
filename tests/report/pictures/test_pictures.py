"""Pictures: well-formed SVG with names, with every device and number in it, for machines of every form."""

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gputopo import captures
from gputopo.report.document import Picture
from gputopo.report.pictures import (
    ChartPoint,
    ChartSeries,
    over_time_picture,
    scaling_picture,
    topology_picture,
)
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.run.over_time import Curve, Happening, OverTime
from gputopo.values.subject import Subject
from tests.kit.faults import selected
from tests.kit.machines import read

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: Picture | None) -> list[str]:
    """All text in a picture, which must be well-formed."""
    assert picture is not None
    root = ElementTree.fromstring(picture.svg)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == picture.title
    assert picture.alt in root.get("aria-label", "")
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def gpu_machine(
    count: int, hops: Mapping[tuple[int, int], Hop | None], nvlinks: int | None = None
) -> Machine:
    """A machine that is known by its matrix alone."""
    gpus = tuple(Gpu(index=number, name=f"NVIDIA Test {number}") for number in range(count))
    links = tuple(Link(a=a, b=b, hop=hop, nvlinks=nvlinks) for (a, b), hop in hops.items())
    return Machine(source="test", gpus=gpus, links=links)


@pytest.mark.parametrize("name", ["7gforce", "az-4x-m60", "dgx1-v100"])
def test_every_gpu_of_a_bundled_machine_is_in_its_topology(name: str) -> None:
    machine = captures.load([name])
    shown = texts(topology_picture(machine))
    assert {f"GPU {gpu.index}" for gpu in machine.gpus} <= set(shown)


def test_gpus_of_one_switch_stand_under_one_box() -> None:
    near, far = Hop.PIX, Hop.PHB
    machine = gpu_machine(4, {(0, 1): near, (2, 3): near, (0, 2): far, (0, 3): far, (1, 2): far, (1, 3): far})
    shown = texts(topology_picture(machine))
    assert shown.count("PCIe switch") == 2
    assert shown.count("host bridge") == 1
    assert shown.count("CPU") == 1


def test_a_fabric_of_equal_nvlinks_is_one_bar_and_single_ones_are_arcs_with_their_number() -> None:
    pairs = {(a, b): Hop.SYS for a in range(8) for b in range(a + 1, 8)}
    assert "NVLink: 18 to every peer" in texts(topology_picture(gpu_machine(8, pairs, 18)))
    assert "4" in texts(topology_picture(gpu_machine(2, {(0, 1): Hop.SYS}, 4)))


def test_a_gpu_with_findings_is_marked_and_named_in_words() -> None:
    machine = gpu_machine(2, {(0, 1): Hop.PIX})
    finding = Finding(id="pcie.slot_narrow", severity="warning", subject=Subject.of_gpus([1]), says="x1")
    marked, plain = topology_picture(machine, [finding]), topology_picture(machine)
    assert "!" in texts(marked)
    assert "!" not in texts(plain)
    assert marked is not None
    assert "GPU 1: pcie.slot_narrow" in marked.alt


def test_a_machine_with_a_pci_tree_shows_its_switches_links_and_what_limits_a_gpu(tmp_path: Path) -> None:
    machine = read(selected("four+x1_riser@2"), tmp_path)
    shown = texts(topology_picture(machine))
    assert "switch" in shown
    assert "gen 3 x1 of x16" in shown
    assert shown.count("limits") == 1


def test_a_chart_has_its_labels_and_counts_and_says_its_last_values() -> None:
    series = [ChartSeries("a <b> $x$", (ChartPoint(1, 1.0), ChartPoint(2, 1.9, 1.8, 2.0)))]
    picture = scaling_picture("speedup", "Speedup", "speedup", series, ideal=True)
    shown = texts(picture)
    assert {"a <b> $x$", "ideal", "1", "2", "GPUs"} <= set(shown)
    assert picture is not None
    assert "a <b> $x$ 1.9 at 2" in picture.alt
    assert scaling_picture("speedup", "Speedup", "speedup", []) is None


def test_of_many_series_the_first_eight_have_names() -> None:
    series = [ChartSeries(f"job {n}", (ChartPoint(1, 1.0), ChartPoint(2, 1 + n / 20))) for n in range(20)]
    shown = texts(scaling_picture("speedup", "Speedup", "speedup", series))
    names = [text for text in shown if text.startswith("job")]
    assert sorted(names) == sorted(f"job {n}" for n in range(8))
    assert "12 more" in shown


def test_a_name_of_any_length_with_any_character_leaves_the_chart_its_room() -> None:
    points = (ChartPoint(1, 1.0), ChartPoint(2, 1.9))
    series = [
        ChartSeries("x" * 5000, points),
        ChartSeries("a\x00b\nc\x1b[31m \u202e", points),
        ChartSeries("\u6a21\u578b", points),
    ]
    picture = scaling_picture("speedup", "Speedup", "speedup", series)
    shown = texts(picture)
    assert {"a?b c?[31m ?", "\u6a21\u578b"} <= set(shown)
    assert max(map(len, shown)) < 100


def test_a_run_over_time_marks_what_happened_on_every_panel_and_says_faults() -> None:
    curve = Curve("GPU 0", (0.0, 1.0, 2.0), (100.0, 101.0, 80.0))
    run = OverTime((curve,), {"core clock, MHz": (curve,)}, (Happening(1.5, "GPU 0 slow 20%", True),), 2.0)
    picture = over_time_picture("run", "images/sec", run)
    broken = {f"{unit} (not from 0)" for unit in ("images/sec", "core clock, MHz")}
    assert {*broken, "GPU 0", "GPU 0 slow 20%"} <= set(texts(picture))
    assert picture is not None
    assert "GPU 0 slow 20% after 2 s" in picture.alt
