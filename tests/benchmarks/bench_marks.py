"""The cost of time marks and the stream of events: `python -m tests.benchmarks.bench_marks [--steps N]`.

The same training step is built twice in one process, unchanged and without reading the clock, and the two
alternate on CPU devices. Printed is the median of the ratios of neighbouring steps, and the time to make and
encode the event of a step, as a share of a step's time.
"""

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

MODELS = {"alexnet": (16, 16), "resnet20": (64, 100), "resnet50": (8, 12)}  # batch per device, pairs of steps


def main() -> None:
    """Measure each model in its own process: logical CPU devices are created once per process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, help="pairs of steps (default: enough for each model)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for model in arguments.models.split(","):
        if arguments.here:
            _measure(model, arguments.devices, arguments.steps or MODELS[model][1])
            continue
        more = ["--steps", str(arguments.steps)] if arguments.steps else []
        command = [sys.executable, "-m", "tests.benchmarks.bench_marks", "--here", "--models", model]
        subprocess.run([*command, "--devices", str(arguments.devices), *more], check=True)


def _measure(model: str, devices: int, pairs: int) -> None:
    from gputopo.launch.train.loop import Loop
    from gputopo.launch.train.placement.devices import set_up_devices
    from gputopo.values.run.events import Device, encode_line
    from tests.launch.specs import cpu_spec

    towers = tuple(Device(tower=n, device=f"/CPU:{n}", hop_to_variables="host") for n in range(devices))
    spec = cpu_spec(model=model, devices=towers, batch_size=MODELS[model][0], learning_rate=1e-4)
    set_up_devices(spec)
    steps = {"marked": _built(spec, marked=True), "bare": _built(spec, marked=False)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    outcome = None
    for number in range(pairs + 3):  # three for warm-up
        for name in sorted(steps, reverse=number % 2 == 1):
            began = time.perf_counter()
            result = steps[name](number)
            seconds[name].append(time.perf_counter() - began)
            outcome = result if name == "marked" else outcome
    ratios = [m / b for m, b in zip(seconds["marked"][3:], seconds["bare"][3:], strict=True)]
    step_s = statistics.median(seconds["bare"][3:])
    loop = Loop(steps["marked"], spec, emit=lambda event: None)
    assert outcome is not None
    event_s = _time_of(lambda: encode_line(loop.step_event(1, step_s, outcome)))
    print(
        f"{model} on {devices} CPU devices: a step takes {1e3 * step_s:.1f} ms without marks,"
        f" {100 * (statistics.median(ratios) - 1):+.2f} % with them (half of the pairs within"
        f" {_quarter(ratios, 1):+.2f} to {_quarter(ratios, 3):+.2f} %);"
        f" its event takes {1e6 * event_s:.0f} us, {100 * event_s / step_s:.3f} %",
        flush=True,
    )


def _built(spec: Any, *, marked: bool) -> Any:
    """Build the training step, with its marks or with constants instead of clock readings."""
    from unittest import mock

    import tensorflow as tf

    from gputopo.launch.models import models
    from gputopo.launch.train import step
    from gputopo.launch.train.marks import Marks
    from gputopo.launch.train.training import stepper_of

    model = models.build_model(spec.model, spec)
    if marked:
        return stepper_of(model, spec)

    def no_clock(after: Any) -> Any:
        del after
        return tf.constant(0.0, tf.float64)

    def no_probe(self: Marks, tensors: Any, device: str) -> Any:
        del tensors, device
        self.probes.append(tf.zeros((1,)))
        return self.probes[-1]

    with mock.patch.object(step, "clock", no_clock), mock.patch.object(Marks, "arrived", no_probe):
        return stepper_of(model, spec)


def _time_of(work: Any, times: int = 1000) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def _quarter(ratios: list[float], number: int) -> float:
    return 100 * (statistics.quantiles(ratios, n=4)[number - 1] - 1)


if __name__ == "__main__":
    main()
