"""The same run several times: mean and spread (`gputopo.repeats/1`)."""

from collections.abc import Sequence
from statistics import fmean, stdev

from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats, Spread


def combine_repeats(runs: Sequence[Result], asked: int, ended: tuple[str, int] = ("complete", 0)) -> Repeats:
    """Combine the results of repeats, in their order. The first incomplete one sets the exit code.

    `ended`: status and exit code of what ended complete repeats from outside.
    """
    bad = next((run for run in runs if run.status != "complete"), None)
    complete = [run for run in runs if run.status == "complete"]
    means = [run.throughput.mean for run in complete if run.throughput is not None]
    return Repeats(
        status=ended[0] if bad is None else bad.status,
        exit_code=ended[1] if bad is None else bad.exit_code,
        asked=asked,
        complete=len(complete),
        images_per_sec=spread(means),
        runs=tuple(runs),
    )


def spread(means: Sequence[float]) -> Spread | None:
    """Return mean and spread of the repeats' speeds, or None without a complete repeat."""
    if not means:
        return None
    return Spread(
        mean=fmean(means),
        deviation=stdev(means) if len(means) > 1 else None,
        lowest=min(means),
        highest=max(means),
        of=len(means),
    )
