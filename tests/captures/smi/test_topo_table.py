"""Invented matrices: whatever the paste looks like, the cells are those of the text."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.captures import read_text
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Hop, Machine
from tests import there
from tests.captures.smi import matrices
from tests.captures.smi.matrices import Invented

PREFIXES = ("", "# ", "    ", "> ", "+ ", "2024-05-01T10:00:00.1Z INFO [0] ", "// ")
ANSI = ("{}", "\x1b[4m{}\x1b[0m", "^[[4m{}^[[0m", "[4m{}[0m", "\\x1b[4m{}\\x1b[0m")
AROUND = (((), ()), (("$ nvidia-smi topo -m",), ("$ ",)), (("```",), ("```",)))


def assert_same(machine: Machine, matrix: Invented) -> None:
    assert [gpu.index for gpu in machine.gpus] == list(range(matrix.gpus))
    assert len(machine.links) == matrix.gpus * (matrix.gpus - 1) // 2
    for link in machine.links:
        shown = link.hop.value if link.hop else f"NV{link.nvlinks}"
        assert shown == matrix.cells[link.a][link.b]
        if link.hop:
            assert link.nvlinks == (None if "links[*].nvlinks" in machine.missing else 0)
    assert len(machine.nics) == len(matrix.nics)
    for nic in machine.nics:
        own = matrix.gpus + nic.index
        keys = {f"gpu:{i}": i for i in range(matrix.gpus)}
        keys |= {f"nic:{i}": matrix.gpus + i for i in range(len(matrix.nics)) if i != nic.index}
        assert {key: hop.value for key, hop in nic.hops.items()} == {
            k: matrix.cells[own][i] for k, i in keys.items()
        }
    for gpu, words in zip(machine.gpus, matrix.affinity, strict=True):
        assert gpu.cpu_affinity == (words[0] if words else None)
        assert gpu.numa_node == (int(words[1]) if len(words) > 1 else None)


@given(
    matrices.matrices(),
    st.sampled_from([matrices.tabbed, matrices.spaced, matrices.aligned]),
    st.sampled_from(PREFIXES),
    st.sampled_from(ANSI),
    st.sampled_from(["\n", "\r\n", "\r\r\n"]),
    st.booleans(),
    st.sampled_from(AROUND),
)
def test_any_style_of_paste_gives_the_cells_of_the_text(
    matrix: Invented,
    style: Callable[[Invented], list[str]],
    prefix: str,
    ansi: str,
    eol: str,
    legend: bool,
    around: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    header, *lines = style(matrix)
    blank = header[: len(header) - len(header.lstrip())]
    named = [f"  {nic}: rdma_{i}" for i, nic in enumerate(matrix.nics) if nic.startswith("NIC")]
    below = ["", *matrices.LEGEND, "", "NIC Legend:", "", *named] if legend else []
    text = [blank + ansi.format(header[len(blank) :]), *lines, *below]
    whole = eol.join(prefix + line for line in (*around[0], *text, *around[1]))
    machine = read_text(whole, origin="paste")
    assert_same(machine, matrix)
    if named:
        assert [nic.name for nic in machine.nics] == [
            f"rdma_{nic.index}" if legend else None for nic in machine.nics
        ]
    assert machine.unread == ()


@given(matrices.matrices(), st.sampled_from([80, 100]), st.sampled_from([matrices.wrapped, matrices.broken]))
def test_lines_that_a_terminal_wrapped_or_broke_give_the_cells_of_the_text(
    matrix: Invented, width: int, terminal: Callable[[list[str], int], list[str]]
) -> None:
    text = terminal(matrices.spaced(matrix), width)
    assert_same(read_text("\n".join(text), origin="paste"), matrix)


@given(matrices.matrices(most_gpus=6), st.data())
def test_a_cut_text_is_refused_or_gives_only_links_of_the_whole(
    matrix: Invented, data: st.DataObject
) -> None:
    text = "\n".join(matrices.tabbed(matrix))
    whole = read_text(text, origin="paste")
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        machine = read_text(cut, origin="paste")
    except GputopoError:
        return
    for link in machine.links:
        of_whole = there(whole.link(link.a, link.b))
        assert link in (of_whole, replace(of_whole, nvlinks=None))  # an NVLink or the legend may be cut off
    assert {g.index for g in machine.gpus} == {g.index for g in whole.gpus}


@given(matrices.matrices(most_gpus=6), st.data())
def test_a_damaged_text_never_gives_a_link_that_is_not_in_it(matrix: Invented, data: st.DataObject) -> None:
    letters = list("\n".join(data.draw(st.sampled_from([matrices.tabbed, matrices.spaced]))(matrix)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(letters) - 1))
        letters[at : at + data.draw(st.integers(0, 12))] = data.draw(
            st.text(st.sampled_from(list(" \t\nXNVPIBSYODEGU019-,/|?")), max_size=6)
        )
    text = "".join(letters)
    try:
        machine = read_text(text, origin="paste")
    except GputopoError as error:
        lines = f"{error.what}{error.hint}".splitlines()
    else:
        lines = [""]
        _assert_supported(machine, text)
    assert len(lines) == 1


def _assert_supported(machine: Machine, text: str) -> None:
    for link in machine.links:
        assert (link.hop.value if link.hop else f"NV{link.nvlinks}") in text
        assert {link.a, link.b} <= {gpu.index for gpu in machine.gpus}


def test_every_hop_name_of_any_driver_is_read() -> None:
    names = {"PIX": Hop.PIX, "PXB": Hop.PXB, "PHB": Hop.PHB, "NODE": Hop.NODE, "SYS": Hop.SYS}
    names |= {"SOC": Hop.SYS, "INTERNAL": Hop.INTERNAL, "PSB": Hop.INTERNAL}
    for name, hop in names.items():
        text = f"nvidia-smi topo -m\n\tGPU0\tGPU1\nGPU0\t X \t{name}\nGPU1\t{name}\t X "
        machine = read_text(text, origin="paste")
        assert [(link.hop, link.nvlinks) for link in machine.links] == [(hop, 0)]
