"""GPUs that `nvidia-smi` counts and gets no handle of: it writes a line where their facts would stand.

The line names the GPU by its number, its PCI address, both or neither, as the driver's version has it:
`Unable to determine the device handle for GPU3: 0000:04:00.0: Unknown Error`.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gputopo.captures.smi import values
from gputopo.captures.smi.gpu import ReportedGpu
from gputopo.captures.smi.names import Names
from gputopo.captures.smi.values import Value

_LINE = re.compile(
    r"Unable to determine the device handle for GPU(?: ?(?P<number>\d{1,3})(?=:|\Z))?:?"
    r"(?: ?(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))?(?:: *(?P<reason>.*))?",
    re.ASCII | re.IGNORECASE,
)
_WITHOUT_NUMBER = "the line that reports it as not answering does not show its number"


class Unanswered(NamedTuple):
    """The content of such a line, as far as it is there; `reason` is the driver message."""

    number: int | None
    address: str | None
    reason: str


def read(line: str) -> Unanswered | None:
    """Read a line; None if it is none of these."""
    found = _LINE.fullmatch(line.strip())
    if found is None:
        return None
    return Unanswered(
        number=None if found["number"] is None else int(found["number"]),
        address=None if found["address"] is None else values.address(found["address"]),
        reason=values.clean(found["reason"] or "")[:80] or "no answer",
    )


def numbered(
    rows: Mapping[int, ReportedGpu], unanswered: Sequence[Unanswered], names: Names, *, own: bool
) -> dict[int, ReportedGpu]:
    """Return all GPUs by index, those that did not answer in their places.

    A GPU that has a row is no other one. NVML counts by PCI address: that places a GPU among rows that have
    one, else the number in its line does; with neither it comes last, and the reason stands in `missing`.
    `own`: the rows' indices are the source's own, and stay. Else the rows are only in order.
    """
    new = [one for one in dict.fromkeys(unanswered) if not _has_row(one, rows, own)]
    return _in_gaps(rows, new, names) if own else _in_order(rows, new, names)


def lose(gpus: Mapping[int, ReportedGpu], line: Unanswered, *, own: bool) -> None:
    """Mark the GPU as lost that answered before a line reports that it no longer does."""
    for index, gpu in gpus.items():
        if _is(line, index, gpu, own):
            gpu.lost = True
            gpu.notes[""] = line.reason


def _has_row(line: Unanswered, rows: Mapping[int, ReportedGpu], own: bool) -> bool:
    return any(_is(line, index, gpu, own) for index, gpu in rows.items())


def _is(line: Unanswered, index: int, gpu: ReportedGpu, own: bool) -> bool:
    """Return whether a line is about a GPU: by address where both have one, else by its index."""
    if line.address is not None and gpu.address is not None:
        return line.address == gpu.address
    return own and line.number == index


def _in_gaps(
    rows: Mapping[int, ReportedGpu], new: Sequence[Unanswered], names: Names
) -> dict[int, ReportedGpu]:
    """Return each new GPU the number in its line, else the first free one behind the lower addresses."""
    gpus = dict(rows)
    for one in sorted(new, key=lambda one: (one.number is None, one.number, one.address or "~")):
        below = [n for n, row in gpus.items() if one.address and (row.address or "~") < one.address]
        free = _free(gpus, since=1 + max(below, default=-1))
        known = None if one.number in gpus else one.number
        index = next(free) if known is None else known
        gpus[index] = _gpu(one, names, placed=known is not None or _places(one, rows))
    return gpus


def _in_order(
    rows: Mapping[int, ReportedGpu], new: Sequence[Unanswered], names: Names
) -> dict[int, ReportedGpu]:
    """Put new GPUs between the rows by address; one that is placed by number alone takes that number."""
    gpus: dict[int, ReportedGpu] = {}
    line = [row for _, row in sorted(rows.items())]
    for one in sorted(new, key=lambda one: one.address or "~"):
        if _places(one, rows):
            behind = (n for n, row in enumerate(line) if row.address and row.address > (one.address or ""))
            line.insert(next(behind, len(line)), _gpu(one, names, placed=True))
        elif one.number is not None and one.number not in gpus:
            gpus[one.number] = _gpu(one, names, placed=True)
        else:
            line.append(_gpu(one, names, placed=False))
    return gpus | dict(zip(_free(gpus), line, strict=False))


def _free(gpus: Mapping[int, ReportedGpu], since: int = 0) -> Iterator[int]:
    taken = frozenset(gpus)
    return (number for number in itertools.count(since) if number not in taken)


def _places(line: Unanswered, rows: Mapping[int, ReportedGpu]) -> bool:
    """Return whether a line's address shows where its GPU stands among the rows."""
    return line.address is not None and any(row.address is not None for row in rows.values())


def _gpu(line: Unanswered, names: Names, *, placed: bool) -> ReportedGpu:
    gpu = ReportedGpu(names, lost=True, notes={"": line.reason})
    if line.address is not None:
        gpu.reported["pci_address"] = {(0, 0): Value(line.address)}
    if not placed:
        gpu.notes["index"] = _WITHOUT_NUMBER
    return gpu
