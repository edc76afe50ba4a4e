"""The report of `gputopo bandwidth` as lines of text, as GitHub Markdown and as a JSON document."""

from collections.abc import Sequence

import msgspec

from gputopo.findings import Finding
from gputopo.report.bandwidth.part import part_markdown, part_section
from gputopo.report.bandwidth.parts import bandwidth_parts, doubt_parts
from gputopo.report.findings import findings_view
from gputopo.report.layout import INDENT, Line, printable, section
from gputopo.report.markdown import escaped, findings_list
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine


class BandwidthReport(Bandwidth, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """A `gputopo.bandwidth/1` document with two more fields, readable as a bandwidth.

    `machine` is stored without its bandwidth, which would be the same again.
    """

    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()


def bandwidth_view(
    machine: Machine,
    bandwidth: Bandwidth,
    findings: Sequence[Finding],
    width: int,
    *,
    matrices: bool = False,
) -> list[Line]:
    """Return the report in lines of at most `width` columns: numbers, findings, failures, notes."""
    lines: list[Line] = []
    for part in bandwidth_parts(machine, bandwidth, matrices=matrices):
        lines += part_section(part, width)
    lines += section("Findings", findings_view(findings, width - INDENT))
    for part in doubt_parts(bandwidth):
        lines += part_section(part, width)
    return printable(lines[:-1])


def bandwidth_markdown(machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding]) -> str:
    """Return the report as Markdown: the same parts as tables and lists, every matrix among them."""
    sections = [(part.title, part_markdown(part)) for part in bandwidth_parts(machine, bandwidth)]
    sections.append(("Findings", findings_list(findings)))
    sections += [(part.title, part_markdown(part)) for part in doubt_parts(bandwidth)]
    return "\n".join(f"### {escaped(title)}\n\n{body}" for title, body in sections)


def report_of(machine: Machine, bandwidth: Bandwidth, findings: tuple[Finding, ...]) -> BandwidthReport:
    """Return the JSON document of a bandwidth, its machine and its findings."""
    fields = {name: getattr(bandwidth, name) for name in Bandwidth.__struct_fields__}
    bare = msgspec.structs.replace(machine, bandwidth=None)
    return BandwidthReport(**fields, machine=bare, findings=findings)
