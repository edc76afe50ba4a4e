"""One part of a bandwidth report."""

from gputopo.report.document import Block, Bullets, Rows, Section, Table
from gputopo.report.layout import Column


def part(
    title: str,
    *,
    rows: tuple[tuple[str, str], ...] = (),
    head: Column | None = None,
    groups: tuple[tuple[Column, ...], ...] = (),
    notes: tuple[str, ...] = (),
) -> Section:
    """Return a section of rows, of a table (`head` names its rows) or of notes; without blocks if empty."""
    blocks: list[Block] = [Rows(rows)] if rows else []
    if head is not None and any(groups):
        blocks.append(Table(head, tuple(filter(None, groups)), notes))
    elif head is None and notes:
        blocks.append(Bullets(notes))
    return Section(title, tuple(blocks))
