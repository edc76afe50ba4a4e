"""`gputopo report` over many invented runs: processor time, peak memory and size of each form.

    python -m tests.benchmarks.bench_report --runs 2000

The runs are from the machine 7gforce, with different models, batches, numbers of GPUs and repeats. Each has
events of `--steps` steps on two GPUs, the machine, and a result. Some are slow, were killed, or failed.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.run.events import read_events
from tests.report.pictures.test_of_study import run_folder

MODELS = ("alexnet", "resnet50", "resnet101", "inception3", "vgg16", "googlenet", "lenet", "mobilenet")
BATCHES = (8, 16, 32, 64, 128)
UPDATES = ("parameter_server", "replicated")


def invented(folder: Path, runs: int, steps: int) -> None:
    """Write `runs` run folders: every model, batch and mode, then again as repeats."""
    drawn = random.Random(0)
    jobs = itertools.cycle(itertools.product(MODELS, BATCHES, UPDATES))
    for number, (model, batch, update) in zip(range(runs), jobs, strict=False):
        path = folder / f"run-{number:05}"
        killed = number % 50 == 7
        run_folder(path, slow=drawn.choice((1.0, 1.0, 1.0, 1.3)), finished=not killed, steps=steps)
        if killed:
            continue
        with (path / "events.jsonl").open("rb") as lines:
            result = summarise(read_events(lines, origin=str(path)))
        assert result.throughput is not None
        speed = drawn.gauss(100, 1) * batch**0.5
        result = msgspec.structs.replace(
            result,
            spec={**result.spec, "model": model, "batch_size": batch, "variable_update": update},
            batch_size=batch,
            throughput=msgspec.structs.replace(result.throughput, mean=speed),
            status="failed" if number % 50 == 8 else result.status,
            devices=result.devices[: 1 if number % 3 == 0 else 2],
        )
        schema.write(path / "result.json", result)


def measured(folder: Path, form: str, out: Path) -> tuple[float, float]:
    """Return processor time in s and peak memory in MiB of one report, in a separate process."""
    words = ["report", str(folder), "--format", form, "--output", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "gputopo", *words])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"gputopo {' '.join(words)} exited with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Print a row for each form."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--steps", type=int, default=60)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "runs")
        invented(folder, asked.runs, asked.steps)
        print(f"{asked.runs} runs of {asked.steps} steps\nform      CPU s  peak MiB  file MB")
        for form in ("table", "markdown", "html", "json", "csv"):
            out = Path(temporary, f"report.{form}")
            seconds, mib = measured(folder, form, out)
            print(f"{form:8} {seconds:6.1f}  {mib:8.0f}  {out.stat().st_size / 1e6:7.2f}")


if __name__ == "__main__":
    main()
