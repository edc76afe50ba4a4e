"""Predicted and measured speeds of placements side by side."""

from gputopo.report.layout import Column, Line, aligned, line, plain
from gputopo.values.run.batches import batch_words
from gputopo.values.run.plan import Autotune, Candidate, Measured, mode_words

_SETTLED = {
    "lead": "its lead exceeds the noise",
    "same": "the others are within 1 %",
    "time": "the time was used up before its lead exceeded the noise",
    "stopped": "stopped before its lead exceeded the noise",
    "failed": "no other could be run",
}


def autotune_lines(found: Autotune) -> list[Line]:
    """Return a table of the placements, and how sure the fastest is."""
    placements = Column("Placement", tuple(mode_words(one.candidate) for one in found.measured))
    predicted = Column("predicted", tuple(_predicted(one.candidate) for one in found.measured), "right")
    measured = Column("measured", tuple(_number(one.images_per_sec) for one in found.measured), "right")
    runs = Column("runs", tuple(str(len(one.runs)) for one in found.measured), "right")
    notes = Column("", tuple(_note(found, place) for place in range(len(found.measured))), max_width=60)
    title = line(f"Autotune of {plain(found.model)}, images/sec at batch {batch_words(found.batch_size)}")
    return [title, *aligned(placements, [predicted, measured, runs, notes])]


def autotune_note(found: Autotune) -> str:
    """Return what was chosen in a sentence."""
    if found.winner is None:
        return "Autotune: nothing was measured."
    best = found.measured[found.winner]
    speed = f"{_number(best.images_per_sec)} images/sec measured"
    if best.candidate.images_per_sec is not None:
        speed += f", {_number(best.candidate.images_per_sec)} predicted"
    count = sum(bool(one.runs) for one in found.measured)
    return (
        f"Fastest of {count} measured placements: {mode_words(best.candidate)}, {speed}; "
        f"{_SETTLED[found.settled]}."
    )


def _note(found: Autotune, place: int) -> str:
    one: Measured = found.measured[place]
    if one.failure is not None:
        return f"failed: {plain(one.failure)}"
    return "fastest" if place == found.winner else ""


def _predicted(one: Candidate) -> str:
    return _number(one.images_per_sec)


def _number(speed: float | None) -> str:
    if speed is None:
        return "-"
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"
