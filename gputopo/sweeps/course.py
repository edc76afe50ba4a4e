"""How long the cells of a sweep take: predicted before they run, and by those that ran. Pure."""

from collections.abc import Callable, Sequence
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

    As long as other repeats of it. Else, of counted seconds: these, and what others of its model, or all,
    took beside theirs. Else its prediction, as much longer or shorter as those of the cells that ran; else as
    those of its model, as all, or FALLBACK_S.
    """
    ran = [(one, one.seconds) for one in cells if one.ran and one.seconds is not None]
    by_time = [(one, took - one.counted_s) for one, took in ran if one.state == "done" and one.counted_s]
    ratios = [took / one.predicted_s for one, took in ran if one.predicted_s]

    def same(of: Callable[[SweepCell], object], known: Sequence[tuple[SweepCell, float]]) -> float | None:
        alike = [seconds for one, seconds in known if of(one) == of(cell)]
        return median(alike) if alike else None

    found = same(lambda one: (one.options, one.counted_s), ran)
    if found is None and cell.counted_s and by_time:
        found = cell.counted_s + (same(_model, by_time) or median(rest for _, rest in by_time))
    if found is None and cell.predicted_s is not None:
        found = cell.predicted_s * (median(ratios) if ratios else 1.0)
    return found or same(_model, ran) or same(lambda one: None, ran) or FALLBACK_S


def _model(cell: SweepCell) -> object:
    return cell.options.get("model")


def left_s(cells: Sequence[SweepCell], *, pause_s: float = 0.0) -> float:
    """Return the seconds that the pending cells will take. `pause_s`: before each."""
    ran = [cell for cell in cells if cell.ran]
    return sum(expected_s(cell, ran) + pause_s for cell in cells if cell.state in ("pending", "running"))
