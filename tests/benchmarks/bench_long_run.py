"""Memory and end of a long run in the launcher: `python -m tests.benchmarks.bench_long_run`.

In one process, the events of a worker go through everything that the launcher does with each: it decodes
them, writes them to the events file, sums them up and shows them; at the end it judges them and derives the
result. There is no worker and no clock: steps come as fast as they are processed, with a sample of GPUs and
host after every ten. Then the events file is read and summed up, as for a killed run.
"""

import argparse
import io
import resource
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console

from gputopo.cli import options_of_command
from gputopo.launch.supervise import EventLines, EventLog, Record
from gputopo.probes import RunWatch  # noqa: F401 (what else a launcher has loaded)
from gputopo.report import Progress
from gputopo.runs import summarise
from gputopo.values.run.events import GpuSample, HostLoad, RunStarted, Sample, Step, encode_line, read_events
from tests.invented_runs import InventedRun, Noise, gpu_devices, stream

GOAL_MIB, GOAL_END_S = 60.0, 1.0
KINDS = 500  # different steps; they are repeated


def main() -> int:
    """Print memory and times; exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--devices", type=int, default=2)
    arguments = parser.parse_args()
    options_of_command("run")  # loads what else a launcher has loaded
    devices = gpu_devices(arguments.devices)
    kinds = InventedRun(arguments.devices, noise=Noise(own=0.01)).steps(KINDS)
    started = next(event for event in stream(devices, []) if isinstance(event, RunStarted))
    before = peak_mib()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        with Progress(Console(file=io.StringIO()), display_every=10**9) as progress:
            record = Record(EventLog(file), progress.event)
            record.add(started)
            lines = EventLines()
            began = time.perf_counter()
            for number in range(1, arguments.steps + 1):
                for event in lines.take(encode_line(numbered(kinds[number % KINDS], number))):
                    record.add(event)
                if number % 10 == 0:
                    record.add(sample(started, number))
            each_us = 1e6 * (time.perf_counter() - began) / arguments.steps
            began = time.perf_counter()
            record.finish()
            result = record.summary.result()
            end_s = time.perf_counter() - began
        peak = peak_mib()
        began = time.perf_counter()
        with file.open("rb") as stored:
            read = summarise(read_events(stored, origin=str(file)))
        read_s = time.perf_counter() - began
        size = file.stat().st_size / 2**20
    assert read == result
    assert result.steps == arguments.steps
    print(
        f"{arguments.steps:,} steps of {arguments.devices} devices: {peak:.1f} MiB at most ({before:.1f} MiB"
        f" before the run), {each_us:.0f} us a step, end {end_s:.2f} s; {size:.0f} MiB of events are read in"
        f" {read_s:.1f} s, {peak_mib():.1f} MiB at most"
    )
    print(f"goals: {GOAL_MIB:g} MiB, end {GOAL_END_S:g} s")
    return int(peak_mib() > GOAL_MIB or end_s > GOAL_END_S)


def numbered(step: Step, number: int) -> Step:
    """Return a step with another number and time."""
    return msgspec.structs.replace(step, step=number, global_step=number, time_s=1.7e9 + number * 0.1)


def sample(started: RunStarted, number: int) -> Sample:
    """Return a watch's sample of the GPUs and the host."""
    now = 1.7e9 + number * 0.1
    gpus = tuple(
        GpuSample(gpu=device.gpu, graphics_mhz=1700, memory_mhz=3800, power_w=140.0 + number % 9, pstate="P2")
        for device in started.devices
        if device.gpu is not None
    )
    return Sample(time_s=now, gpus=gpus, host=HostLoad(time_s=now, seconds=1.0, other_cpu_share=0.01))


def peak_mib() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    raise SystemExit(main())
