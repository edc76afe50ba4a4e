"""Verdicts on simulated runs with random seeds: slow cards that are reported, and false alarms.

    python -m tests.benchmarks.bench_verdicts --even 1000 --runs 20

It prints these tables:

- cards that lose 5 or 10% in every step, by noise and length of the run: how many are reported, how many
  bounds are below the loss, how far the loss is off on average, and what the runs exclude of the other cards
- cards that lose 5% of the time in some of their steps: how many are reported, how many other cards are, and
  the largest errors of the share of slow steps, their size and the loss
- even CPU devices while a program takes the time of one of them
- false alarms in even runs of 60 to 700 steps on 2 to 64 GPUs, by kind of noise

`bench_live` measures how late a slow card is reported, `bench_drills` the causes.
"""

import argparse
import math
import random
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from gputopo.runs import Judgement
from gputopo.values.run.verdict import EVEN as EVEN_WORD
from gputopo.values.run.verdict import SLOW as SLOW_WORD
from tests.invented_runs import cpu_devices, gpu_devices, judged_events
from tests.kit.drills.box import Factor, Trainer, flapping, hogged, slower

EVEN = {
    "1 %": Trainer(),
    "5 %": Trainer(noise=0.05),
    "10 %": Trainer(noise=0.1),
    "20 %": Trainer(noise=0.2),
    "3 %, correlated 0.8": Trainer(noise=0.03, memory=0.8),
    "5 %, correlated 0.9": Trainer(noise=0.05, memory=0.9),
    "3 %, correlated 0.97": Trainer(noise=0.03, memory=0.97),
    "3 %, correlated 0.995": Trainer(noise=0.03, memory=0.995),
    "2 % and bursts": Trainer(noise=0.02, bursts=0.005),
    "1 % and many bursts": Trainer(noise=0.01, bursts=0.02),
    "1 %, 40 % of all alike": Trainer(common=0.4),
    "garbage collected every 50 steps": Trainer(collected=50, collects_s=0.05),
}
# Logarithms of compute times that are added to noise of 1 %.
Draw = Callable[[random.Random, int], float]
HEAVY: dict[str, Draw] = {
    "Laplace, 5 %": lambda rng, step: rng.choice((-0.05, 0.05)) * rng.expovariate(1),
    "Student's t of 3, 3 %": lambda rng, step: (
        0.03 * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3)
    ),
    "a fifth of the steps longer by 10 %": lambda rng, step: rng.expovariate(10) * (rng.random() < 0.2),
    "stalls of ten times in 2 %": lambda rng, step: math.log(10) * (rng.random() < 0.02),
    "waves of 5 %": lambda rng, step: 0.05 * math.sin(step / 6),
}
SLOW: dict[str, Callable[[int], Factor]] = {
    "25 of each 100": lambda seed: flapping(100, 25, 17.4),
    "5 of each 20": lambda seed: flapping(20, 5, 17.4),
    "10 of each 64": lambda seed: flapping(64, 10, 25.2),
    "50 % at random": lambda seed: _at_random(0.50, 1.1053, seed),
    "25 % at random": lambda seed: _at_random(0.25, 1.2105, seed),
    "10 % at random": lambda seed: _at_random(0.10, 1.526, seed),
    "episodes of 10 at random, 25 %": lambda seed: _at_random(0.25, 1.2105, seed, 10),
}
RECALL = ("1 %", "5 %", "3 %, correlated 0.8", "2 % and bursts")
STEPS = (60, 100, 200, 400, 700)


