"""All that `gputopo inspect` shows: the machine, its matrix, the findings, what is in doubt or missing."""

from collections.abc import Sequence

from gputopo.findings import Finding, Inspection
from gputopo.machine import Contradiction, Machine, Unread
from gputopo.report.facts import missing_view
from gputopo.report.layout import (
    INDENT,
    QUIET,
    SEVERITY_STYLES,
    Line,
    labelled,
    line,
    paragraph,
    plain,
    section,
)
from gputopo.report.machine import machine_view
from gputopo.report.matrix import matrix_view

_UNREAD_SHOWN = 8  # the rest is in the JSON
_UNREAD_WIDTH = 100


def inspection_view(inspection: Inspection, width: int) -> list[Line]:
    """Give all that `gputopo inspect` shows, for a screen of `width` columns."""
    machine = inspection.machine
    lines = machine_view(machine, width)
    if machine.gpus:
        lines += section("Topology", matrix_view(machine, width - INDENT))
    lines += section("Findings", findings_view(inspection.findings, width - INDENT))
    lines += _doubts(machine, width - INDENT)
    return lines[:-1]


def findings_view(findings: Sequence[Finding], width: int) -> list[Line]:
    """Give one block for each finding: how severe and where, what, what to do."""
    if not findings:
        return [line("None.")]
    return [one for finding in findings for one in _finding(finding, width)]


def contradictions_view(contradictions: Sequence[Contradiction], width: int) -> list[Line]:
    """Give each fact with what every source says of it."""
    said = [[f"{source}: {words}" for source, words in one.said.items()] for one in contradictions]
    facts = [plain(one.fact) for one in contradictions]
    return labelled(zip(facts, [plain("; ".join(words)) for words in said], strict=True), width)


def unread_view(unread: Sequence[Unread], width: int) -> list[Line]:
    """Give the first lines that were not understood, each with its place."""
    rows = [(f"{plain(one.source)}:{one.line}", _cut(plain(one.text))) for one in unread[:_UNREAD_SHOWN]]
    if len(unread) > _UNREAD_SHOWN:
        rows.append(("", f"and {len(unread) - _UNREAD_SHOWN} more; --json has them all"))
    return labelled(rows, width)


def _finding(finding: Finding, width: int) -> list[Line]:
    severity = (finding.severity.ljust(9), SEVERITY_STYLES[finding.severity])
    indent = " " * len(severity[0])
    body = paragraph(plain(finding.says), width - len(indent))
    if finding.remedy:
        body += paragraph(f"To do: {plain(finding.remedy)}", width - len(indent))
    head: Line = (severity, (f"{finding.subject}  {finding.id}", QUIET))
    return [head, *(((indent, ""), *pieces) for pieces in body)]


def _doubts(machine: Machine, width: int) -> list[Line]:
    lines: list[Line] = []
    if machine.contradictions:
        said = contradictions_view(machine.contradictions, width)
        lines += section("Contradictions (the first one stands)", said)
    if machine.unread:
        lines += section("Lines not understood", unread_view(machine.unread, width))
    if machine.missing:
        lines += section("Not read", missing_view(machine, width))
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _UNREAD_WIDTH else f"{text[: _UNREAD_WIDTH - 3]}..."
