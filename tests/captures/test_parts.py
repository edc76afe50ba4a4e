"""Several captures in one text: each is read, and none of their facts is lost or bent."""

import itertools

import pytest

from gputopo.captures import detect, merge, parts
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop, Machine
from tests.captures.test_together import AGREEING

# A Markdown table is prose as much as data, so beside another capture it is not looked for.
STACKED = sorted(set(AGREEING) - {"table"})
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
PEERS = (
    " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\n"
    "Legend:\n\n  X    = Self\n  GNS  = GPU not supported\n"
)
XML = "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='00000000:05:00.0'></gpu></nvidia_smi_log>"


def read(text: str) -> Machine:
    return detect.read_text(text, origin="bug report")


def facts(machine: Machine) -> tuple[object, ...]:
    return machine.gpus, machine.links, machine.nics, machine.pci, machine.host, machine.contradictions


@pytest.mark.parametrize(("above", "below"), [*itertools.permutations(STACKED, 2)])
def test_two_captures_in_one_text_are_read_as_two_files_are(above: str, below: str) -> None:
    together = read(f"Here it is:\n```\n{AGREEING[above]}\n```\n\n{AGREEING[below]}\n```\nThanks\n")
    alone = [read(AGREEING[above]), read(AGREEING[below])]
    orders = [merge.merge(alone), merge.merge(alone[::-1])]
    assert facts(together) in map(facts, orders)


def test_the_peer_table_below_a_matrix_is_not_lost() -> None:
    machine = read(f"$ nvidia-smi topo -m\n{MATRIX}\n$ nvidia-smi topo -p2p r\n{PEERS}")
    assert machine.source == "nvidia-smi topo + nvidia-smi topo -p2p"
    (link,) = machine.links
    assert (link.hop, link.p2p_read, link.p2p_write) == (Hop.PHB, "GPU_NOT_SUPPORTED", None)


def test_a_capture_beside_a_bandwidth_test_and_a_third_one() -> None:
    test = "P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n     1\t     1     1\n"
    machine = read(MATRIX + test + PEERS)
    assert machine.gpus[0].cpu_affinity == "0-7"
    assert {one.fact for one in machine.contradictions} == {"links[0-1].p2p_read", "links[0-1].p2p_write"}


def test_a_document_in_prose_is_read_alone_and_beside_another() -> None:
    assert read(f"It is this:\n```xml\n{XML}\n```\nSlow!").gpus[0].pci_address == "0000:05:00.0"
    again = read(f"{XML}\n\n{XML}\n")  # a loop
    assert [gpu.pci_address for gpu in again.gpus] == ["0000:05:00.0"]
    assert again.contradictions == ()
    both = read(f"{XML}\n{MATRIX}")
    assert (both.gpus[0].pci_address, both.gpus[0].cpu_affinity) == ("0000:05:00.0", "0-7")


def test_a_document_that_is_cut_is_refused_as_before() -> None:
    with pytest.raises(InputError, match="is not complete XML"):
        read(XML[:60])


def test_line_numbers_stay_those_of_the_text() -> None:
    machine = read(f"{PEERS}\n$ nvidia-smi topo -m\n{MATRIX}GPU1 is the slow one\n")
    assert [(one.line, one.text) for one in machine.unread] == [(14, "GPU1 is the slow one")]


def test_one_capture_is_one_part_with_all_that_stands_around_it() -> None:
    text = f"before\n{MATRIX}after\n"
    assert parts.of(text, detect.stackable()) == [text]
