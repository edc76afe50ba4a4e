"""All that `gputopo bandwidth` shows, as lines of text."""

from collections.abc import Iterable, Sequence

from gputopo.findings import Finding
from gputopo.report.bandwidth.heat_map import painted
from gputopo.report.bandwidth.part import Part
from gputopo.report.bandwidth.parts import bandwidth_parts, doubt_parts
from gputopo.report.findings import findings_view
from gputopo.report.layout import (
    GAP,
    HEADING,
    INDENT,
    QUIET,
    Line,
    aligned,
    blocks,
    indented,
    line,
    paragraph,
    plain,
    printable,
    section,
)
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine

_WIDEST_LABEL = 24  # of rows; a longer one stands on a line of its own


def bandwidth_view(
    machine: Machine,
    bandwidth: Bandwidth,
    findings: Sequence[Finding],
    width: int,
    *,
    matrices: bool = False,
) -> list[Line]:
    """Give the report for a screen of `width` columns: numbers, findings, failures, what was not measured."""
    room = width - INDENT
    lines: list[Line] = []
    for part in bandwidth_parts(machine, bandwidth, matrices=matrices):
        lines += _section(part, width)
    lines += section("Findings", findings_view(findings, room))
    for part in doubt_parts(bandwidth):
        lines += _section(part, width)
    return printable(lines[:-1])


def part_lines(part: Part, width: int) -> list[Line]:
    """Give the body of a part in lines of at most `width` columns."""
    lines = _rows(part.rows, width)
    if part.head is not None:
        for block in blocks(part.groups, width - part.head.width):
            lines += [line()] if lines else []
            lines += map(painted, aligned(part.head, block))
    for note in part.notes:
        lines += paragraph(plain(note), width, QUIET if part.head is not None else "")
    return lines


def _section(part: Part, width: int) -> list[Line]:
    """Give a part under its title, which folds where the screen is narrow."""
    return [
        *paragraph(part.title, width, HEADING),
        *indented(part_lines(part, width - INDENT), INDENT),
        line(),
    ]


def _rows(rows: Iterable[tuple[str, str]], width: int) -> list[Line]:
    """Give rows as label and words; the words of a long label stand under it."""
    rows = list(rows)
    room = max((len(label) for label, _ in rows if len(label) <= _WIDEST_LABEL), default=0)
    lines: list[Line] = []
    for label, words in rows:
        if len(label) > _WIDEST_LABEL:
            lines += paragraph(label, width, QUIET)
            lines += [((" " * GAP, ""), *one) for one in paragraph(words, width - GAP)]
            continue
        body = paragraph(words, width - room - GAP)
        heads = [label.ljust(room + GAP), *[" " * (room + GAP)] * len(body)]
        lines += [((head, QUIET), *pieces) for head, pieces in zip(heads, body, strict=False)]
    return lines
