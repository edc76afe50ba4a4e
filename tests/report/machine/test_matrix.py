"""The topology of a machine as a matrix, and its peer access."""

from itertools import combinations

import msgspec
import pytest

from gputopo.report import inspection_document
from gputopo.values.finding import Inspection
from gputopo.values.machine import Gpu, Hop, Link, Machine, Nic
from tests.report.shown import rows_of, section_text


def shown(machine: Machine, width: int = 78) -> str:
    document = inspection_document(Inspection(machine=machine), "topology")
    return section_text(document, "Topology", width)


def cells(machine: Machine, width: int = 78) -> dict[tuple[str, str], str]:
    """Reads the printed matrix back, all blocks of it: (row, column) to what stands there."""
    found = {}
    for block in shown(machine, width).split("\n\n"):
        head, *rows = block.splitlines() or [""]
        if not head.startswith(" "):
            continue
        starts = [(name, head.index(name)) for name in head.split()]
        for row in rows:
            for name, start in starts:
                found[row.split()[0], name] = row[start:].split("  ")[0].strip()
    return found


def machine(gpus: int, links: dict[tuple[int, int], Link] | None = None, nics: int = 0) -> Machine:
    return Machine(
        source="test",
        gpus=tuple(Gpu(index=i) for i in range(gpus)),
        links=tuple((links or {}).values()),
        nics=tuple(Nic(index=i, name=f"mlx5_{i}") for i in range(nics)),
    )


def test_a_pair_that_nothing_is_known_of_is_a_question_mark_and_the_legend_reports_it() -> None:
    known = machine(3, {(0, 1): Link(a=0, b=1), (1, 2): Link(a=1, b=2, hop=Hop.PIX)})
    table = cells(known)
    assert table["GPU0", "GPU1"] == table["GPU0", "GPU2"] == "?"
    assert "?     unknown" in shown(known)
    assert shown(machine(3)) == "Unknown for all pairs of GPUs.\n"


def test_the_legend_has_the_classes_that_occur_and_no_other() -> None:
    text = shown(machine(2, {(0, 1): Link(a=0, b=1, hop=Hop.INTERNAL)}))
    legend = [line.split()[0] for line in text.split("\n\n")[1].splitlines()]
    assert legend == ["INT"]
    assert "nvidia-smi writes PIX" in text


def test_the_affinity_columns_are_there_if_any_gpu_has_them() -> None:
    gpus = (Gpu(index=0, cpu_affinity="0-9,20-29", numa_node=0), Gpu(index=1))
    table = cells(Machine(source="test", gpus=gpus))
    assert table["GPU0", "CPUs"] == "0-9,20-29"
    assert table["GPU1", "CPUs"] == table["GPU1", "NUMA"] == "-"
    assert "CPUs" not in shown(machine(2))


@pytest.mark.parametrize(("gpus", "nics", "width"), [(1, 0, 40), (8, 10, 60)])
def test_every_pair_is_shown_once_within_the_width(gpus: int, nics: int, width: int) -> None:
    links = {pair: Link(a=pair[0], b=pair[1], hop=Hop.NODE) for pair in combinations(range(gpus), 2)}
    whole = machine(gpus, links, nics)
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    table = cells(whole, width)
    assert set(table) == {(row, column) for row in names for column in names}
    assert max(map(len, shown(whole, width).splitlines())) <= max(width, 60 if width < 60 else 0)


def peers(*links: Link) -> list[str]:
    gpus = tuple(Gpu(index=n) for n in range(8))
    near = [msgspec.structs.replace(link, hop=Hop.NODE) for link in links]
    inspection = Inspection(machine=Machine(source="x", gpus=gpus, links=tuple(near)))
    return [words for _, words in rows_of(inspection_document(inspection, "topology"), "Topology")]


def by_chipset(a: int, b: int) -> Link:
    return Link(a=a, b=b, p2p_read="CHIPSET_NOT_SUPPORTED", p2p_write="OK", p2p_reason="the chipset")


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([Link(a=a, b=a + 1, p2p_read="OK", p2p_write="OK") for a in range(4)], ["OK: all pairs"]),
        (
            [Link(a=0, b=1, p2p_read="OK", p2p_write="OK"), by_chipset(0, 2), by_chipset(1, 2)],
            [
                "OK: GPUs 0 and 1",
                "read CHIPSET_NOT_SUPPORTED, write OK: each of GPUs 0-1 with 2 (the chipset)",
            ],
        ),
        ([Link(a=0, b=1, p2p_read="OK")], ["OK (read): GPUs 0 and 1"]),  # a direction is not made up
        (
            [*(Link(a=a, b=b, p2p_read="NO") for b in range(8) for a in range(b)), Link(a=6, b=9)],
            ["NO (read): any two of GPUs 0-7"],
        ),
    ],
)
def test_peer_access_is_in_words_with_the_reason(links: list[Link], words: list[str]) -> None:
    assert peers(*links) == words
