"""Verdicts while a run lasts, on simulated runs with fresh seeds: false alarms of all looks, delay, cost.

    python -m tests.benchmarks.bench_live --runs 200

Printed: in how many even runs of 1000 steps (ten windows of 100) any look led to a report, by kind of noise,
beside the false alarms of single looks; after how many steps a slow card is reported, and one that is even
again; what an event and a look cost.
"""

import argparse
import secrets
import time
from collections.abc import Iterator
from statistics import median

from gputopo.launch.supervise.record import Looks
from gputopo.runs.live import RecentEvents, Reports, judged
from gputopo.values.run.events import Anomaly, AnomalyOver, Event, Judged, Step
from gputopo.values.run.verdict import SLOW
from tests.benchmarks.bench_verdicts import EVEN
from tests.invented_runs import gpu_devices
from tests.kit.drills.box import Trainer, slower

STEPS = 1000


def looks(trainer: Trainer, steps: int, seed: int) -> Iterator[tuple[int, Event]]:
    """Yield what each look reports, with the step after which it was made."""
    trainer.seed = seed
    recent, reports, now_s = RecentEvents(), Reports(), 0.0
    for event in trainer.events(steps):
        recent.add(event)
        if isinstance(event, Step):
            now_s += event.seconds
            if recent.is_due(now_s):
                window = recent.take(now_s)
                for one in reports.look(judged(window), window.step, now_s):
                    yield window.step, one


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
    """Print after how many steps a slow card is reported, and one that is even again."""
    for percent, noise in ((5, 0.01), (8, 0.01), (15, 0.01), (8, 0.03), (15, 0.05)):
        trainer = Trainer(noise=noise, slow={1: slower(percent)})
        first = [_first(trainer, 400, seed + run, Anomaly) for run in range(runs)]
        known = [step for step in first if step is not None]
        print(
            f"{percent} % slow at {100 * noise:g} % noise: reported in {len(known)} of {runs} runs of 400 "
            f"steps, after {median(known) if known else 0:g} (all within {max(known, default=0)})",
            flush=True,
        )
    trainer = Trainer(slow={1: lambda step: 1 / 0.9 if 2000 <= step < 2400 else 1.0})
    late = [_first(trainer, 3000, seed + run, Anomaly) for run in range(5)]
    again = [_first(trainer, 3000, seed + run, AnomalyOver) for run in range(5)]
    print(f"10 % slow in steps 2000 to 2400: reported at {late}, even again at {again}", flush=True)


def cost() -> None:
    """Print what an event and a look cost, where steps take 3 ms."""
    for count in (2, 16):
        trainer = Trainer(devices=gpu_devices(count), compute_s=0.003)
        events = list(trainer.events(3000))
        live = Looks(start=lambda work: None)
        began = time.perf_counter()
        for event in events:
            live.add(event)
        passed = time.perf_counter() - began
        recent = RecentEvents()
        for event in events:
            recent.add(event)
        window, before = recent.take(0.0), time.process_time()
        judged(window)
        took = time.process_time() - before
        print(
            f"{count} GPUs, steps of 3 ms: {1e6 * passed / len(events):.1f} us an event, "
            f"{1000 * took:.0f} ms a look"
        )


def _first(trainer: Trainer, steps: int, seed: int, kind: type[Event]) -> int | None:
    return next((step for step, event in looks(trainer, steps, seed) if isinstance(event, kind)), None)


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    cost()
    delays(asked.runs // 5, asked.seed)
    false_alarms(asked.runs, asked.seed)


if __name__ == "__main__":
    main()
