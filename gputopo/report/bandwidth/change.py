"""What changed between two bandwidths of one machine, beyond the noise of both."""

from collections.abc import Sequence

from gputopo.report.bandwidth.numbers import number
from gputopo.report.document import Bullets, Document, of_sections
from gputopo.report.fleet import changes_in_words
from gputopo.report.units import counted
from gputopo.values.difference import BandwidthDifference, Changed

_NAMED = 5  # numbers that only one of the two has; the JSON has all


def bandwidth_change_document(difference: BandwidthDifference, date: str) -> Document:
    """Return the changes; `date`: when the earlier one was measured."""
    machine = difference.machine
    changed = difference.changes or difference.failing or difference.working
    unchanged = ["nothing changed beyond noise"] if difference.compared and not changed else []
    lists = [
        (f"Compared with {date}", unchanged),
        (f"Worse than on {date}", [_words(change) for change in difference.changes if not change.better]),
        ("Fails now, worked before", difference.failing),
        (f"Better than on {date}", [_words(change) for change in difference.changes if change.better]),
        ("Works now, failed before", difference.working),
        ("The machine", [] if machine is None else changes_in_words(machine.changes)),
        ("Measured only then", _some(difference.gone)),
        ("Measured only now", _some(difference.appeared)),
    ]
    end = ["No number could be compared."]
    if difference.compared:
        end = [f"{counted(difference.compared, 'number')} compared; changes within noise are not shown."]
    if difference.not_compared:
        numbers = counted(difference.not_compared, "number")
        end.append(f"Not compared: {numbers} of GPUs that only one of the two could measure.")
    sections = [(title, [Bullets(tuple(texts))] if texts else []) for title, texts in lists]
    return of_sections([*sections, ("", end)])


def _words(change: Changed) -> str:
    unit = "us" if change.microseconds else "GB/s"
    words = (
        f"{change.what}: {number(change.is_)} {unit}, was {number(change.was)} "
        f"({change.percent:+.1f}%, noise {change.noise_percent:.1f}%)"
    )
    return "; ".join((words, *change.conditions))


def _some(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _NAMED
    return [*texts[:_NAMED], *([f"and {more} more; --json has them all"] if more > 0 else [])]
