"""Whether the input holds training back: from how long training waits for it, or from two rates. Pure."""

import math
from dataclasses import dataclass
from typing import Literal

from gputopo.values.errors import UsageError

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

    `verdict`: `input` is slower than training; `close`: as fast, or a little faster; `enough`: so much faster
    that training does not wait. `headroom`: rate of the input alone over the training's, None where only the
    waiting is known.
    """

    verdict: Verdict
    headroom: float | None
    says: str


def judge(input_images_per_sec: float, training_images_per_sec: float, how: str = "") -> InputBound:
    """Compare the input alone with training alone (synthetic data on the devices), both in images/sec.

    `how`: words for how that training computed. Raises UsageError for a rate that is no positive number.
    """
    headroom = _headroom(input_images_per_sec, training_images_per_sec)
    alone = f"training alone ({how})" if how else "training alone"
    rates = f"{input_images_per_sec:.1f} images/sec against {training_images_per_sec:.1f} of {alone}"
    if headroom < 1 - NOISE:
        lost = 100 * (1 - headroom)
        return InputBound("input", headroom, f"The input is the bottleneck: {rates}, {lost:.0f} % less.")
    if headroom < ENOUGH:
        return InputBound(
            "close",
            headroom,
            f"The input just keeps up: {rates}; beside training, which needs the same cores, it may not.",
        )
    return InputBound("enough", headroom, f"The input is fast enough: {rates}.")


def judge_waiting(
    share: float, training_images_per_sec: float, input_images_per_sec: float | None = None
) -> InputBound:
    """Judge a training by the share of its steps' time, 0 to 1, in which all devices waited for examples.

    Its rate is that of training and input together, so it is never above the input's: it cannot tell whether
    the input is too slow, the waiting can. `input_images_per_sec`: of the input alone, where that was
    measured; it tells how near the input is to its limit. Raises UsageError for a rate that is no positive
    number.
    """
    alone = input_images_per_sec
    headroom = None if alone is None else _headroom(alone, training_images_per_sec)
    waited = f"the devices waited for it in {100 * share:.1f} % of the steps' time"
    if share >= NOISE:
        squeezed = ""
        if headroom is not None and headroom >= ENOUGH:
            squeezed = (
                f"; alone it gave {alone:.1f} images/sec, beside training {training_images_per_sec:.1f}: "
                "they share the cores"
            )
        return InputBound("input", headroom, f"The input is the bottleneck: {waited}{squeezed}.")
    if headroom is None:
        return InputBound("enough", None, f"The input is fast enough: {waited}.")
    rates = f"alone it gave {alone:.1f} images/sec, training takes {training_images_per_sec:.1f}"
    if headroom < ENOUGH:
        return InputBound("close", headroom, f"The input just keeps up: {waited}; {rates}.")
    return InputBound("enough", headroom, f"The input is fast enough: {waited}; {rates}.")


def waited_share(waited_s: float, steps_s: float) -> float:
    """Give the share of the steps' time, 0 to 1, that was spent on waiting for the input.

    Raises UsageError where no time has passed.
    """
    if not steps_s > 0:
        raise UsageError("the steps took no time", "give the seconds of a run that took steps")
    return min(max(waited_s / steps_s, 0.0), 1.0)


def _headroom(input_rate: float, training_rate: float) -> float:
    for name, rate in (("input", input_rate), ("training", training_rate)):
        if not (rate > 0 and math.isfinite(rate)):
            raise UsageError(
                f"the {name} rate cannot be {rate} images/sec", "give the images/sec of a run that took steps"
            )
    return input_rate / training_rate
