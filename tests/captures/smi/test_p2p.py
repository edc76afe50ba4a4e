"""`nvidia-smi topo -p2p`: every cell, which direction it is of, and pairs whose two directions differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.captures import samples

WORDS = {
    "OK": "OK",
    "CNS": "CHIPSET_NOT_SUPPORTED",
    "GNS": "GPU_NOT_SUPPORTED",
    "TNS": "TOPOLOGY_NOT_SUPPORTED",
    "DR": "DISABLED_BY_REGKEY",
    "NS": "NOT_SUPPORTED",
    "U": "UNKNOWN",
}


def read(text: str = samples.P2P) -> Machine:
    return read_text(text, origin="x")


def table(cells: list[list[str]]) -> str:
    size = len(cells)
    head = " \t" + "\t".join(f"GPU{i}" for i in range(size)) + "\t\n"
    return head + "".join(f" GPU{i}\t" + "\t".join(row) + "\t\n" for i, row in enumerate(cells))


def test_the_command_line_states_which_direction_the_cells_are_of() -> None:
    refused = ["OK", "TOPOLOGY_NOT_SUPPORTED", "TOPOLOGY_NOT_SUPPORTED"]
    machine = read()
    assert [link.p2p_read for link in machine.links] == refused
    assert [link.p2p_write for link in machine.links] == [None] * 3
    writes = read(samples.P2P.replace("-p2p r", "-p2p w"))
    assert [link.p2p_write for link in writes.links] == refused
    assert [link.p2p_read for link in writes.links] == [None] * 3


def test_read_and_write_in_one_text_are_kept_apart() -> None:
    writes = "$ nvidia-smi topo -p2p w\n" + table([["X", "NS"], ["NS", "X"]])
    reads = "$ nvidia-smi topo -p2p r\n" + table([["X", "OK"], ["OK", "X"]])
    (link,) = read(reads + writes).links
    assert (link.p2p_read, link.p2p_write) == ("OK", "NOT_SUPPORTED")


def test_a_table_that_does_not_state_what_it_shows_is_noted() -> None:
    machine = read(table([["X", "CNS"], ["CNS", "X"]]))
    (link,) = machine.links
    assert (link.p2p_read, link.p2p_write) == ("CHIPSET_NOT_SUPPORTED", "CHIPSET_NOT_SUPPORTED")
    assert "capability not shown" in machine.missing["links[*].p2p_read"]


def test_tables_of_other_capabilities_are_listed_and_not_filed() -> None:
    machine = read("$ nvidia-smi topo -p2p a\n" + table([["X", "NS"], ["NS", "X"]]))
    assert (len(machine.gpus), machine.links) == (2, ())
    assert [unread.line for unread in machine.unread] == [3, 4]


def test_two_directions_that_differ_are_a_contradiction_and_no_status() -> None:
    machine = read("topo -p2p r\n" + table([["X", "OK"], ["CNS", "X"]]))
    assert machine.links[0].p2p_read is None
    (found,) = machine.contradictions
    assert found.fact == "links[0-1].p2p_read"
    assert sorted(found.said.values()) == ["CHIPSET_NOT_SUPPORTED", "OK"]


@pytest.mark.parametrize(
    "cells",
    [
        [["X", "OK", "OK"], ["OK", "X", "OK"]],
        [["X", "OK"], ["PIX", "X"]],
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(cells: list[list[str]]) -> None:
    with pytest.raises(InputError):
        read(table(cells))


@given(st.data(), st.integers(2, 9))
def test_every_cell_is_read_as_it_stands(data: st.DataObject, size: int) -> None:
    cells = [["X"] * size for _ in range(size)]
    for a in range(size):
        for b in range(a + 1, size):
            cells[a][b] = cells[b][a] = data.draw(st.sampled_from(sorted(WORDS)))
    machine = read(table(cells))
    assert {(link.a, link.b): link.p2p_write for link in machine.links} == {
        (a, b): WORDS[cells[a][b]] for a in range(size) for b in range(a + 1, size)
    }
    assert machine.contradictions == ()
