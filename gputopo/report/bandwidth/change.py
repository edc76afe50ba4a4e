"""What changed between two bandwidths of one machine, beyond the noise of both."""

from collections.abc import Sequence

from gputopo.report.bandwidth.numbers import number
from gputopo.report.document import Block, Bullets, Document, of_sections
from gputopo.report.fleet import changes_in_words
from gputopo.report.units import counted
from gputopo.values.difference import BandwidthDifference, Changed

_NAMED = 5  # numbers that only one of the two has; the JSON has all


def bandwidth_change_document(found: BandwidthDifference, date: str) -> Document:
    """Return the changes; `date`: when the earlier one was measured."""
    parts: list[tuple[str, Sequence[Block]]] = [
        (title, [Bullets(tuple(texts))]) for title, texts in _sections(found, date)
    ]
    return of_sections([*parts, ("", _closing(found))])


def _sections(found: BandwidthDifference, date: str) -> list[tuple[str, list[str]]]:
    worse = [_changed(one) for one in found.changes if not one.better]
    better = [_changed(one) for one in found.changes if one.better]
    machine = changes_in_words(found.machine.changes) if found.machine is not None else []
    sections = [
        (f"Worse than on {date}", worse),
        ("Fails now, worked before", list(found.failing)),
        (f"Better than on {date}", better),
        ("Works now, failed before", list(found.working)),
        ("The machine", machine),
        ("Measured only then", _some(found.gone)),
        ("Measured only now", _some(found.appeared)),
    ]
    shown = [(title, texts) for title, texts in sections if texts]
    if not (found.changes or found.failing or found.working) and found.compared:
        shown.insert(0, (f"Compared with {date}", ["nothing changed beyond noise"]))
    return shown


def _closing(found: BandwidthDifference) -> list[Block]:
    left_out: list[Block] = []
    if found.not_compared:
        numbers = counted(found.not_compared, "number")
        left_out = [f"Not compared: {numbers} of GPUs that only one of the two could measure."]
    if not found.compared:
        return ["No number could be compared.", *left_out]
    numbers = counted(found.compared, "number")
    return [f"{numbers} compared; changes within noise are not shown.", *left_out]


def _changed(one: Changed) -> str:
    unit = "us" if one.microseconds else "GB/s"
    words = (
        f"{one.what}: {number(one.is_)} {unit}, was {number(one.was)} "
        f"({one.percent:+.1f}%, noise {one.noise_percent:.1f}%)"
    )
    return "; ".join((words, *one.conditions))


def _some(texts: Sequence[str]) -> list[str]:
    if len(texts) <= _NAMED:
        return list(texts)
    return [*texts[:_NAMED], f"and {len(texts) - _NAMED} more; --json has them all"]
