"""A bandwidth report as GitHub Markdown: the same parts as tables and lists."""

from collections.abc import Sequence

from gputopo.findings import Finding
from gputopo.report.bandwidth.part import Part
from gputopo.report.bandwidth.parts import bandwidth_parts, doubt_parts
from gputopo.report.markdown import escaped, findings_list, table
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine


def bandwidth_markdown(machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding]) -> str:
    """Give the whole report: numbers, findings, failures, what was not measured."""
    sections = [(part.title, _body(part)) for part in bandwidth_parts(machine, bandwidth)]
    sections.append(("Findings", findings_list(findings)))
    sections += [(part.title, _body(part)) for part in doubt_parts(bandwidth)]
    return "\n".join(f"### {escaped(title)}\n\n{body}" for title, body in sections)


def _body(part: Part) -> str:
    pieces = []
    if part.rows:
        pieces.append(table(("", ""), part.rows))
    if part.head is not None:
        pieces.append(_table(part))
    if part.notes:
        pieces.append("".join(f"- {escaped(note)}\n" for note in part.notes))
    return "\n".join(pieces)


def _table(part: Part) -> str:
    assert part.head is not None
    columns = [part.head, *(column for group in part.groups for column in group)]
    heads = [column.head.replace("\n", " ") for column in columns]
    sides = ["---:" if column.side == "right" else "---" for column in columns]
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return table(heads, rows, sides)
