"""Verdicts during simulated runs with random seeds: false alarms of all looks, delay.

    python -m tests.benchmarks.bench_live --runs 200

Printed: in how many even runs of 1000 steps (ten windows of 100) any look led to a report, by kind of noise,
and the false alarms of single looks; after how many steps a slow card is reported, and after how many a card
that is even again.
"""

import argparse
import secrets
import time
from collections.abc import Iterator
from statistics import median

from gputopo.runs import RecentSteps, Reports, Summary
from gputopo.values.run.events import Anomaly, AnomalyOver, Event, Judged, Step
from gputopo.values.run.verdict import SLOW
from tests.benchmarks.bench_verdicts import EVEN
from tests.invented_runs import gpu_devices
from tests.kit.drills.box import Trainer, slower

STEPS = 1000


def looks(trainer: Trainer, steps: int, seed: int) -> Iterator[tuple[int, Event]]:
    """Yield the events of each look, with the step after which it was made."""
    trainer.seed = seed
    summary, reports, now_s = Summary(), Reports(), 0.0
    recent = RecentSteps(summary)
    for event in trainer.events(steps):
        summary.add(event)
        recent.add(event)
        if isinstance(event, Step):
            now_s += event.seconds
            if recent.is_due(now_s):
                judge, step = recent.take(now_s)
                before = time.process_time()
                found = judge()
                recent.took(now_s, time.process_time() - before)
                for one in reports.look(found, step, now_s):
                    yield step, one


def false_alarms(runs: int, seed: int) -> None:
    """Print in how many even runs a device was reported."""
    for name, trainer in EVEN.items():
        alarms = single = count = 0
        for run in range(runs):
            found = [event for _, event in looks(trainer, STEPS, seed + run)]
            alarms += any(isinstance(event, Anomaly) for event in found)
            verdicts = [event.devices for event in found if isinstance(event, Judged)]
            count += len(verdicts)
            single += sum(any(one.word == SLOW for one in devices) for devices in verdicts)
        print(
            f"even, {name}: reported in {alarms} of {runs} runs of {STEPS} steps; "
            f"{single} of {count} single looks named a device",
            flush=True,
        )


def delays(runs: int, seed: int) -> None:
    """Print after how many steps a slow card is reported, and after how many a card that is even again."""
    for percent, noise, gpus in ((5, 0.01, 2), (5, 0.01, 4), (5, 0.01, 8), (5, 0.01, 16), (8, 0.03, 4)):
        trainer = Trainer(devices=gpu_devices(gpus), noise=noise, slow={1: slower(percent)})
        first = [_first(trainer, 400, seed + run, Anomaly) for run in range(runs)]
        known = [step for step in first if step is not None]
        after = f"after {median(known) if known else 0:g} steps (all within {max(known, default=0)})"
        print(
            f"{gpus} GPUs, {percent} % slow, {100 * noise:g} % noise: {len(known)} of {runs} named {after}",
            flush=True,
        )
    trainer = Trainer(slow={1: lambda step: 1 / 0.9 if 2000 <= step < 2400 else 1.0})
    late = [_first(trainer, 3000, seed + run, Anomaly) for run in range(5)]
    again = [_first(trainer, 3000, seed + run, AnomalyOver) for run in range(5)]
    print(f"10 % slow in steps 2000 to 2400: reported at {late}, even again at {again}", flush=True)


def _first(trainer: Trainer, steps: int, seed: int, kind: type[Event]) -> int | None:
    return next((step for step, event in looks(trainer, steps, seed) if isinstance(event, kind)), None)


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    delays(asked.runs // 5, asked.seed)
    false_alarms(asked.runs, asked.seed)


if __name__ == "__main__":
    main()
