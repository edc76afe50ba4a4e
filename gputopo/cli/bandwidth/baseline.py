"""`gputopo bandwidth --baseline`: what changed since the bandwidth that was saved last."""

from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import emit, show, tell
from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.cli.bandwidth.options import Shape
    from gputopo.findings import Severity
    from gputopo.runs.history import Saved
    from gputopo.values.bandwidth import Bandwidth
    from gputopo.values.machine import Machine


def saved_baseline(machine: "Machine", gpus: "Sequence[int] | None") -> "Saved":
    """Give what was saved last of this machine, or of it with fewer GPUs or more, which is said on stderr.

    Raises InputError where there is nothing.
    """
    from gputopo.findings.rule import named
    from gputopo.runs import history

    path = history.history_file()
    if (old := history.latest(path, machine, gpus)) is not None:
        return old
    if (old := history.latest_with_other_gpus(path, machine)) is None:
        raise InputError(
            "no bandwidth of this machine was saved to compare with", "save one: gputopo bandwidth --save"
        )
    then, now = (
        {gpu.pci_address: named(gpu) for gpu in history.answering(one)} for one in (old.machine, machine)
    )
    told = [f"missing: {name}" for at, name in then.items() if at not in now]
    told += [f"new: {name}" for at, name in now.items() if at not in then]
    tell(f"gputopo: this machine had other GPUs on {old.date}; {'; '.join(told)}\n")
    return old


def tell_difference(
    machine: "Machine", measured: "Bandwidth", old: "Saved", shape: "Shape", fail_on: "Severity | None"
) -> bool:
    """Print what changed, and tell whether that is as bad as `fail_on`.

    A number that sank beyond noise is as a warning; a copy that fails and did not, or a GPU that is missing,
    is as an error.
    """
    from gputopo.copies.difference import bandwidth_difference
    from gputopo.topology.identities import without_identities

    now = without_identities(msgspec.structs.replace(machine, bandwidth=measured))
    found = bandwidth_difference(
        old.bandwidth, now.bandwidth or measured, old.machine, msgspec.structs.replace(now, bandwidth=None)
    )
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(found))
    else:
        from gputopo.report.bandwidth.change import change_markdown, change_view

        if shape == "markdown":
            emit(change_markdown(found, old.date))
        else:
            show(lambda width: change_view(found, old.date, width))
    sank = any(not change.better for change in found.changes)
    broken = bool(found.failing or found.missing_gpus)
    return broken if fail_on == "error" else fail_on is not None and (sank or broken)
