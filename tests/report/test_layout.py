import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report.layout import (
    Column,
    aligned,
    blocks,
    labelled,
    paragraph,
    text_of,
    width_of,
)
from gputopo.values.index_ranges import index_ranges


def test_a_text_hangs_beside_its_label() -> None:
    text = text_of(labelled([("CPU", "a b c d e f"), ("Memory", "x")], 15))
    assert text == "CPU     a b c d\n        e f\nMemory  x\n"


def test_columns_are_aligned_to_their_sides_and_heads_stand_at_the_bottom() -> None:
    rows = Column("GPU", ("0", "10"), "right")
    power = Column("Power W\nnow", ("7", "?"), "right")
    assert text_of(aligned(rows, [power])) == "     Power W\nGPU      now\n  0        7\n 10        ?\n"


def test_a_cell_that_is_too_long_folds_in_its_column() -> None:
    text = text_of(
        aligned(Column("", ("0",)), [Column("Name", ("one two three",), max_width=8), Column("N", ("1",))])
    )
    assert text == "   Name      N\n0  one two   1\n   three\n"


def test_a_row_with_nothing_in_it_is_left_out() -> None:
    assert "NIC0" not in text_of(aligned(Column("", ("GPU0", "NIC0")), [Column("CPUs", ("0-7", ""))]))


def test_a_group_stays_together_if_a_block_has_space_for_it() -> None:
    a, b = Column("aaaa", ("1",)), Column("bbbb", ("2",))
    assert blocks([[a, a], [b, b]], 18) == [[a, a], [b, b]]
    assert blocks([[a, a], [b, b]], 24) == [[a, a, b, b]]
    assert blocks([[a] * 4], 18) == [[a, a], [a, a]]  # two and two, not three and one


@given(st.lists(st.lists(st.integers(1, 12), max_size=12), max_size=4), st.integers(14, 90))
def test_blocks_lose_nothing_and_fit(groups: list[list[int]], width: int) -> None:
    columns = [[Column("x" * size, ("",)) for size in group] for group in groups]
    shared = blocks(columns, width)
    assert [column for block in shared for column in block] == [
        column for group in columns for column in group
    ]
    assert all(width_of(block) <= width for block in shared)


@given(st.text(alphabet="ab ", max_size=200), st.integers(8, 60))
def test_a_paragraph_fits_and_keeps_its_words(text: str, width: int) -> None:
    lines = text_of(paragraph(text, width)).splitlines()
    assert max(map(len, lines), default=0) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("indices", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([6, 0, 1, 3, 3], "0-1,3,6")]
)
def test_indices_are_written_as_ranges(indices: list[int], text: str) -> None:
    assert index_ranges(indices) == text
