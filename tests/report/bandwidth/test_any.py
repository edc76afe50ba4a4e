"""Every format shows any bandwidth, whatever is missing or odd in it."""

import random
import re
from typing import TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report.bandwidth.view import bandwidth_document
from gputopo.report.document import document_text
from gputopo.report.markdown import document_markdown
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine
from tests.invented_machines import invented_machine

Told = TypeVar("Told", bound=msgspec.Struct)
PLACES = ("host", "node:0", "node:1", "gpu:0", "gpu:1", "gpu:2", "gpu:11", "gpu:0,1", "\x1b[31m")


def reported(seed: int) -> tuple[Machine, Bandwidth]:
    """Return the machine of a number, and a bandwidth whose places are sometimes such that there are."""
    dice = random.Random(seed)
    machines = (invented_machine(dice.randrange(2**32)) for _ in range(20))
    machine = next((one for one in machines if one.bandwidth is not None), None)
    assert machine is not None
    assert machine.bandwidth is not None
    replace = msgspec.structs.replace

    def placed(one: Told) -> Told:
        return replace(one, source=dice.choice(PLACES), destination=dice.choice(PLACES))

    bandwidth = machine.bandwidth
    return machine, replace(
        bandwidth,
        samples=tuple(placed(one) for _ in range(5) for one in bandwidth.samples),
        failures=tuple(map(placed, bandwidth.failures)),
    )


@given(st.integers(0, 2**32), st.integers(40, 200))
def test_the_table_is_shown_and_no_word_from_outside_moves_the_cursor(seed: int, width: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_text(bandwidth_document(machine, bandwidth, ()), width)
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert re.search(r"^Bandwidth$", text, re.MULTILINE)
    assert re.search(r"^Findings$", text, re.MULTILINE)


@given(st.integers(0, 2**32))
def test_markdown_tables_have_as_many_cells_in_every_row(seed: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_markdown(bandwidth_document(machine, bandwidth, (), matrices=True))
    assert all(character.isprintable() for character in text.replace("\n", ""))
    table: list[int] = []
    for row in [*text.splitlines(), ""]:
        if row.startswith("| "):
            table.append(len(re.findall(r"(?<!\\)\|", row)))
        else:
            assert len(set(table)) <= 1
            table = []


def test_nothing_at_all_is_shown_as_such() -> None:
    text = document_text(bandwidth_document(Machine(source="none"), Bandwidth(source="live"), ()), 80)
    assert "Source  live" in text
    assert "GPU" not in text
