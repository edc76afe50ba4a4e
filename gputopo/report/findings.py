"""All that `gputopo inspect` shows: the machine, its matrix, the findings, what is in doubt or missing."""

from collections.abc import Sequence

from gputopo.findings import Finding, Inspection
from gputopo.report.layout import (
    INDENT,
    QUIET,
    SEVERITY_STYLES,
    Line,
    labelled,
    line,
    paragraph,
    plain,
    printable,
    section,
)
from gputopo.report.machine.about import machine_view
from gputopo.report.machine.facts import missing_view, not_read
from gputopo.report.machine.health import health_view
from gputopo.report.machine.matrix import matrix_view, peers_view
from gputopo.report.machine.ports import ports_view
from gputopo.report.machine.tree import tree_view
from gputopo.values.machine import Contradiction, Machine, Unread
from gputopo.values.subject import subjects_in_words

_UNREAD_SHOWN = 8  # the rest is in the JSON
_UNREAD_WIDTH = 100
_COUNTED_FROM = 4  # findings


def inspection_view(inspection: Inspection, width: int) -> list[Line]:
    """Return all that `gputopo inspect` shows, in lines of at most `width` columns."""
    machine = inspection.machine
    lines = machine_view(machine, width)
    space = width - INDENT
    if machine.gpus:
        peers = peers_view(machine, space)
        lines += section("Topology", [*matrix_view(machine, space), *([line()] if peers else []), *peers])
    if tree := tree_view(machine, space):
        lines += section("PCI tree", tree)
    if ports := ports_view(machine, space):
        lines += section("Network ports", ports)
    if health := health_view(machine, space):
        lines += section("Health", health)
    found = findings_view(inspection.findings, space, nothing=nothing_found(machine))
    lines += section(_findings_title(inspection.findings), found)
    lines += _doubts(machine, width - INDENT)
    return printable(lines[:-1])


def nothing_found(machine: Machine) -> str:
    """Return the words for no finding; facts that were not read did not pass."""
    return "None in what was read. What was not read was not checked." if not_read(machine) else "None."


def findings_view(findings: Sequence[Finding], width: int, *, nothing: str = "None.") -> list[Line]:
    """Return one block for each finding: severity, subject and id, message, remedy.

    Findings that follow one another with one id, severity and remedy share a block.
    """
    if not findings:
        return paragraph(nothing, width)
    return [one for group in grouped_findings(findings) for one in _block(group, width)]


def watched_view(findings: Sequence[Finding], xid_reason: str | None, width: int) -> list[Line]:
    """Return the findings of a watch, and what could not be watched."""
    lines = section("Seen while watching", findings_view(findings, width - INDENT))
    if xid_reason is not None:
        lines += section("Not watched", paragraph(f"Xid errors: {xid_reason}", width - INDENT))
    return printable(lines[:-1])


def grouped_findings(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Put findings of one id, severity and remedy together, in the order of the first of each."""
    groups: dict[tuple[str, str, str | None], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.id, finding.severity, finding.remedy), []).append(finding)
    return list(groups.values())


def _findings_title(findings: Sequence[Finding]) -> str:
    """Count the findings in the title where there are too many to see at once."""
    if len(findings) < _COUNTED_FROM:
        return "Findings"
    counts = [(sum(finding.severity == name for finding in findings), name) for name in SEVERITY_STYLES]
    words = [
        f"{count} {name}{'s' if count > 1 and name != 'info' else ''}" for count, name in counts if count
    ]
    return f"Findings: {', '.join(words)}"


def contradictions_view(contradictions: Sequence[Contradiction], width: int) -> list[Line]:
    """Return each fact with its value from every source."""
    values = [[f"{source}: {words}" for source, words in one.said.items()] for one in contradictions]
    facts = [plain(one.fact) for one in contradictions]
    return labelled(zip(facts, [plain("; ".join(words)) for words in values], strict=True), width)


def unread_view(unread: Sequence[Unread], width: int) -> list[Line]:
    """Return the first lines that were not understood, each with its source and number."""
    rows = [(f"{plain(one.source)}:{one.line}", _cut(plain(one.text))) for one in unread[:_UNREAD_SHOWN]]
    if len(unread) > _UNREAD_SHOWN:
        rows.append(("", f"and {len(unread) - _UNREAD_SHOWN} more; --json has them all"))
    return labelled(rows, width)


def _block(group: Sequence[Finding], width: int) -> list[Line]:
    first = group[0]
    severity = (first.severity.ljust(9), SEVERITY_STYLES[first.severity])
    space = width - len(severity[0])
    head = paragraph(plain(f"{subjects_in_words(one.subject for one in group)}  {first.id}"), space, QUIET)
    body = [one for says in dict.fromkeys(f.says for f in group) for one in paragraph(plain(says), space)]
    if first.remedy:
        body += paragraph(f"To do: {plain(first.remedy)}", space)
    marks = [severity, *[(" " * len(severity[0]), "")] * (len(head) + len(body))]
    return [(mark, *spans) for mark, spans in zip(marks, [*head, *body], strict=False)]


def _doubts(machine: Machine, width: int) -> list[Line]:
    lines: list[Line] = []
    if machine.contradictions:
        values = contradictions_view(machine.contradictions, width)
        lines += section("Contradictions (the first one is used)", values)
    if machine.unread:
        lines += section("Lines not understood", unread_view(machine.unread, width))
    if not_read(machine):
        lines += section("Not read", missing_view(machine, width))
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _UNREAD_WIDTH else f"{text[: _UNREAD_WIDTH - 3]}..."
