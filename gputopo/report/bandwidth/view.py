"""The report of `gputopo bandwidth` as a document, and as JSON."""

from collections.abc import Sequence

import msgspec

from gputopo.findings import Finding
from gputopo.report.bandwidth.parts import bandwidth_parts, doubt_parts
from gputopo.report.document import Document, Section
from gputopo.report.findings import findings_block
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine


class BandwidthReport(Bandwidth, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """A `gputopo.bandwidth/1` document with two more fields, readable as a bandwidth.

    `machine` is stored without its bandwidth, which would be the same again.
    """

    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()


def bandwidth_document(
    machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding], *, matrices: bool = False
) -> Document:
    """Return the report: numbers, findings, failures, notes. `matrices`: of every kind of copy."""
    found = Section("Findings", (findings_block(findings),))
    parts = bandwidth_parts(machine, bandwidth, matrices=matrices)
    return Document("", "", (*parts, found, *doubt_parts(bandwidth)))


def report_of(machine: Machine, bandwidth: Bandwidth, findings: tuple[Finding, ...]) -> BandwidthReport:
    """Return the JSON document of a bandwidth, its machine and its findings."""
    fields = {name: getattr(bandwidth, name) for name in Bandwidth.__struct_fields__}
    bare = msgspec.structs.replace(machine, bandwidth=None)
    return BandwidthReport(**fields, machine=bare, findings=findings)
