import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report.layout import labelled, text_of
from gputopo.report.machine.matrix import matrix_view, peer_rows
from gputopo.values.machine import Gpu, Hop, Link, Machine, Nic


def shown(machine: Machine, width: int = 78) -> str:
    return text_of(matrix_view(machine, width))


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


def test_nvlinks_stand_before_the_pcie_hop_as_in_nvidia_smi() -> None:
    links = {
        (0, 1): Link(a=0, b=1, hop=Hop.PHB, nvlinks=2),
        (0, 2): Link(a=0, b=2, hop=Hop.PHB, nvlinks=0),
        (1, 2): Link(a=1, b=2, nvlinks=12),
    }
    table = cells(machine(3, links))
    assert table["GPU0", "GPU1"] == table["GPU1", "GPU0"] == "NV2"
    assert table["GPU0", "GPU2"] == "PHB"
    assert table["GPU1", "GPU2"] == "NV12"
    assert table["GPU1", "GPU1"] == "X"


def test_a_pair_that_nothing_is_known_of_is_a_question_mark_and_the_legend_reports_it() -> None:
    table = cells(machine(3, {(0, 1): Link(a=0, b=1)}))
    assert table["GPU0", "GPU1"] == table["GPU0", "GPU2"] == "?"
    assert "?     unknown" in shown(machine(2))


def test_two_gpus_of_one_board_have_a_class_of_their_own() -> None:
    text = shown(machine(2, {(0, 1): Link(a=0, b=1, hop=Hop.INTERNAL)}))
    assert "GPU0  X     INT" in text
    assert "nvidia-smi writes PIX" in text


def test_the_legend_has_the_classes_that_occur_and_no_other() -> None:
    text = shown(machine(2, {(0, 1): Link(a=0, b=1, hop=Hop.NODE)}))
    legend = [line.split()[0] for line in text.split("\n\n")[1].splitlines()]
    assert legend == ["NODE"]


def test_nics_have_rows_columns_and_names_whichever_side_knows_the_hop() -> None:
    nics = (
        Nic(index=0, name="mlx5_0", hops={"gpu:0": Hop.PIX, "nic:1": Hop.SYS}, numa_node=0),
        Nic(index=1, name="mlx5_1", hops={"gpu:0": Hop.NODE}),
    )
    both = Machine(source="test", gpus=(Gpu(index=0, cpu_affinity="0-7"),), nics=nics)
    table = cells(both)
    assert table["GPU0", "NIC0"] == table["NIC0", "GPU0"] == "PIX"
    assert table["NIC1", "NIC0"] == table["NIC0", "NIC1"] == "SYS"
    assert table["NIC0", "NUMA"] == "0"
    assert table["NIC1", "NUMA"] == "-"
    assert table["NIC0", "CPUs"] == ""
    assert "NIC1  mlx5_1" in shown(both)


def test_the_affinity_columns_are_there_if_any_gpu_has_them() -> None:
    gpus = (Gpu(index=0, cpu_affinity="0-9,20-29", numa_node=0), Gpu(index=1))
    table = cells(Machine(source="test", gpus=gpus))
    assert table["GPU0", "CPUs"] == "0-9,20-29"
    assert table["GPU1", "CPUs"] == table["GPU1", "NUMA"] == "-"
    assert "CPUs" not in shown(machine(2))


def test_gaps_in_the_numbering_are_kept() -> None:
    odd = Machine(source="test", gpus=(Gpu(index=2), Gpu(index=11)), links=(Link(a=2, b=11, hop=Hop.PXB),))
    assert cells(odd)["GPU11", "GPU2"] == "PXB"


def test_a_machine_without_gpus_has_no_matrix() -> None:
    assert matrix_view(machine(0, nics=2), 80) == []


@pytest.mark.parametrize(("gpus", "nics", "width"), [(1, 0, 40), (2, 10, 78), (8, 1, 40), (16, 10, 200)])
def test_every_pair_is_shown_once_within_the_width(gpus: int, nics: int, width: int) -> None:
    links = {pair: Link(a=pair[0], b=pair[1], hop=Hop.NODE) for pair in combinations(range(gpus), 2)}
    whole = machine(gpus, links, nics)
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    table = cells(whole, width)
    assert set(table) == {(row, column) for row in names for column in names}
    assert max(map(len, shown(whole, width).splitlines())) <= max(width, 60 if width < 60 else 0)


@given(
    st.integers(2, 16).flatmap(
        lambda gpus: st.tuples(
            st.just(gpus),
            st.lists(
                st.one_of(st.sampled_from(list(Hop)), st.integers(1, 18)),
                min_size=gpus * (gpus - 1) // 2,
                max_size=gpus * (gpus - 1) // 2,
            ),
        )
    ),
    st.integers(30, 200),
)
def test_any_matrix_is_symmetric_and_reads_back(drawn: tuple[int, list[Hop | int]], width: int) -> None:
    gpus, classes = drawn
    links = {
        (a, b): Link(a=a, b=b, hop=given) if isinstance(given, Hop) else Link(a=a, b=b, nvlinks=given)
        for (a, b), given in zip(combinations(range(gpus), 2), classes, strict=True)
    }
    table = cells(machine(gpus, links), width)
    for (a, b), link in links.items():
        hop = "INT" if link.hop is Hop.INTERNAL else link.hop.value if link.hop else f"NV{link.nvlinks}"
        assert table[f"GPU{a}", f"GPU{b}"] == table[f"GPU{b}", f"GPU{a}"] == hop


def peers(*links: Link) -> str:
    gpus = tuple(Gpu(index=n) for n in range(8))
    return text_of(labelled(peer_rows(Machine(source="x", gpus=gpus, links=links)), 78))


def test_one_state_for_all_pairs_is_reported_in_a_line() -> None:
    links = [Link(a=a, b=a + 1, p2p_read="OK", p2p_write="OK") for a in range(4)]
    assert peers(*links) == "Peer access  OK: all pairs\n"


def test_pairs_that_are_off_are_named_with_nvmls_word_and_the_reason() -> None:
    text = peers(
        Link(a=0, b=1, p2p_read="OK", p2p_write="OK"),
        Link(a=0, b=2, p2p_read="CHIPSET_NOT_SUPPORTED", p2p_write="OK", p2p_reason="the chipset"),
        Link(a=1, b=2, p2p_read="CHIPSET_NOT_SUPPORTED", p2p_write="OK", p2p_reason="the chipset"),
    )
    assert "OK: GPUs 0 and 1" in text
    reported = " ".join(text.split())
    assert "read CHIPSET_NOT_SUPPORTED, write OK: each of GPUs 0-1 with 2 (the" in reported


def test_a_direction_that_is_not_reported_is_not_made_up() -> None:
    assert peers(Link(a=0, b=1, p2p_read="OK")) == "Peer access  OK (read): GPUs 0 and 1\n"


def test_without_facts_no_line_is_shown() -> None:
    assert peers(Link(a=0, b=1)) == ""


def test_very_many_pairs_are_reported_in_short() -> None:
    links = [Link(a=a, b=b, p2p_read="NOT_SUPPORTED") for b in range(8) for a in range(b)]
    assert "NOT_SUPPORTED (read): any two of GPUs 0-7" in peers(*links, Link(a=7, b=8))
    assert re.search(r"pairs 0<->2, 0<->3, (?:.|\n)* and 15 more", peers(*links[1:], Link(a=7, b=8)))
