"""What the planner decides on boxes that were left out of every fit, beside rules of one line.

`python -m tests.fits.decisions` prints, by box, what each rule loses of the best published placement:

- `gputopo`: the prediction, and in ties the record of the other boxes' decisions, as a plan chooses;
- `prediction`: the prediction alone;
- `nccl`: always replicated with NCCL where that was measured;
- `guide`: the performance guide of tf_cnn_benchmarks: networks with large dense layers replicated with NCCL,
  the variables of others on the CPU;
- `cpu`: always variables on the CPU.

Then how many GPUs are taken, how many figures are inside the range, and the order of efficiencies.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import correlation, fmean
from typing import NamedTuple

from gputopo.planner.fastest import TIE, has_large_variables, record_kind
from gputopo.planner.how_many import GAIN, enough, gains
from gputopo.prediction.programs import ProgramConstants
from tests.fits.cases import Case, Constants, examples, grouped, published_cases, used
from tests.fits.programs import COVERED, fit, fit_all, range_of, recipes

PROGRAM = "tf_cnn_benchmarks-2017"  # the one of which all placements are published
NEAR = 0.02  # a choice this close to the best is a good one
RULES = ("gputopo", "prediction", "nccl", "guide", "cpu")


class Decision(NamedTuple):
    """What each rule loses in one group of alternatives, as a share of the best."""

    box: str
    losses: Mapping[str, float]


@cache
def fitted() -> dict[str, tuple[ProgramConstants, dict[str, ProgramConstants]]]:
    """Return each program with those that were fitted without each box."""
    return fit_all()


def without(program: str, box: str) -> Constants:
    """Return the predictions of a program that was fitted without a box."""
    everything, left_out = fitted()[program]
    return Constants(left_out.get(box, everything))


def alternatives() -> list[list[Case]]:
    """Return the published groups of several placements, or sets of GPUs, of one job on one box."""
    groups = grouped(published_cases(PROGRAM))
    return [group for group in groups if len({(case.row.gpus, case.placing) for case in group}) > 1]


def decisions(family: str = "") -> list[Decision]:
    """Return what the rules lose, each box predicted and judged by what the others show.

    `family`: boxes whose names begin so are left out together, and alone judged.
    """
    groups, found = alternatives(), []
    recipe, some = recipes({})[PROGRAM], used(PROGRAM)
    fewer = Constants(fit(recipe, [case for case in some if not case.row.machine.startswith(family)]))
    for group in groups:
        box = group[0].row.machine
        if not box.startswith(family):
            continue
        constants = fewer if family else without(PROGRAM, box)
        order = record(other for other in groups if not other[0].row.machine.startswith(family or box))
        predicted = max(group, key=constants.images_per_sec)
        large = has_large_variables(predicted.model)
        least = (1 - TIE) * constants.images_per_sec(predicted)
        ties = [
            case
            for case in group
            if case.row.gpus == predicted.row.gpus and constants.images_per_sec(case) >= least
        ]
        ties.sort(key=constants.images_per_sec, reverse=True)
        chosen = {
            "gputopo": min(ties, key=lambda case: order[large].index(record_kind(case.placing))),
            "prediction": predicted,
            "nccl": _first(group, ("nccl", "added", "cpu", "gpu")),
            "guide": _first(
                group, ("nccl", "added", "cpu", "gpu") if large else ("cpu", "gpu", "added", "nccl")
            ),
            "cpu": _first(group, ("cpu", "gpu", "added", "nccl")),
        }
        best = max(case.row.images_per_sec for case in group)
        found.append(
            Decision(box, {rule: 1 - case.row.images_per_sec / best for rule, case in chosen.items()})
        )
    return found


def record(groups: Iterable[Sequence[Case]]) -> dict[bool, tuple[str, ...]]:
    """Return the placements by their speed where two were measured for one job, the fastest first.

    By whether the variables are large in the mean: the mean over opponents of the mean over boxes.
    """
    duels: dict[tuple[bool, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        best: dict[str, float] = {}
        for case in group:
            kind = record_kind(case.placing)
            best[kind] = max(case.row.images_per_sec, best.get(kind, 0.0))
        for one, speed in best.items():
            for other in best.keys() - {one}:
                large = has_large_variables(group[0].model)
                duels[large, one, other][group[0].row.machine].append(math.log(speed / best[other]))
    won = {key: fmean(map(fmean, boxes.values())) for key, boxes in duels.items()}

    def lead(large: bool, one: str) -> float:
        return fmean(share for key, share in won.items() if key[:2] == (large, one))

    kinds = {large: {key[1] for key in won if key[0] == large} for large in (False, True)}
    return {large: tuple(sorted(those, key=lambda one: -lead(large, one))) for large, those in kinds.items()}


def _first(group: Sequence[Case], kinds: Sequence[str]) -> Case:
    """Return the first kind of placement that was measured, on the lowest GPUs."""
    return min(group, key=lambda case: (kinds.index(record_kind(case.placing)), case.row.gpus))


class Curve(NamedTuple):
    """One job on 1, 2, ... GPUs: the largest number, and what `--num-gpus auto` takes of both speeds."""

    largest: int
    measured: int
    predicted: int
    is_half: bool  # fp16 without XLA, of which programs lose half with several GPUs, whatever the links


def curves() -> list[Curve]:
    """Return the published curves over one GPU and two larger numbers or more, each box left out."""
    jobs: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for program in fitted():
        for case in published_cases(program):
            jobs[program, case.group[:-1], record_kind(case.placing), case.row.xla].append(case)
    found = []
    for some in jobs.values():
        constants = without(some[0].row.program, some[0].row.machine)
        by_count = {case.towers: case for case in sorted(some, key=lambda case: case.towers)}
        if len(by_count) > 1:
            alone = examples(some[0].row) / some[0].towers / some[0].compute_s
            measured = {count: case.row.images_per_sec for count, case in by_count.items()}
            predicted = {count: constants.images_per_sec(case) for count, case in by_count.items()}
            right, chosen = (enough(gains({1: alone, **one}), GAIN).num_gpus for one in (measured, predicted))
            is_half = some[0].row.precision == "fp16" and not some[0].row.xla
            found.append(Curve(max(by_count), right, chosen, is_half))
    return found


def coverage(program: str) -> dict[str, float]:
    """Return by box the share of figures inside the range that the other boxes leave."""
    some = published_cases(program, data="synthetic")
    left_out = {case.row.machine: without(program, case.row.machine).program for case in some}
    found = {}
    for box in left_out:
        low, high = range_of([case for case in some if case.row.machine != box], left_out, COVERED)
        own = [case for case in some if case.row.machine == box]
        found[box] = fmean(low <= math.exp(-without(program, box).error(case)) <= high for case in own)
    return found


def efficiencies(program: str) -> float:
    """Return the rank correlation of predicted and measured efficiency, each box left out."""
    some = published_cases(program, data="synthetic")
    ideal = [examples(case.row) / case.compute_s for case in some]
    predicted = [without(program, case.row.machine).images_per_sec(case) for case in some]
    return correlation(
        *(
            _ranks([speed / whole for speed, whole in zip(speeds, ideal, strict=True)])
            for speeds in ([case.row.images_per_sec for case in some], predicted)
        )
    )


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(values)
    return [order.index(value) for value in values]


def words(some: Sequence[Decision]) -> str:
    """Return what each rule loses in some decisions."""
    losses = {rule: [one.losses[rule] for one in some] for rule in RULES}
    return "  ".join(
        f"{fmean(each):6.2%} {fmean(loss <= NEAR for loss in each):4.0%}" for each in losses.values()
    )


def main() -> None:
    """Print the table."""
    some = decisions()
    print(f"{'mean loss, within 2% of the best':36}" + "  ".join(f"{rule:>11}" for rule in RULES))
    for box in (*sorted({one.box for one in some}), ""):
        those = [one for one in some if box in ("", one.box)]
        print(f"{box or 'all':20}{len(those):5} groups    {words(those)}")
    together = decisions("lambda")
    print(f"{'lambda, together':20}{len(together):5} groups    {words(together)}")
    for name, curve in (
        ("all", curves()), ("fp32, or with XLA", [one for one in curves() if not one.is_half]),
    ):  # fmt: skip
        right = fmean(one.measured == one.predicted for one in curve)
        every = fmean(one.measured == one.largest for one in curve)
        print(f"number of GPUs, {name}: {right:.0%} of {len(curve)} curves as measured; all GPUs {every:.0%}")
    for program in fitted():
        inside = coverage(program)
        print(
            f"{program}: {fmean(inside.values()):.0%} of figures inside the range, boxes alike; "
            f"rank correlation of efficiency {efficiencies(program):.2f}"
        )
    print(f"record: {record(alternatives())}")


if __name__ == "__main__":
    main()
