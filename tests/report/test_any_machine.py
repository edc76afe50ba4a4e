"""Every format shows any machine, whatever is missing or odd in it."""

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings import machine_difference
from gputopo.report import (
    difference_document,
    document_markdown,
    document_text,
    exposition,
    inspection_document,
)
from gputopo.values import schema
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import Machine
from gputopo.values.subject import Subject
from tests.invented_machines import ADDRESSES, machines
from tests.report.exposition_grammar import read
from tests.report.shown import assert_tables_are_even, section_text

FINDINGS = (
    Finding(
        id="a.b",
        severity="warning",
        subject=Subject.parse("gpu:0"),
        says="odd | and `odd`",
        remedy="do *this*",
    ),
    Finding(id="a.b", severity="warning", subject=Subject.parse("gpu:1"), says="odd too", remedy="do *this*"),
    Finding(id="c", severity="error", subject=Subject.parse("gpus:0-3"), says="\x1b[31m\nx"),
)


def is_printable(text: str) -> bool:
    return all(character.isprintable() for character in text.replace("\n", ""))


@given(machines(), st.integers(40, 200), st.data())
def test_the_table_is_shown_and_no_word_from_outside_moves_the_cursor(
    machine: Machine, width: int, data: st.DataObject
) -> None:
    inspection = Inspection(machine=machine, findings=FINDINGS)
    document = inspection_document(inspection, data.draw(st.sampled_from((None, "all", "topology"))))
    assert is_printable(document_text(document, width))
    for gpu in machine.gpus:
        assert is_printable(document_text(inspection_document(inspection, (gpu.index,)), width))


@given(machines())
def test_the_tree_shows_every_gpu_of_the_tree_once(machine: Machine) -> None:
    text = section_text(inspection_document(Inspection(machine=machine), "topology"), "PCI tree")
    nodes = {node.address: node for node in machine.pci}
    shown = {address for address, node in nodes.items() if node.kind in ("gpu", "nic")}
    for address in shown & set(ADDRESSES):
        assert len(re.findall(rf"  {address}(?:  |$)", re.sub("<-.*", "", text), re.MULTILINE)) == 1
    assert bool(text) == bool(shown)


@given(machines())
def test_markdown_tables_have_as_many_cells_in_every_row(machine: Machine) -> None:
    inspection = Inspection(machine=machine, findings=FINDINGS)
    text = document_markdown(inspection_document(inspection))
    text += document_markdown(inspection_document(inspection, "all"))
    assert is_printable(text)
    assert_tables_are_even(text)


@given(machines())
def test_the_exposition_follows_the_grammar_and_no_series_is_there_twice(machine: Machine) -> None:
    families = read(exposition(Inspection(machine=machine, findings=FINDINGS)))
    series = Counter(one.identity for family in families.values() for one in family.samples)
    assert [one for one, count in series.items() if count > 1] == []


@given(machines())
def test_nothing_differs_from_itself(machine: Machine) -> None:
    # Several GPUs of one index or address are no machine: which is which is unknown.
    indices = [gpu.index for gpu in machine.gpus]
    if len(set(indices)) < len(indices):
        return
    machine = msgspec.structs.replace(
        machine,
        gpus=tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in machine.gpus),
        nics=machine.nics[:1],
        pci=machine.pci[:1],
        links=machine.links[:1],
    )
    changes = machine_difference(machine, machine).changes
    assert not [change for change in changes if change.was == change.was], "only NaN differs"


@given(machines(), machines())
def test_any_two_machines_can_be_compared_and_the_result_be_shown(one: Machine, other: Machine) -> None:
    found = machine_difference(one, other)
    assert is_printable(document_text(difference_document(found), 80))
    assert is_printable(document_markdown(difference_document(found)))
    assert msgspec.json.decode(schema.encode(found))["compared"] == found.compared


@pytest.mark.parametrize("width", [20, 40, 80])
def test_an_empty_machine_is_shown_in_every_format(width: int) -> None:
    empty = Inspection(machine=Machine(source="nothing"))
    assert "No GPU is known." in document_text(inspection_document(empty), width)
    assert "### Findings\n\nNone." in document_markdown(inspection_document(empty, "all"))
    assert read(exposition(empty))["gputopo_gpus"].samples[0].value == 0