def _at_random(share: float, longer: float, seed: int, together: int = 1) -> Factor:
    """Longer in `share` of each 20 times `together` steps, so that a card loses exactly this time."""

    def factor(step: int) -> float:
        window, place = divmod(step // together, 20)
        slow = random.Random(f"{seed} {window}").sample(range(20), round(20 * share))
        return longer if place in slow else 1.0

    return factor


def _heavy(draw: Draw, seed: int, tower: int) -> Factor:
    later = random.Random(f"{seed} {tower}").randrange(1000)
    return lambda step: math.exp(draw(random.Random(f"{seed} {tower} {step}"), step + later))


def judged(trainer: Trainer, steps: int, seed: int) -> Judgement:
    """Return the verdicts of a run."""
    trainer.seed = seed
    return judged_events(trainer.devices, trainer.events(steps))


def recall(runs: int, seed: int) -> None:
    """Print a table of cards that lose 5 and 10 % in every step."""
    print("| loss | noise | steps | named | others | bound below | off | others: even | bound | at most |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for percent in (5.0, 10.0):
        for name in RECALL:
            for steps in (20, 50, 100, 300, 1000):
                named = others = below = even = without = 0
                off: list[float] = []
                bounds: list[float] = []
                for run in range(seed, seed + runs):
                    trainer = replace(
                        EVEN[name], slow={1: slower(percent)}, devices=gpu_devices((2, 4, 8)[run % 3])
                    )
                    found = judged(trainer, steps, run)
                    slow, rest = found.devices[1], [one for one in found.devices if one.tower != 1]
                    named += slow.word == SLOW_WORD
                    others += any(one.word == SLOW_WORD for one in rest)
                    high = slow.percent_under_high
                    below += high is not None and high < percent
                    off.append(abs((slow.percent_under or 0.0) - percent))
                    even += sum(one.word == EVEN_WORD for one in rest)
                    known = [one.percent_under_high for one in rest if one.percent_under_high is not None]
                    without += len(rest) - len(known)
                    bounds += known
                count = len(bounds) + without
                print(
                    f"| {percent:g} % | {name} | {steps} | {named} of {runs} | {others} | {below} "
                    f"| {sum(off) / len(off):.1f} | {100 * even / count:.0f} % "
                    f"| {100 - 100 * without / count:.0f} % "
                    f"| {median(bounds) if bounds else math.nan:.1f} |",
                    flush=True,
                )


def now_and_then(runs: int, seed: int) -> None:
    """Print a table of cards that lose 5 % of the time in some of their steps."""
    print("| slow in | steps | named | others | share off | size off | loss off |")
    print("|---|---:|---|---|---:|---:|---:|")
    for steps, count in ((500, runs), (1000, runs), (5_000, runs // 4), (20_000, runs // 10)):
        for name, make in SLOW.items():
            named = others = 0
            off = [0.0, 0.0, 0.0]
            for run in range(seed, seed + count):
                factor = make(run)
                trainer = Trainer(devices=gpu_devices((2, 4, 8)[run % 3]), slow={1: factor})
                found = judged(trainer, steps, run)
                verdict = found.devices[1]
                others += any(one.tower != 1 for one in found.slow)
                if verdict not in found.slow:
                    continue
                named += 1
                longer = [one - 1 for step in range(1, steps + 1) if (one := factor(step)) > 1]
                share, size = len(longer) / steps, sum(longer) / len(longer)
                said = re.search(r"take (\d+)% longer", verdict.says)
                known = (verdict.share_of_steps or 0.0, int(said[1]) / 100 if said else 0.0)
                true = (share, size, share * size / (1 + share * size))
                all_known = (*known, (verdict.percent_under or 0.0) / 100)
                off = [max(was, abs(one / of - 1)) for was, one, of in zip(off, all_known, true, strict=True)]
            figures = " | ".join(f"{100 * one:.0f} %" for one in off)
            print(f"| {name} | {steps} | {named} of {count} | {others} | {figures} |", flush=True)


def false_alarms(runs: int, seed: int) -> None:
    """Print the false alarms in even runs."""
    kinds = {name: (trainer, None) for name, trainer in EVEN.items()}
    every: dict[str, tuple[Trainer, Draw | None]] = {
        **kinds,
        **{name: (Trainer(), one) for name, one in HEAVY.items()},
    }
    alarms = total = 0
    for name, (trainer, draw) in every.items():
        named = slower = 0
        for run in range(seed, seed + -(-runs // len(every))):
            rng = random.Random(run)
            trainer.devices = gpu_devices(rng.choice((2, 2, 3, 4, 8, 16, 64)))
            towers = range(len(trainer.devices))
            trainer.slow = {} if draw is None else {tower: _heavy(draw, run, tower) for tower in towers}
            found = judged(trainer, rng.choice(STEPS), run)
            named += bool(found.slow)
            slower += found.run is not None
            total += 1
        alarms += named
        print(f"even, {name}: {named} accused, {slower} runs called slower", flush=True)
    print(f"{alarms} of {total} even runs accused")


def beside_hogs(runs: int, seed: int) -> None:
    """Print how often a CPU device is reported while another program takes its share of the cores."""
    rng, named = random.Random(seed), 0
    for run in range(runs):
        towers = rng.choice((2, 4))
        share, period = rng.uniform(0.1, 0.5), rng.choice((1, 20, 200, 10**6))
        load = _on_and_off(share, period, rng.uniform(0.5, 1))
        trainer = Trainer(
            devices=cpu_devices(towers),
            noise=0.03,
            slow={rng.randrange(towers): hogged(load, towers)},
            other_cpu=load,
            cores=rng.choice((2, 4, 8)),
        )
        named += bool(judged(trainer, 200, seed + run).slow)
    print(f"CPU devices beside a program that slows one of them: named in {named} of {runs}")


def _on_and_off(share: float, period: int, on: float) -> Factor:
    return lambda step: share if step % period < on * period else 0.0


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--even", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="", help="parts with this in their name")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    parts: dict[str, Callable[[], None]] = {
        "recall": lambda: recall(asked.runs, asked.seed),
        "now and then": lambda: now_and_then(asked.runs, asked.seed),
        "hogs": lambda: beside_hogs(10 * asked.runs, asked.seed),
        "even": lambda: false_alarms(asked.even, asked.seed),
    }
    for name, part in parts.items():
        if asked.only in name:
            part()


if __name__ == "__main__":
    main()
