"""How far predictions are from published figures of machines that were left out: python -m tests.fits.ranges.

Prints the factors that hold for 80 % of the images/sec of several GPUs if the speed of one is known, and the
factor that nine of ten ratios of two placements are within: a ratio beyond it decides a placement.
"""

import math
from functools import cache

from gputopo.prediction import ProgramConstants
from tests.fits.cases import Case, Constants, grouped, published_cases, quantile
from tests.fits.programs import fit_all

SHARE, OF_RATIOS = 0.8, 0.9


@cache
def fitted() -> dict[str, tuple[ProgramConstants, dict[str, ProgramConstants]]]:
    """Return each program with those that were fitted without each box."""
    return fit_all()


def without(program: str, box: str) -> Constants:
    """Return the predictions of a program that was fitted without a box."""
    everything, left_out = fitted()[program]
    return Constants(left_out.get(box, everything))


def factors(program: str) -> list[float]:
    """Return by what factor each figure is off, sorted: more than 1."""
    errors = (
        without(program, case.row.machine).error(case) for case in published_cases(program, data="synthetic")
    )
    return sorted(math.exp(abs(error)) for error in errors)


def ratio_factors(program: str) -> list[float]:
    """Return by what factor the predicted ratio of NCCL and another placement is off, sorted."""
    found = []
    for group in grouped(published_cases(program)):
        by_ring = [case for case in group if case.placing.traffic == "ring"]
        others = [case for case in group if case.placing.traffic != "ring"]
        for one in by_ring:
            found += [_apart(program, one, other) for other in others if one.row.gpus == other.row.gpus]
    return sorted(found)


def _apart(program: str, one: Case, other: Case) -> float:
    constants = without(program, one.row.machine)
    return math.exp(abs(constants.error(one) - constants.error(other)))


def main() -> None:
    """Print a line for each program."""
    for program in fitted():
        off, ratios = factors(program), ratio_factors(program)
        words = f"{program}: {SHARE:.0%} of {len(off)} figures within a factor of {quantile(off, SHARE):.2f}"
        if ratios:
            words += f", {OF_RATIOS:.0%} of {len(ratios)} ratios within {quantile(ratios, OF_RATIOS):.2f}"
        print(words)


if __name__ == "__main__":
    main()
