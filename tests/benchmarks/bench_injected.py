"""Compares the delay that `gputopo run --drill` injects with the delay that time marks measure.

    python -m tests.benchmarks.bench_injected --model resnet20 --batch-size 16 --steps 40

In one process on two CPU devices: tower 1 computes at 0.9, 0.7 and 0.5 of its pace. Printed for each: the
compute time from its marks over the required one (the median without a drill / the factor), as median, 95 %
quantile and maximum over the steps; then the share of a step spent waiting for an input at 0.8.
"""

import argparse
from statistics import median

import msgspec

from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import Event, Step
from gputopo.values.run.spec import RunSpec
from tests.launch.specs import cpu_spec

FACTORS = (0.9, 0.7, 0.5)


def steps_of(spec: RunSpec) -> list[Step]:
    """Train, and return the counted steps."""
    from gputopo.launch.models import build_model
    from gputopo.launch.train import train

    events: list[Event] = []
    train(build_model(spec.model, spec), spec, events.append)
    return [event for event in events if isinstance(event, Step) and not event.warmup]


def main() -> None:
    """Train with each drill and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    spec = cpu_spec(
        model=asked.model, batch_size=asked.batch_size, num_batches=asked.steps, num_warmup_batches=2
    )
    from gputopo.launch.train import set_up_devices

    set_up_devices(spec)
    plain_s = median(step.marks[1].compute_s for step in steps_of(spec))
    for factor in FACTORS:
        own = msgspec.structs.replace(spec, drills=read_drills("--drill", [f"slow-gpu=1:{factor}"]))
        ratios = sorted(step.marks[1].compute_s * factor / plain_s for step in steps_of(own))
        print(
            f"slow-gpu=1:{factor}: {1000 * plain_s / factor:.1f} ms demanded; measured over demanded: "
            f"median {median(ratios):.4f}, 95 % {ratios[int(0.95 * len(ratios))]:.4f}, max {ratios[-1]:.4f}"
        )
    late = msgspec.structs.replace(spec, drills=read_drills("--drill", ["slow-input=0.8"]))
    shares = [(step.waited_s or 0.0) / step.seconds for step in steps_of(late)]
    print(f"slow-input=0.8: waited for in {100 * median(shares):.1f} % of a step, 20 % demanded")


if __name__ == "__main__":
    main()
