"""The drills of tests.kit.drills with random numbers: precision, recall, causes, false alarms.

    python -m tests.benchmarks.bench_drills --rounds 5

Each round draws sizes, devices, noise, onsets and places of every drill. Recall is over cards that are at
least 5 % slower, if the run can resolve this (`resolution_percent` is at most the injected percentage, or the
card was called slow). Precision is over every card that was called slow, including drills without faults.
"""

import argparse
import random
import secrets
from collections import Counter

from gputopo.values.run.result import Result
from gputopo.values.run.verdict import SLOW
from tests.kit.drills.going import went
from tests.kit.drills.hosts import HOST_DRILLS
from tests.kit.drills.judged import accused, cause_of_run, complaints_on, first_cause
from tests.kit.drills.table import DRILLS, Dice, Drill

MIN_PERCENT = 5.0  # a slower card must be found if the run can resolve it


class Score(Counter[str]):
    """Counts: `slow` cards, `able` to be found, `named`; `right` causes of `caused`; `wrong` reports."""

    def add(self, drill: Drill, result: Result) -> None:
        """Add a run."""
        self["runs"] += 1
        self["wrong"] += len(accused(result) - set(drill.slow))
        for row in result.devices:
            found, percent = row.verdict, drill.percent.get(row.device.tower)
            if percent is None or percent < MIN_PERCENT or found is None:
                continue
            named = found.word == SLOW
            resolved = found.resolution_percent is not None and found.resolution_percent <= percent
            self["slow"] += 1
            self["named"] += named
            self["able"] += named or resolved
            cause = drill.slow[row.device.tower]
            if named and cause is not None:
                self["caused"] += 1
                self["right"] += first_cause(row) == cause
        if drill.run is not None:
            self["caused"] += 1
            self["right"] += cause_of_run(result) == drill.run

    def row(self, name: str) -> str:
        """One line of the table."""
        recall = _share(self["named"], self["able"])
        cause = _share(self["right"], self["caused"])
        able = f"{self['named']}/{self['able']}/{self['slow']}"
        return f"{name:36}{self['runs']:5}{able:>14}{recall:>8}{self['wrong']:7}{cause:>8}{self['bad']:8}"


def drawn(rounds: int, seed: int, only: str) -> None:
    """Print a table with a row for each drill, and the sums."""
    print(f"{'drill':36}{'runs':>5}{'named/able/all':>14}{'recall':>8}{'wrong':>7}{'cause':>8}{'unlike':>8}")
    total = Score()
    details: list[str] = []
    for name, make in {**DRILLS, **HOST_DRILLS}.items():
        if only not in name:
            continue
        score = Score()
        for number in range(rounds):
            one_seed = seed + 1000 * number + len(name)
            drill = make(Dice(random.Random(f"{one_seed} {name}")))
            result, words = went(drill.box, one_seed)
            score.add(drill, result)
            unlike = complaints_on(drill, result, words)
            score["bad"] += bool(unlike)
            details += [f"{name}, seed {one_seed}: {one}" for one in unlike]
        print(score.row(name), flush=True)
        total.update(score)
    print(total.row("all"))
    precision = _share(total["named"], total["named"] + total["wrong"])
    recall, right = _share(total["named"], total["able"]), _share(total["right"], total["caused"])
    print(f"at {MIN_PERCENT:g} % and more: precision {precision}, recall {recall}; cause right {right}")
    print("\n".join(details))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="drills with this in their name")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    drawn(asked.rounds, asked.seed, asked.only)


if __name__ == "__main__":
    main()
