"""The JSON document of `gputopo bandwidth`: the bandwidth, and beside it the machine and the findings."""

import msgspec

from gputopo.findings import Finding
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine


class BandwidthReport(Bandwidth, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """A `gputopo.bandwidth/1` document with two more fields, so whoever reads bandwidths reads it as well.

    `machine` has no bandwidth of its own: it would be the same again.
    """

    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()


def report_of(machine: Machine, bandwidth: Bandwidth, findings: tuple[Finding, ...]) -> BandwidthReport:
    """Put the document together."""
    fields = {name: getattr(bandwidth, name) for name in Bandwidth.__struct_fields__}
    bare = msgspec.structs.replace(machine, bandwidth=None)
    return BandwidthReport(**fields, machine=bare, findings=findings)
