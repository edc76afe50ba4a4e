"""The constants of a program adjusted to one box by its own runs: two numbers. Pure.

One multiplies the share of their rates that links reach, the other the cost of each variable. They have the
least squares of errors with Cauchy's weights, so that a run that contradicts the others hardly counts.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import msgspec

from gputopo.prediction.programs import ProgramConstants
from gputopo.prediction.step import ModelCosts, Placement, StepPredictor
from gputopo.values.run.plan import MIN_JOBS, Learned, mode_name

# Either number stays between a half and two: two runs of each published box with the constants of the others
# find 0.51 to 1.54 for links, 0.66 to 1.80 for variables.
MAX_FACTOR = 2.0
# Of the published figures of machines that were left out none is farther from its prediction than by 1.27. A
# job that is farther by this is odd, and counts only where most of the box's jobs are.
ODD_FACTOR = 1.5
# The error, as a logarithm, from which on a job counts less and less.
DOUBTFUL = 0.1
# A pull of both numbers to 1, which decides where the jobs do not: as much as an error of 8 % for a factor of
# e. With less, jobs with one placement spoil the predictions of others; with more, two jobs change little.
PULL = 0.08
# The range of a program counts as much as so many jobs. After runs of a published box in one mode 89 % of the
# figures of its other models in that mode are inside the range, which is made for 90 %; of those in other
# modes 84 %, so that their range stays (`tests.fits.programs` prints both).
RANGE_JOBS = 4
_RANGE_SIGMAS = 1.645  # of a normal distribution, 90 % are as near to its mean


class MeasuredStep(NamedTuple):
    """A run of several GPUs: what its prediction needs, and the seconds of its step as measured.

    `weights`, `gradients`: seconds a byte of the slowest link.
    """

    model: ModelCosts
    towers: int
    cpus: int  # CPU sockets
    compute_s: float
    placing: Placement
    weights: float
    gradients: float
    step_s: float
    of_host: int | None = None  # of the towers, on the host that has most; None: all


def adjusted(program: ProgramConstants, links: float, variables: float) -> ProgramConstants:
    """Return a program with `links` times its share of links, and `variables` times its cost of variables."""
    return msgspec.structs.replace(
        program,
        link_share=program.link_share * links,
        ring_share=program.ring_share * links,
        host_add_gb_per_s=program.host_add_gb_per_s * links,
        us_cpu=program.us_cpu * variables,
        us_add=program.us_add * variables,
        us_device=program.us_device * variables,
        us_ring=program.us_ring * variables,
        ring_mb=program.ring_mb * variables,
    )


def calibrated(program: ProgramConstants, learned: Learned) -> ProgramConstants:
    """Return the program with what was learned of a box."""
    return adjusted(program, learned.links, learned.variables)


def range_share(learned: Learned, placing: Placement) -> float:
    """Return the width of the range over the program's, as logarithms: 1 in modes that never ran."""
    return learned.range_shares.get(mode_name(*placing), 1.0)


def learn(
    program: ProgramConstants,
    jobs: Sequence[MeasuredStep],
    runs: int | None = None,
    *,
    measured: bool = False,
) -> Learned | None:
    """Return what the jobs of one box say of the program's constants; None without jobs.

    Each job counts once, however often it ran; `runs`: of all jobs together. Of fewer than MIN_JOBS that
    count nothing is learned: both numbers are 1. `measured`: the box's copies were; its links
    carry no more then.
    """
    if not jobs:
        return None
    odd = [abs(_error(program, job)) > math.log(ODD_FACTOR) for job in jobs]
    if 2 * sum(odd) > len(jobs):
        odd = [False] * len(jobs)
    counted = [job for job, is_odd in zip(jobs, odd, strict=True) if not is_odd]
    runs = len(jobs) if runs is None else runs
    if len(counted) < MIN_JOBS:
        return Learned(runs=runs, jobs=len(jobs), odd=sum(odd))

    @cache
    def cost(logarithms: tuple[float, float]) -> float:
        own = adjusted(program, *map(math.exp, logarithms))
        return sum(_doubt(_error(own, job)) for job in counted) + sum((PULL * one) ** 2 for one in logarithms)

    bound = math.log(MAX_FACTOR)
    # All of its rate is the most that a measured link carries.
    most = math.log(math.floor(1000 / program.link_share) / 1000) if measured else bound
    links, variables = map(math.exp, _least(cost, [(-bound, most), (-bound, bound)]))
    own = adjusted(program, links, variables)
    by_mode: dict[str, list[float]] = {}
    for job in counted:
        by_mode.setdefault(mode_name(*job.placing), []).append(_error(own, job))
    return Learned(
        runs=runs,
        jobs=len(jobs),
        odd=sum(odd),
        links=round(links, 3),
        variables=round(variables, 3),
        range_shares={mode: round(_range_share(program, errors), 3) for mode, errors in by_mode.items()},
    )


def _error(program: ProgramConstants, run: MeasuredStep) -> float:
    """Return the logarithm of predicted over measured seconds."""
    stepper = StepPredictor(run.model, program, run.towers, run.cpus, run.of_host)
    step_s = run.compute_s + sum(stepper.predict(run.placing, run.compute_s, run.weights, run.gradients))
    return math.log(step_s / run.step_s)


def _doubt(error: float) -> float:
    """Return Cauchy's loss of an error (Holland and Welsch, 1977)."""
    return DOUBTFUL**2 * math.log1p((error / DOUBTFUL) ** 2)


def _range_share(program: ProgramConstants, errors: Sequence[float]) -> float:
    """Return the width of the range over the program's, as logarithms, by the errors of one mode.

    The variance of the program's errors counts as that of RANGE_JOBS jobs beside those of the box: below 1
    where several errors are small, above 1 where they are large.
    """
    sigma = math.log(program.high / program.low) / 2 / _RANGE_SIGMAS
    own = sum((error / sigma) ** 2 for error in errors)
    return math.sqrt((RANGE_JOBS + own) / (RANGE_JOBS + len(errors) - 1))


def _least(
    cost: Callable[[tuple[float, float]], float], bounds: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Return the two numbers within their bounds that cost least, found from 0 by ever shorter steps."""
    best, step = (0.0, 0.0), 0.25
    while step > 1e-4:
        near = [
            tuple(
                min(max(value + move * step, low), high)
                for value, move, (low, high) in zip(best, moves, bounds, strict=True)
            )
            for moves in product((-1, 0, 1), repeat=2)
        ]
        found = min(((one[0], one[1]) for one in near), key=cost)
        best, step = (found, step) if cost(found) < cost(best) else (best, step / 2)
    return best
