"""The cost of watching a run: `python -m tests.benchmarks.bench_run_watch [SECONDS]`.

First, processor time: a run's GPUs and host are sampled for SECONDS at the rate of a run, by the child and by
the launcher, on simulated GPUs. The simulation in Python is included, so GPUs with a driver cost less. Then
all of `gputopo run -- PROGRAM`: its launcher, and the child that samples, while a program on eight GPUs
reports ten steps a second; start and end are not included.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time

import psutil

from gputopo.launch.supervise import sampled
from gputopo.probes import RunWatch
from gputopo.values.run.bounded import RECENT_STEPS
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS

GOAL_PERCENT = 0.5  # of one core
BOX = SCENARIOS["dgx1"]
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


def main(seconds: float) -> int:
    """Print the cost; exit code 1 if the goal for the processor time is missed."""
    missed = False
    for gpus in (0, 1, 2, 4, 8):
        percent = cpu_percent(gpus, seconds)
        missed = missed or percent > GOAL_PERCENT
        print(f"{gpus} GPUs: {percent:.2f} % of a core", flush=True)
    launcher, child = launcher_percent(seconds)
    missed = missed or launcher + child > GOAL_PERCENT
    print(f"run -- PROGRAM, 8 GPUs: launcher {launcher:.2f} % of a core, its child {child:.2f} %", flush=True)
    print(f"goal: under {GOAL_PERCENT} % of a core; {seconds:g} s, {os.cpu_count()} CPUs")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main(float(sys.argv[1] if len(sys.argv) > 1 else "20")))
