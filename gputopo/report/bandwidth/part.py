"""One part of a bandwidth report, and how it is written as text and as Markdown."""

from collections.abc import Iterable
from typing import NamedTuple

from gputopo.report.layout import (
    GAP,
    HEADING,
    INDENT,
    QUIET,
    Column,
    Line,
    aligned,
    blocks,
    indented,
    line,
    paragraph,
    plain,
)
from gputopo.report.markdown import escaped, table

_MAX_LABEL = 24  # of rows; a longer one stands on a separate line


class Part(NamedTuple):
    """A title; rows of a label and words; or a table (`head` names its rows); notes under it.

    `groups`: columns that stay together where the screen is narrow.
    """

    title: str
    rows: tuple[tuple[str, str], ...] = ()
    head: Column | None = None
    groups: tuple[tuple[Column, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.rows and not any(self.groups) and (self.head is not None or not self.notes)


def part_section(part: Part, width: int) -> list[Line]:
    """Return a part under its title, which folds where the screen is narrow."""
    return [
        *paragraph(part.title, width, HEADING),
        *indented(part_lines(part, width - INDENT), INDENT),
        line(),
    ]


def part_lines(part: Part, width: int) -> list[Line]:
    """Return the body of a part in lines of at most `width` columns."""
    lines = _rows(part.rows, width)
    if part.head is not None:
        for block in blocks(part.groups, width - part.head.width):
            lines += [line()] if lines else []
            lines += aligned(part.head, block)
    for note in part.notes:
        lines += paragraph(plain(note), width, QUIET if part.head is not None else "")
    return lines


def _rows(rows: Iterable[tuple[str, str]], width: int) -> list[Line]:
    """Return rows as label and words; the words of a long label stand under it."""
    rows = list(rows)
    space = max((len(label) for label, _ in rows if len(label) <= _MAX_LABEL), default=0)
    lines: list[Line] = []
    for label, words in rows:
        if len(label) > _MAX_LABEL:
            lines += paragraph(label, width, QUIET)
            lines += [((" " * GAP, ""), *one) for one in paragraph(words, width - GAP)]
            continue
        body = paragraph(words, width - space - GAP)
        heads = [label.ljust(space + GAP), *[" " * (space + GAP)] * len(body)]
        lines += [((head, QUIET), *spans) for head, spans in zip(heads, body, strict=False)]
    return lines


def part_markdown(part: Part) -> str:
    """Return the body of a part as Markdown tables and a list of its notes."""
    spans = []
    if part.rows:
        spans.append(table(("", ""), part.rows))
    if part.head is not None:
        columns = [part.head, *(column for group in part.groups for column in group)]
        heads = [column.head.replace("\n", " ") for column in columns]
        sides = ["---:" if column.side == "right" else "---" for column in columns]
        spans.append(table(heads, list(zip(*(column.cells for column in columns), strict=True)), sides))
    if part.notes:
        spans.append("".join(f"- {escaped(note)}\n" for note in part.notes))
    return "\n".join(spans)
