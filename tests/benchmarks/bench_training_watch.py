"""The cost of watching a real training: `python -m tests.benchmarks.bench_training_watch [PAIRS] [SECONDS]`.

gputopo trains a small model on two CPU devices, alternating with and without the watch of the host and of
eight simulated GPUs behind the double of NVML. Printed is the ratio of the images/sec with and without the
watch, by pairs: geometric mean and the 95 % interval by Student's t. The simulation in Python is part of the
watch, so GPUs with a driver cost less.
"""

import contextlib
import math
import statistics
import sys
import tempfile
from pathlib import Path

from gputopo.launch.jobs.trials import Trial, run_trial, timed, trial_of
from gputopo.probes import RunWatch
from gputopo.values.run.noise import students_t
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.launch.specs import cpu_spec, plan_for
from tests.launch.train.worker_process import environment

BOX = SCENARIOS["dgx1"]
MODEL, BATCH = "resnet20", 16


def images_per_sec(folder: Path, seconds: float, *, watched: bool) -> float:
    """Return the speed of one run."""
    spec = cpu_spec(model=MODEL, batch_size=BATCH)
    trial = Trial(plan_for((), "cpu"), trial_of(spec, counted_s=seconds), environment())
    with installed(FakeNvml(BOX)), contextlib.ExitStack() as open_:
        sampler = open_.enter_context(RunWatch(range(len(BOX.gpus)))) if watched else None
        found = timed(run_trial(trial, folder, None, sampler=sampler))
    if isinstance(found, str):
        sys.exit(f"a run failed: {found}")
    return found.images_per_sec


def main(pairs: int, seconds: float) -> int:
    """Print the ratio and its interval."""
    logs = []
    with tempfile.TemporaryDirectory(prefix="gputopo-") as folder:
        for number in range(pairs):
            speeds = {
                watched: images_per_sec(Path(folder) / f"{number}-{watched}", seconds, watched=watched)
                for watched in (number % 2 == 0, number % 2 == 1)
            }
            logs.append(math.log(speeds[True] / speeds[False]))
            print(f"pair {number + 1}: {speeds[False]:.1f} without, {speeds[True]:.1f} with", flush=True)
    middle = statistics.fmean(logs)
    half = students_t(pairs - 1, 0.025) * statistics.stdev(logs) / math.sqrt(pairs)
    low, high = (math.exp(middle + one) for one in (-half, half))
    print(f"{MODEL}: {math.exp(middle):.3f} of the speed without the watch (95 %: {low:.3f} to {high:.3f})")
    return 0


if __name__ == "__main__":
    pairs, seconds, *_ = *sys.argv[1:], *("8", "10")[len(sys.argv) - 1 :]
    raise SystemExit(main(int(pairs), float(seconds)))
