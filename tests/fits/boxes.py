"""What constants predict of a published box that they were not fitted to, with runs of that box.

`python -m tests.fits.programs` prints it. `left_out`: by machine, the program that was fitted without it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from gputopo.prediction.calibration import MeasuredStep, calibrated, learn, range_share
from gputopo.prediction.programs import ProgramConstants
from gputopo.values.run.plan import MIN_JOBS, Learned, mode_name
from tests import there
from tests.fits.cases import NO_OVERLAP, Case, Constants, examples, paths_by_name, used

# A model of many bytes and one of many variables: each shows one of the two numbers of a box.
SHORT_RUNS = ("vgg16", "resnet152")

Fitted = Mapping[str, tuple[ProgramConstants, Mapping[str, ProgramConstants]]]
"""By name, each program with those that were fitted without each machine."""


class Errors(NamedTuple):
    """Errors of images/sec, relative: as predicted without runs of the box, and with them."""

    before: list[float]
    after: list[float]

    def __str__(self) -> str:
        less = 1 - median(self.after) / median(self.before)
        return (
            f"{len(self.before):4} figures of other models: median {median(self.before):.1%}, "
            f"with two short runs of each box {median(self.after):.1%} ({less:.0%} less)"
        )


class Covered(NamedTuple):
    """Whether figures are inside the range after runs of other models: in their mode, in another one."""

    same: list[bool]
    other: list[bool]

    def __str__(self) -> str:
        return (
            f"{len(self.same):4} figures with runs of the box's other models: {fmean(self.same):.0%} inside "
            f"the range of a mode that ran, {fmean(self.other):.0%} of {len(self.other)} in that of another"
        )


def with_two_runs(left_out: Mapping[str, ProgramConstants], some: Iterable[Case]) -> Errors:
    """Return the errors of each box's other models, as they are and with short runs of that box.

    The short runs have the placement of the others, and each of the two models.
    """
    found = Errors([], [])
    boxes: dict[object, list[Case]] = defaultdict(list)
    for case in some:
        boxes[case.row.machine, case.row.version, case.towers, case.placing, case.row.xla].append(case)
    for box in boxes.values():
        runs = [case for case in box if case.row.model in SHORT_RUNS]
        if {case.row.model for case in runs} == {*SHORT_RUNS}:
            others = [case for case in box if case not in runs]
            program = _program(left_out, box[0])
            own = Constants(calibrated(program, _learned(program, runs)))
            found.before.extend(abs(math.expm1(Constants(program).error(case))) for case in others)
            found.after.extend(abs(math.expm1(own.error(case))) for case in others)
    return found


def covered(
    program: ProgramConstants, left_out: Mapping[str, ProgramConstants], some: Iterable[Case]
) -> Covered:
    """Return whether the figures of each model are inside the range that runs of all others would leave.

    Those of one mode of the box; the range of `program` counts, which is that of machines left out.
    """
    found = Covered([], [])
    boxes: dict[object, list[Case]] = defaultdict(list)
    for case in some:
        boxes[case.row.machine, case.row.version, case.row.xla].append(case)
    for box in boxes.values():
        bare = msgspec.structs.replace(_program(left_out, box[0]), low=program.low, high=program.high)
        for mode in sorted({_mode(case) for case in box}):
            for model in sorted({case.row.model for case in box}):
                runs = [case for case in box if _mode(case) == mode and case.row.model != model]
                if len(runs) < MIN_JOBS:
                    continue
                learned = _learned(bare, runs)
                own = Constants(calibrated(bare, learned))
                for case in box:
                    if case.row.model == model:
                        share = range_share(learned, case.placing)
                        is_inside = bare.low**share <= math.exp(-own.error(case)) <= bare.high**share
                        (found.same if _mode(case) == mode else found.other).append(is_inside)
    return found


def two_runs_of_all(fitted: Fitted) -> Errors:
    """Return the errors of `with_two_runs` of all programs."""
    each = [with_two_runs(left_out, used(name)) for name, (_, left_out) in fitted.items()]
    return Errors(
        [one for errors in each for one in errors.before], [one for errors in each for one in errors.after]
    )


def covered_of_all(fitted: Fitted) -> Covered:
    """Return `covered` of all programs."""
    each = [covered(program, left_out, used(name)) for name, (program, left_out) in fitted.items()]
    return Covered(
        [one for found in each for one in found.same], [one for found in each for one in found.other]
    )


def _program(left_out: Mapping[str, ProgramConstants], case: Case) -> ProgramConstants:
    program = left_out[case.row.machine]
    return msgspec.structs.replace(program, **NO_OVERLAP) if case.row.xla else program


def _learned(program: ProgramConstants, runs: Sequence[Case]) -> Learned:
    measured = paths_by_name(runs[0].row.machine).is_measured
    found = there(learn(program, [_run(case) for case in runs], measured=measured))
    return found


def _mode(case: Case) -> str:
    return mode_name(*case.placing)


def _run(case: Case) -> MeasuredStep:
    step_s = examples(case.row) / case.row.images_per_sec
    return MeasuredStep(
        case.model, case.towers, case.cpus, case.compute_s, case.placing, case.weights, case.gradients, step_s
    )
