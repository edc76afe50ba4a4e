"""Every format shows any bandwidth, whatever is missing or odd in it."""

import random
from typing import Any, TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import bandwidth_document, document_markdown, document_text
from gputopo.values.bandwidth import (
    Bandwidth,
    Sample,
    Samples,
)
from gputopo.values.ends import End
from gputopo.values.machine import LineCounts, Machine
from tests import there
from tests.invented_bandwidths import bandwidth_of, machine_with
from tests.invented_machines import invented_machine
from tests.report.shown import assert_tables_are_even

Told = TypeVar("Told", bound=msgspec.Struct)
_PLACES = ("host", "node:0", "node:1", "gpu:0", "gpu:1", "gpu:2", "gpu:11", "gpu:0,1", "\x1b[31m")
PLACES = tuple(map(End, _PLACES))


def reported(seed: int) -> tuple[Machine, Bandwidth]:
    """Return the machine of a number, and a bandwidth whose places are sometimes such that there are."""
    dice = random.Random(seed)
    machines = (invented_machine(dice.randrange(2**32)) for _ in range(20))
    machine = there(next((one for one in machines if one.bandwidth is not None), None))
    replace = msgspec.structs.replace

    def placed(one: Told) -> Told:
        return replace(one, source=dice.choice(PLACES), destination=dice.choice(PLACES))

    bandwidth = there(machine.bandwidth)
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
    assert text.strip()


@given(st.integers(0, 2**32))
def test_markdown_tables_have_as_many_cells_in_every_row(seed: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_markdown(bandwidth_document(machine, bandwidth, (), whole=True))
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert_tables_are_even(text)


@given(st.integers(0, 2**32), st.integers(40, 200))
def test_no_word_from_outside_moves_the_cursor_or_adds_a_cell(seed: int, width: int) -> None:
    machine, bandwidth = reported(seed)
    text = document_text(bandwidth_document(machine, bandwidth, ()), width)
    markdown = document_markdown(bandwidth_document(machine, bandwidth, (), whole=True))
    assert text.strip()
    assert all(character.isprintable() for character in f"{text}{markdown}".replace("\n", ""))
    assert_tables_are_even(markdown)


def only(*samples: Sample, **more: Any) -> Bandwidth:
    return Bandwidth(source="test", samples=Samples(samples), **more)


def test_lines_that_were_not_understood_are_counted() -> None:
    lines = (LineCounts(source="test", read=5, known=1, not_understood=3),)
    machine = msgspec.structs.replace(machine_with(2), lines=lines)
    text = document_text(bandwidth_document(machine, only(), ()), 80)
    assert "3 lines not understood: gputopo" in text


def test_sixteen_gpus_fit_a_narrow_screen() -> None:
    text = document_text(bandwidth_document(machine_with(16), bandwidth_of(16), (), whole=True), 40)
    assert max(map(len, text.splitlines())) <= 40
