"""`gputopo bandwidth --baseline`: what changed since the bandwidth that was saved last."""

from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import emit, show

if TYPE_CHECKING:
    from gputopo.bandwidth import Bandwidth
    from gputopo.cli.bandwidth.options import Shape
    from gputopo.findings import Severity
    from gputopo.history import Saved
    from gputopo.machine import Machine


def tell_difference(
    machine: "Machine", measured: "Bandwidth", old: "Saved", shape: "Shape", fail_on: "Severity | None"
) -> bool:
    """Print what changed, and tell whether that is as bad as `fail_on`.

    A number that sank beyond noise is as a warning, a copy that fails and did not is as an error.
    """
    from gputopo.identities import without_identities
    from gputopo.links.difference import bandwidth_difference

    now = without_identities(msgspec.structs.replace(machine, bandwidth=measured))
    found = bandwidth_difference(
        old.bandwidth, now.bandwidth or measured, old.machine, msgspec.structs.replace(now, bandwidth=None)
    )
    if shape == "json":
        from gputopo import schema

        emit(schema.encode_pretty(found))
    else:
        from gputopo.report.bandwidths.change import change_markdown, change_view

        if shape == "markdown":
            emit(change_markdown(found, old.date))
        else:
            show(lambda width: change_view(found, old.date, width))
    sank = any(not change.better for change in found.changes)
    return (
        bool(found.failing) if fail_on == "error" else fail_on is not None and (sank or bool(found.failing))
    )
