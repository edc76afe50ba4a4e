"""The part of a bandwidth report about the network between hosts."""

from collections.abc import Sequence

from gputopo.report.bandwidth.numbers import number
from gputopo.report.bandwidth.part import Part
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import size
from gputopo.values.bandwidth import NETWORK, Sample, host_of

_MAX_ROWS = 24  # a sweep of perftest over all sizes (-a) has 23
_ARROWS = {"network_bidirectional": "<->"}


def network_part(samples: Sequence[Sample]) -> Part | None:
    """Return the transfers between hosts, the largest messages first; None where there are none."""
    found = sorted((one for one in samples if one.kind in NETWORK), key=lambda one: -(one.bytes or 0))
    if not found:
        return None
    shown = found[:_MAX_ROWS]
    columns = [
        Column("run", tuple(NOT_ASKED if one.run is None else plain(one.run) for one in shown)),
        Column("size", tuple(NOT_ASKED if one.bytes is None else size(one.bytes) for one in shown)),
        Column("streams", tuple(NOT_ASKED if not one.streams else str(one.streams) for one in shown)),
        Column("GB/s", tuple(number(one.median_gb_per_s) for one in shown), side="right"),
        Column("expected", tuple(number(one.expected_gb_per_s) for one in shown), side="right"),
        Column("us", tuple(number(one.median_us) for one in shown), side="right"),
    ]
    kinds = {one.kind for one in found}
    notes = []
    if "network_bidirectional" in kinds:
        notes.append("<-> is the sum of both directions.")
    if "network_latency" in kinds:
        notes.append("us: half a round trip; of an RDMA read or atomic the whole.")
    if len(found) > len(shown):
        notes.append(f"{len(found) - len(shown)} more: see --json.")
    return Part(
        "Between hosts",
        head=Column("Transfer", tuple(map(_transfer, shown))),
        groups=(tuple(one for one in columns if any(cell != NOT_ASKED for cell in one.cells)),),
        notes=tuple(notes),
    )


def _transfer(sample: Sample) -> str:
    source, destination = (plain(host_of(one) or one) for one in (sample.source, sample.destination))
    words = [plain(sample.transport or ""), "beside the other direction" if sample.with_reverse else ""]
    details = ", ".join(filter(None, words))
    ends = f"{source} {_ARROWS.get(sample.kind, '->')} {destination}"
    return f"{ends} ({details})" if details else ends
