"""Verdicts on simulated runs with fresh seeds: false alarms, precision and recall.

    python -m tests.benchmarks.bench_verdicts --windows 1000 --runs 20

Printed: what a long run of 16 GPUs costs; for each slow-down and noise in how many runs the slow GPU was
named, in all and of those whose stated resolution is not above the slow-down ("resolved"), and in how many
another one; precision and recall over the resolved ones; cards that change within the run; false alarms in
windows of 100 steps of even runs, by kind of noise; even CPU devices beside a program that takes its time
from one of them.
"""

import argparse
import random
import secrets
import time
from itertools import product

from gputopo.runs.verdict.judge import Judgement, judge
from gputopo.runs.verdict.paces import Paces
from tests.invented_runs import cpu_devices, gpu_devices
from tests.runs.verdict.drills import Factor, Trainer, always, flapping, hogged, levels, since

EVEN = {
    "1 %, 4 GPUs": Trainer(),
    "1 %, 8 GPUs": Trainer(devices=gpu_devices(8)),
    "5 %, 4 GPUs": Trainer(noise=0.05),
    "20 %, 2 CPU devices": Trainer(devices=cpu_devices(2), noise=0.2),
    "3 %, correlated 0.8": Trainer(noise=0.03, memory=0.8),
    "5 %, correlated 0.9": Trainer(noise=0.05, memory=0.9),
    "2 % and bursts": Trainer(noise=0.02, bursts=0.005),
}
SLOW = (5, 6, 8, 15)
NOISES = (0.005, 0.01, 0.02, 0.05)
STEPS = (100, 400)


def judged(trainer: Trainer, steps: int, seed: int) -> Judgement:
    """Return the verdicts of a run."""
    trainer.seed = seed
    paces = Paces(trainer.devices)
    for event in trainer.events(steps):
        paces.add(event)
    return judge(paces)


def false_alarms(windows: int, seed: int) -> None:
    """Print the false alarms in windows of 100 steps."""
    for name, trainer in EVEN.items():
        alarms = run_alarms = 0
        for window in range(windows):
            found = judged(trainer, 100, seed + window)
            alarms += bool(found.slow)
            run_alarms += found.run is not None
        print(f"even, {name}: {alarms} false alarms, {run_alarms} of the whole run, in {windows} windows")


def slow_cards(runs: int, seed: int) -> None:
    """Print how many slow cards are found, and precision and recall of all resolved runs."""
    found = wrong = resolved = 0
    for percent, noise, steps in product(SLOW, NOISES, STEPS):
        good = bad = able = all_named = 0
        for _ in range(runs):
            seed += 1
            judgement = judged(Trainer(noise=noise, slow={1: always(percent)}), steps, seed)
            named = {verdict.tower for verdict in judgement.slow}
            resolution = judgement.devices[1].resolution_percent
            is_able = resolution is not None and resolution <= percent
            able += is_able
            good += is_able and 1 in named
            all_named += 1 in named
            bad += bool(named - {1})
        print(
            f"{percent} % slow, noise {100 * noise:g} %, {steps} steps: named in {all_named} of {runs}, "
            f"in {good} of {able} resolved; others in {bad}"
        )
        found, wrong, resolved = found + good, wrong + bad, resolved + able
    recall, precision = found / resolved, found / (found + wrong)
    print(f"recall {recall:.3f}, precision {precision:.3f} over {resolved} resolved runs")


def changes(runs: int, seed: int) -> None:
    """Print how many cards that change within the run are found."""
    cases = {
        "10 % since step 300 of 500": (Trainer(slow={2: since(300, 10)}), 500),
        "10 % in a ramp of 100 steps from 300 of 800": (Trainer(slow={2: since(300, 10, ramp=100)}), 800),
        "8 %, 20 % since step 200 of 400": (Trainer(slow={2: levels((0, 8), (200, 20))}), 400),
        "8 % since step 150, 20 % since 300 of 450": (Trainer(slow={2: levels((150, 8), (300, 20))}), 450),
        "12 % from step 100 to 250 of 500": (Trainer(slow={2: levels((100, 12), (250, 0))}), 500),
        "20 % in a ramp of 500 steps from 300 of 1000": (Trainer(slow={2: since(300, 20, ramp=500)}), 1000),
        "15 % in 10 of 30 steps, 300 steps": (Trainer(slow={2: flapping(30, 10, 15)}), 300),
        "wait of 30 ms since step 100 of 200": (
            Trainer(waits_s={2: lambda step: 0.03 if step >= 100 else 0.0}),
            200,
        ),
    }
    for name, (trainer, steps) in cases.items():
        named = [{one.tower for one in judged(trainer, steps, seed + run).slow} for run in range(runs)]
        print(
            f"{name}: named in {sum(2 in one for one in named)} of {runs}, "
            f"others in {sum(bool(one - {2}) for one in named)}"
        )


def beside_hogs(runs: int, seed: int) -> None:
    """Print how often a CPU device is named from whose part of the cores another program takes its time."""
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


def time_of_a_long_run() -> None:
    """Print what a long run of 16 GPUs costs."""
    trainer = Trainer(devices=gpu_devices(16), slow={1: always(10)})
    paces = Paces(trainer.devices)
    events = list(trainer.events(6000))
    began = time.perf_counter()
    for event in events:
        paces.add(event)
    added = time.perf_counter()
    judge(paces)
    ended = time.perf_counter()
    print(f"16 GPUs: {1e6 * (added - began) / 6000:.0f} us a step, verdicts in {ended - added:.2f} s")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    time_of_a_long_run()
    slow_cards(asked.runs, asked.seed)
    changes(asked.runs, asked.seed)
    beside_hogs(10 * asked.runs, asked.seed)
    false_alarms(asked.windows, asked.seed)


if __name__ == "__main__":
    main()
