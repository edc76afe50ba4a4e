"""Predicted and measured speeds of placements side by side."""

from gputopo.report.document import Block, Table
from gputopo.values.run.batches import batch_words
from gputopo.values.run.plan import Autotune, Measured, mode_words

_SETTLED = {
    "lead": "its lead exceeds the noise",
    "same": "the others are within 1 %",
    "time": "the time was used up before its lead exceeded the noise",
    "stopped": "stopped before its lead exceeded the noise",
    "failed": "no other could be run",
}


def autotune_blocks(found: Autotune) -> list[Block]:
    """Return a table of the placements, and how sure the fastest is."""
    rows = [
        (
            mode_words(one.candidate),
            _number(one.candidate.images_per_sec),
            _number(one.images_per_sec),
            str(len(one.runs)),
            _note(found, place),
        )
        for place, one in enumerate(found.measured)
    ]
    heads = ("Placement", "predicted", "measured", "runs", "")
    title = f"Autotune of {found.model}, images/sec at batch {batch_words(found.batch_size)}"
    return [title, Table.of(heads, rows, ("left", "right", "right", "right", "left"))]


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
        return f"failed: {one.failure}"
    return "fastest" if place == found.winner else ""


def _number(speed: float | None) -> str:
    if speed is None:
        return "-"
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"
