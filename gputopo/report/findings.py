"""Findings, contradictions and lines that were not understood, as text to read."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gputopo.findings import Finding, Inspection
from gputopo.machine import Contradiction, Machine, Unread
from gputopo.report.facts import missing_view
from gputopo.report.layout import QUIET, SEVERITY_STYLES, labelled, plain, section
from gputopo.report.machine import machine_view
from gputopo.report.matrix import matrix_view

_UNREAD_SHOWN = 8  # the rest is in the JSON


def inspection_view(inspection: Inspection, width: int) -> Group:
    """Give all that `gputopo inspect` shows, for a screen of `width` columns."""
    machine = inspection.machine
    parts: list[RenderableType] = [machine_view(machine, width)]
    matrix = matrix_view(machine, width - 2)
    if len(machine.gpus) + len(machine.nics) > 1:
        parts.append(section("Topology", *matrix))
    parts.append(section("Findings", findings_view(inspection.findings)))
    parts += _doubts(machine)
    return Group(*parts)


def findings_view(findings: Sequence[Finding]) -> RenderableType:
    """Give one block for each finding: how severe and where, what, what to do."""
    if not findings:
        return Text("None.")
    rows: list[tuple[str, RenderableType]] = []
    for finding in findings:
        style = SEVERITY_STYLES[finding.severity]
        says: list[RenderableType] = [
            Text.assemble((finding.severity, style), (f"  {finding.subject}  {finding.id}", QUIET)),
            Text(plain(finding.says)),
        ]
        if finding.remedy:
            says.append(Text.assemble(("To do: ", QUIET), plain(finding.remedy)))
        rows.append(("-", Group(*says)))
    return labelled(rows)


def _doubts(machine: Machine) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if machine.contradictions:
        parts.append(
            section("Contradictions (the first one stands)", contradictions_view(machine.contradictions))
        )
    if machine.unread:
        parts.append(section("Lines not understood", unread_view(machine.unread)))
    if machine.missing:
        parts.append(section("Not read", missing_view(machine)))
    return parts


def contradictions_view(contradictions: Sequence[Contradiction]) -> RenderableType:
    """Give each fact with what every source says of it."""
    return labelled(
        (plain(one.fact), "; ".join(f"{plain(source)}: {plain(said)}" for source, said in one.said.items()))
        for one in contradictions
    )


def unread_view(unread: Sequence[Unread]) -> RenderableType:
    """Give the first lines that were not understood, each with its place."""
    rows = [(f"{plain(one.source)}:{one.line}", _cut(plain(one.text))) for one in unread[:_UNREAD_SHOWN]]
    if len(unread) > _UNREAD_SHOWN:
        rows.append(("", f"and {len(unread) - _UNREAD_SHOWN} more; --json has them all"))
    return labelled(rows)


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
