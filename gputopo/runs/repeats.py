"""The same run several times: mean and spread (`gputopo.repeats/1`)."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TypeVar

import msgspec

from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats, Spread

T = TypeVar("T")


def combine(runs: Sequence[Result], asked: int) -> Repeats:
    """Combine the results of repeats, in their order. The first incomplete one sets the exit code."""
    bad = next((run for run in runs if run.status != "complete"), None)
    complete = [run for run in runs if run.status == "complete"]
    means = [run.throughput.mean for run in complete if run.throughput is not None]
    return Repeats(
        status="complete" if bad is None else bad.status,
        exit_code=0 if bad is None else bad.exit_code,
        asked=asked,
        complete=len(complete),
        images_per_sec=spread(means),
        runs=tuple(runs),
    )


def ended_by(repeats: Repeats, status: str, exit_code: int) -> Repeats:
    """Return repeats that were ended from outside. The status of an incomplete repeat has precedence."""
    if repeats.exit_code:
        return repeats
    return msgspec.structs.replace(repeats, status=status, exit_code=int(exit_code))


def spread(means: Sequence[float]) -> Spread | None:
    """Return mean and spread of the repeats' speeds, or None if there are none."""
    if not means:
        return None
    return Spread(
        mean=fmean(means),
        deviation=stdev(means) if len(means) > 1 else None,
        lowest=min(means),
        highest=max(means),
        of=len(means),
    )
