"""Every format shows any machine, whatever is missing or odd in it."""

import re
from collections import Counter
from typing import Literal

import msgspec
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


@given(machines(), st.integers(40, 200))
def test_every_format_shows_any_machine(machine: Machine, width: int) -> None:
    """No word from outside moves the cursor, the rows of tables are even, and no series is there twice."""
    inspection = Inspection(machine=machine, findings=FINDINGS)
    details: list[Literal["all", "topology"] | None] = [None, "all", "topology"]
    first, whole, topology = (inspection_document(inspection, detail) for detail in details)
    of_gpus = (inspection_document(inspection, (gpu.index,)) for gpu in machine.gpus)
    assert all(is_printable(document_text(one, width)) for one in (first, whole, topology, *of_gpus))
    for one in (first, whole):
        markdown = document_markdown(one)
        assert is_printable(markdown)
        assert_tables_are_even(markdown)
    families = read(exposition(inspection))
    series = Counter(one.identity for family in families.values() for one in family.samples)
    assert [one for one, count in series.items() if count > 1] == []
    tree = section_text(topology, "PCI tree")
    nodes = {node.address: node for node in machine.pci}
    shown = {address for address, node in nodes.items() if node.kind in ("gpu", "nic")}
    assert bool(tree) == bool(shown)
    for address in shown & set(ADDRESSES):
        assert len(re.findall(rf"  {address}(?:  |$)", re.sub("<-.*", "", tree), re.MULTILINE)) == 1


@given(machines(), machines())
def test_any_two_machines_can_be_compared(one: Machine, other: Machine) -> None:
    found = machine_difference(one, other)
    assert is_printable(document_text(difference_document(found), 80))
    assert is_printable(document_markdown(difference_document(found)))
    assert msgspec.json.decode(schema.encode(found))["compared"] == found.compared


def test_an_empty_machine_is_shown_in_every_format() -> None:
    empty = Inspection(machine=Machine(source="nothing"))
    assert "No GPU is known." in document_text(inspection_document(empty), 20)
    assert "### Findings\n\nNone." in document_markdown(inspection_document(empty, "all"))
    assert read(exposition(empty))["gputopo_gpus"].samples[0].value == 0
