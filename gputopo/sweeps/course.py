"""How long the cells of a sweep take: predicted before they run, and by those that ran. Pure."""

from collections.abc import Sequence
from statistics import median

from gputopo.values.run.several_runs import SweepCell

# Starting Python and TensorFlow, building and tracing, as long as no cell ran: median of the cells of `quick`
# on two cores.
START_S = 6.0
FALLBACK_S = 60.0  # of a cell of which nothing is known yet


def predicted_s(
    *,
    images_per_sec: float | None,
    joint_batch: int,
    warmup: int,
    counted: int | None,
    counted_s: float | None,
) -> float | None:
    """Return the seconds of a cell, its start included; None where its speed is not known.

    `images_per_sec`: predicted, of all devices. `counted`: maximum of counted steps; `counted_s`: of seconds.
    """
    if images_per_sec is None or not images_per_sec > 0:
        return None if counted_s is None else START_S + counted_s
    step_s = joint_batch / images_per_sec
    limits = [] if counted is None else [counted * step_s]
    limits += [] if counted_s is None else [max(counted_s, step_s)]
    return None if not limits else START_S + warmup * step_s + min(limits)


def expected_s(cell: SweepCell, cells: Sequence[SweepCell]) -> float:
    """Return the seconds that a cell will take: medians of the cells of the sweep that ran.

    As long as other repeats of it, else its prediction, as much longer or shorter as those of the cells that
    ran; else as those of its model, as all, or FALLBACK_S.
    """
    ran = [one for one in cells if one.ran and one.seconds is not None]
    ratios = [(one.seconds or 0.0) / one.predicted_s for one in ran if one.predicted_s]
    repeats = [one for one in ran if (one.options, one.counted_s) == (cell.options, cell.counted_s)]
    if not repeats and cell.predicted_s is not None:
        return cell.predicted_s * (median(ratios) if ratios else 1.0)
    of_model = [one for one in ran if one.options.get("model") == cell.options.get("model")]
    alike = repeats or of_model or ran
    return median(one.seconds or 0.0 for one in alike) if alike else FALLBACK_S


def left_s(cells: Sequence[SweepCell], *, pause_s: float = 0.0) -> float:
    """Return the seconds that the pending cells will take. `pause_s`: before each."""
    ran = [cell for cell in cells if cell.ran]
    return sum(expected_s(cell, ran) + pause_s for cell in cells if cell.state in ("pending", "running"))
