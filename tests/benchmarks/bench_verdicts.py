"""False alarms of the verdicts, and what verdicts cost.

    python -m tests.benchmarks.bench_verdicts --windows 1000 --runs 20

Printed: what a long run of 16 GPUs costs; even CPU devices beside a program that takes its time from one of
them; how often a card is named that is slow now and then and loses 5 % of the time, by the length of the run;
false alarms in even runs of 60 to 700 steps, by kind of noise. How many slow cards are found, and their
causes: `bench_drills`.
"""

import argparse
import random
import secrets
import time

from gputopo.runs.verdict.judge import Judgement, judge
from gputopo.runs.verdict.paces import Paces
from tests.invented_runs import cpu_devices, gpu_devices
from tests.kit.drills.box import Factor, Trainer, flapping, hogged, slower

EVEN = {
    "1 %, 4 GPUs": Trainer(),
    "1 %, 8 GPUs": Trainer(devices=gpu_devices(8)),
    "5 %, 4 GPUs": Trainer(noise=0.05),
    "20 %, 2 CPU devices": Trainer(devices=cpu_devices(2), noise=0.2),
    "3 %, correlated 0.8": Trainer(noise=0.03, memory=0.8),
    "5 %, correlated 0.9": Trainer(noise=0.05, memory=0.9),
    "3 %, correlated 0.97": Trainer(noise=0.03, memory=0.97),
    "2 % and bursts": Trainer(noise=0.02, bursts=0.005),
    "1 % and many bursts": Trainer(noise=0.01, bursts=0.02),
    "1 %, 40 % of all alike": Trainer(common=0.4),
}
STEPS = (60, 100, 200, 400, 700)


def _at_random(share: float, longer: float, seed: int) -> Factor:
    return lambda step: longer if random.Random(f"{seed} {step}").random() < share else 1.0


def _now_and_then(seed: int) -> dict[str, Factor]:
    """Factors of a card that loses 5 % of the time."""
    return {
        "25 of each 100 steps": flapping(100, 25, 17.4),
        "5 of each 20": flapping(20, 5, 17.4),
        "10 of each 64": flapping(64, 10, 25.2),
        "25 % at random": _at_random(0.25, 1.21, seed),
        "10 % at random": _at_random(0.10, 1.526, seed),
    }


def judged(trainer: Trainer, steps: int, seed: int) -> Judgement:
    """Return the verdicts of a run."""
    trainer.seed = seed
    paces = Paces(trainer.devices)
    for event in trainer.events(steps):
        paces.add(event)
    return judge(paces)


def now_and_then(runs: int, seed: int) -> None:
    """Print how often a card is named that loses 5 % of the time in some of its steps."""
    for steps in (500, 5_000, 20_000):
        for name in _now_and_then(0):
            named = others = 0
            for run in range(seed, seed + runs):
                trainer = Trainer(devices=gpu_devices(2), slow={1: _now_and_then(run)[name]})
                towers = {verdict.tower for verdict in judged(trainer, steps, run).slow}
                named += 1 in towers
                others += bool(towers - {1})
            print(f"{steps} steps, slow in {name}: named in {named} of {runs}, another one in {others}")


def false_alarms(windows: int, seed: int) -> None:
    """Print the false alarms in even runs."""
    for name, trainer in EVEN.items():
        alarms = run_alarms = 0
        for window in range(windows):
            found = judged(trainer, STEPS[window % len(STEPS)], seed + window)
            alarms += bool(found.slow)
            run_alarms += found.run is not None
        print(f"even, {name}: {alarms} false alarms, {run_alarms} of the whole run, in {windows} runs")


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
    trainer = Trainer(devices=gpu_devices(16), slow={1: slower(10)})
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
    beside_hogs(10 * asked.runs, asked.seed)
    now_and_then(asked.runs, asked.seed)
    false_alarms(asked.windows, asked.seed)


if __name__ == "__main__":
    main()
