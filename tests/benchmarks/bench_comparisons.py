"""`report --baseline` on invented studies: false alarms without a change, alarms with a change.

    python -m tests.benchmarks.bench_comparisons --studies 200 --cells 40 --noise 0.03

Each study has runs before and after, whose noise is normal. Printed, for one run and for three repeats of
each cell: how many studies have a regression, in how many of them the pooled change is one, how many cells
that did not change are reported as slower, how many that did are not, and how many are reported as even.
"""

import argparse
import random
from collections.abc import Sequence

import msgspec

from gputopo.measurements import study_of
from gputopo.values.run.measurement import Measurement
from gputopo.values.study import Figures

# The speed of each cell after the change, compared with before.
KINDS = ("no change", "one cell 20% slower", "all cells 5% slower")


class Alarms(msgspec.Struct):
    """Counts of studies, and of cells in them."""

    studies: int = 0
    by_pooled: int = 0
    accused: int = 0
    missed: int = 0
    even: int = 0


def factors(kind: str, cells: int) -> list[float]:
    """Return the ratio of the speeds of each cell after and before the change."""
    if kind == KINDS[1]:
        return [0.8] + [1.0] * (cells - 1)
    return [0.95 if kind == KINDS[2] else 1.0] * cells


def drawn(chance: random.Random, speeds: Sequence[float], noise: float, repeats: int) -> list[Measurement]:
    """Return the runs of a study."""
    return [
        Measurement(
            source=f"{cell}/{repeat}", batch_per_gpu=cell, images_per_sec=100 * speed * chance.gauss(1, noise)
        )
        for cell, speed in enumerate(speeds, 1)
        for repeat in range(repeats)
    ]


def compared(chance: random.Random, kind: str, cells: int, noise: float, repeats: int) -> Figures:
    """Return the figures of one study with earlier runs."""
    before = drawn(chance, [1.0] * cells, noise, repeats)
    after = drawn(chance, factors(kind, cells), noise, repeats)
    return study_of(after, title="t", earlier=before).figures


def alarms(kind: str, *, studies: int, cells: int, noise: float, repeats: int, seed: int = 1) -> Alarms:
    """Return the alarms of studies with this change."""
    chance, counts, changed = random.Random(seed), Alarms(), factors(kind, cells)
    for _ in range(studies):
        figures = compared(chance, kind, cells, noise, repeats)
        rows, pooled = figures.against, figures.pooled_change
        by_pooled = pooled is not None and pooled.is_regression
        counts.studies += by_pooled or any(row.is_regression for row in rows)
        counts.by_pooled += by_pooled
        counts.accused += sum(row.is_regression and changed[row.cell] == 1 for row in rows)
        counts.missed += sum(not row.is_regression and changed[row.cell] < 1 for row in rows)
        counts.even += sum(row.verdict == "even" for row in rows)
    return counts


def main() -> None:
    """Print a row for each change and number of repeats."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--studies", type=int, default=200)
    options.add_argument("--cells", type=int, default=40)
    options.add_argument("--noise", type=float, default=0.03)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    print(f"{asked.studies} studies of {asked.cells} cells, noise of a run {100 * asked.noise:g}%")
    print("change               runs  alarms  pooled  unchanged accused  changed missed  even")
    for kind in KINDS:
        for repeats in (1, 3):
            found = alarms(
                kind,
                studies=asked.studies,
                cells=asked.cells,
                noise=asked.noise,
                repeats=repeats,
                seed=asked.seed,
            )
            print(
                f"{kind:20} {repeats:4}  {found.studies:6}  {found.by_pooled:6}  {found.accused:17}  "
                f"{found.missed:14}  {found.even:4}"
            )


if __name__ == "__main__":
    main()
