"""Matrices that contradict themselves, and cells that mean nothing."""

import contextlib

import pytest

from gputopo.captures import limited_time, read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop

WITH_NIC = "GPU0 GPU1 NIC0\nGPU0 X PIX SYS\nGPU1 PIX X SYS\nNIC0 SYS SYS X\n\nNIC Legend:\n"

REFUSED = [
    (
        "GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X",
        "not symmetric: GPU0-GPU1 is PIX .line 2., GPU1-GPU0 is PHB .line 3.",
    ),
    ("GPU0 GPU1\nGPU0 X X\nGPU1 X X", "cell GPU0-GPU1 .line 2. is X, which belongs on the diagonal"),
    ("GPU0 GPU1\nGPU0 SYS PIX\nGPU1 PIX X", "cell GPU0-GPU0 .line 2. is SYS, expected X"),
    ("GPU0 GPU1\nGPU0 X PIX", "no row for GPU0, GPU1"),  # the text may end in the middle of a cell
    ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nGPU2 PIX PIX", "line 4 is a row of GPU2"),
    ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nGPU1 PIX X", "GPU1 has two rows, line 3 and line 4"),
    ("GPU0 GPU1 GPU2\nGPU0 X PIX\nGPU1 PIX X PIX\nGPU2 PIX PIX X", "row of GPU0 .line 2. has fewer cells"),
    ("GPU0 GPU1\nGPU0 X PIX SYS\nGPU1 PIX X SYS", "row of GPU0 .line 2. has more cells"),
    ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n\nGPU0\nGPU0 X", "two different matrices, the second near line 6"),
    ("GPU00 GPU1\nGPU00 X PIX\nGPU1 PIX X\n", "lists GPU00 twice, or with a leading zero"),
    (f"{WITH_NIC}NIC0: mlx5_0\n\n{WITH_NIC}NIC0: rocep4s0f0\n", "NIC0 is mlx5_0, and rocep4s0f0 in line 15"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_matrix_that_cannot_be_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"box.txt: .*{message}") as caught:
        read_text(text, origin="box.txt")
    assert "\n" not in caught.value.what + caught.value.hint
    assert caught.value.hint


def test_a_row_that_is_missing_leaves_the_others_usable() -> None:
    machine = read_text("GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X PIX SYS 0-3\nGPU2 SYS SYS X 4-7\n", origin="x")
    assert [link.hop for link in machine.links] == [Hop.PIX, Hop.SYS, Hop.SYS]
    assert [gpu.cpu_affinity is None for gpu in machine.gpus] == [False, True, False]
    assert [gap.text for gap in machine.gaps] == ["no row for GPU 1, which the header lists"]


def test_a_matrix_without_its_header_is_read_by_its_rows() -> None:
    machine = read_text("GPU0 X PIX SYS 0-9\nGPU1 PIX X SYS 0-9\nGPU2 SYS SYS X 10-19", origin="x")
    assert [(link.a, link.b, link.hop) for link in machine.links] == [
        (0, 1, Hop.PIX),
        (0, 2, Hop.SYS),
        (1, 2, Hop.SYS),
    ]
    assert [gpu.cpu_affinity for gpu in machine.gpus] == ["0-9", "0-9", "10-19"]


def test_an_unknown_cell_takes_its_link_away_and_the_others_stay() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tWAT\tSYS\nGPU1\tWAT\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
    machine = read_text(text, origin="x")
    assert machine.link(0, 1) is None
    assert machine.missing["links[0-1].hop"] == "neither of its two cells could be read"
    assert [(u.line, u.text) for u in machine.unread] == [(2, "GPU0-GPU1: WAT"), (3, "GPU1-GPU0: WAT")]
    assert len(machine.links) == 2


def test_a_row_of_a_nic_with_a_lost_cell_is_not_used_at_all() -> None:
    text = (
        "\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\t X \tPIX\tNODE\tSYS\nGPU1\tPIX\t X \tNODE\tSYS\nNIC0 NODE NODE X\n"
    )
    machine = read_text(text, origin="x")
    assert machine.nics[0].hops == {"gpu:0": Hop.NODE, "gpu:1": Hop.NODE}
    assert "nics[0].hops.nic:1" in machine.missing
    assert [u.line for u in machine.unread] == [4]


def test_a_nic_whose_two_rows_disagree_has_neither_hop() -> None:
    machine = read_text("GPU0 NIC0\nGPU0 X PIX\nNIC0 SYS X", origin="x")
    assert machine.nics[0].hops == {}
    assert machine.missing["nics[0].hops.gpu:0"] == "the row of NIC0 shows SYS, the row of GPU0 shows PIX"


@pytest.mark.parametrize(
    "line",
    [
        "GPU0 " + "1a" * 30_000 + "!",
        "NIC0: " + "1" * 60_000 + " !",
    ],
    ids=["long word", "long name"],
)
def test_a_line_of_60_kb_does_not_take_minutes(line: str) -> None:
    with contextlib.suppress(InputError), limited_time("x", 1):  # what is quadratic takes ten
        read_text("GPU0 GPU1\n" + line + "\n", origin="x")


def test_numbers_beyond_any_machine_are_not_read_as_numbers() -> None:
    big = "9" * 5000
    machine = read_text(f"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t{big}\t{big}", origin="x")
    assert (machine.gpus[0].cpu_affinity, machine.gpus[0].numa_node) == (None, None)
    assert len(machine.unread) == 2
