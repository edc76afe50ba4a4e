"""Whether the input holds training back, from two rates: the input alone, and training without it."""

import math
from dataclasses import dataclass
from typing import Literal

from gputopo.errors import UsageError

# Two runs of the same work differ by some percent: below this difference neither is called the slower.
NOISE = 0.05
# Training and input share the host's cores: an input that alone is just fast enough may not be beside
# training. tf_cnn_benchmarks' published tables show real data within 8 % of synthetic where the input alone
# was far faster, so this much more than needed is called enough.
ENOUGH = 1.2

Verdict = Literal["input", "close", "enough"]


@dataclass(frozen=True, slots=True)
class InputBound:
    """What holds a run back, by its rates in images per second of all devices together.

    `verdict`: `input` is slower than training on synthetic data; `close`: as fast, or a little faster;
    `enough`: so much faster that training does not wait. `headroom`: input rate over training rate.
    `at_most`: images per second that a run with both can reach.
    """

    verdict: Verdict
    headroom: float
    at_most: float
    says: str


def judge(input_images_per_sec: float, training_images_per_sec: float) -> InputBound:
    """Compare the input alone with training alone (synthetic data on the devices), both in images/sec.

    Pure. Raises UsageError for a rate that is no positive number.
    """
    for name, rate in (("input", input_images_per_sec), ("training", training_images_per_sec)):
        if not (rate > 0 and math.isfinite(rate)):
            raise UsageError(
                f"the {name} rate cannot be {rate} images/sec", "give the images/sec of a run that took steps"
            )
    headroom = input_images_per_sec / training_images_per_sec
    at_most = min(input_images_per_sec, training_images_per_sec)
    rates = f"{input_images_per_sec:.1f} images/sec against {training_images_per_sec:.1f} of training alone"
    if headroom < 1 - NOISE:
        lost = 100 * (1 - headroom)
        return InputBound(
            "input", headroom, at_most, f"The input is the bottleneck: {rates}, {lost:.0f} % less."
        )
    if headroom < ENOUGH:
        return InputBound(
            "close",
            headroom,
            at_most,
            f"The input just keeps up: {rates}; beside training, which needs the same cores, it may not.",
        )
    return InputBound("enough", headroom, at_most, f"The input is fast enough: {rates}.")


def waited_share(waited_s: float, steps_s: float) -> float:
    """Give the share of the steps' time, 0 to 1, that was spent on waiting for the input.

    Raises UsageError where no time has passed.
    """
    if not steps_s > 0:
        raise UsageError("the steps took no time", "give the seconds of a run that took steps")
    return min(max(waited_s / steps_s, 0.0), 1.0)
