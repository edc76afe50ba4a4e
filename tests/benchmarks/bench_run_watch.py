"""The cost of watching a run: `python -m tests.benchmarks.bench_run_watch [SECONDS] [ROUNDS]`.

First, processor time: a run's GPUs and host are sampled for SECONDS at the rate of a run, by the child and by
the launcher, on simulated GPUs. The simulation in Python is included, so GPUs with a driver cost less. Then
all of `gputopo run -- PROGRAM`: its launcher, and the child that samples, while a program on eight GPUs
reports ten steps a second; start and end are not included.

Then the slowdown: a program that multiplies matrices on all cores runs steps with and without the watch, in
alternating slices of half a second. Printed is the median of the ratios of neighbouring slices, in steps per
second of the program's processor time, so that other programs have no effect.
"""

import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import psutil

from gputopo.launch.supervise import sampled
from gputopo.probes import RunWatch
from gputopo.values.run.bounded import RECENT_STEPS
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS

GOAL_PERCENT = 0.5  # of one core
BOX = SCENARIOS["dgx1"]
SLICE_S = 0.5
# Ten steps a second, until it is killed; and the time when all steps of a look have come.
PROGRAM = """
import time
from gputopo.launch.throughput import Steps
with Steps(examples=64) as steps:
    while True:
        time.sleep(0.1)
        steps.done()
"""
START_S = 5 + 0.1 * RECENT_STEPS


def cpu_percent(gpus: int, seconds: float) -> float:
    """Return the processor time of watching `gpus` GPUs, in percent of one core, without its start."""
    with installed(FakeNvml(BOX)):
        start = _cpu_of(gpus, 1.0)
        return 100 * (_cpu_of(gpus, seconds + 1.0) - start) / seconds


def _cpu_of(gpus: int, seconds: float) -> float:
    """Return the processor time of this process and of the child for a watch of `seconds` seconds."""
    before = _used()
    with RunWatch(range(gpus)) as watch, sampled(watch) as samples:
        assert samples is not None
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(watch.every_s)
            for _ in samples.take():
                pass
    return _used() - before


def _used() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def launcher_percent(seconds: float) -> tuple[float, float]:
    """Return the processor time of a program's launcher, and of its child, in percent of one core.

    The measurement starts when a look at the run has all of its steps.
    """
    command = [sys.executable, "-m", "tests.kit.command", BOX.name, "--", "run", "--", sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GPUTOPO_HOME": folder}
        with subprocess.Popen(
            [*command, PROGRAM], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as run:
            time.sleep(START_S)
            launcher = psutil.Process(run.pid)
            (child,) = (one for one in launcher.children() if one.cmdline() == launcher.cmdline())
            before = [sum(one.cpu_times()[:2]) for one in (launcher, child)]
            time.sleep(seconds)
            after = [sum(one.cpu_times()[:2]) for one in (launcher, child)]
            run.terminate()
    own, of_child = (100 * (b - a) / seconds for a, b in zip(before, after, strict=True))
    return own, of_child


def slowdown(rounds: int) -> list[float]:
    """Return the ratios of the speeds with and without the watch, of neighbouring slices."""
    steps = multiprocessing.Value("q", 0)
    workers = [
        multiprocessing.Process(target=_work, args=(steps,), daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    with installed(FakeNvml(BOX)), RunWatch(range(len(BOX.gpus))) as watch:
        for worker in workers:
            worker.start()
        time.sleep(1.0)
        speeds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for watched in (number % 2 == 0, number % 2 == 1):
                with sampled(watch if watched else None):
                    speeds[watched].append(_speed(steps, workers))
        for worker in workers:
            worker.kill()
    return [with_it / without for with_it, without in zip(speeds[True], speeds[False], strict=True)]


def _speed(steps: "Synchronized[int]", workers: Sequence[multiprocessing.Process]) -> float:
    before, ran = steps.value, _ran_s(workers)
    time.sleep(SLICE_S)
    return (steps.value - before) / (_ran_s(workers) - ran)


def _ran_s(workers: Sequence[multiprocessing.Process]) -> float:
    """Return the processor time of the workers, from the scheduler's nanoseconds."""
    return sum(int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) for one in workers) / 1e9


def _work(steps: "Synchronized[int]") -> None:
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy as np

    matrix = np.ones((200, 200), np.float32)
    while True:
        matrix @ matrix
        with steps.get_lock():
            steps.value += 1


def main(seconds: float, rounds: int) -> int:
    """Print both costs; exit code 1 if the goal for the processor time is missed."""
    missed = False
    for gpus in (0, 1, 2, 4, 8):
        percent = cpu_percent(gpus, seconds)
        missed = missed or percent > GOAL_PERCENT
        print(f"{gpus} GPUs: {percent:.2f} % of a core", flush=True)
    launcher, child = launcher_percent(seconds)
    missed = missed or launcher + child > GOAL_PERCENT
    print(f"run -- PROGRAM, 8 GPUs: launcher {launcher:.2f} % of a core, its child {child:.2f} %", flush=True)
    ratios = slowdown(rounds)
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"8 GPUs, all cores at work: speed with the watch {statistics.median(ratios):.4f} of that without"
        f" (half of {rounds} pairs {low:.3f} to {high:.3f})"
    )
    print(f"goal: under {GOAL_PERCENT} % of a core; {seconds:g} s, {os.cpu_count()} CPUs")
    return int(missed)


if __name__ == "__main__":
    seconds, rounds, *_ = *sys.argv[1:], *("20", "40")[len(sys.argv) - 1 :]
    raise SystemExit(main(float(seconds), int(rounds)))
