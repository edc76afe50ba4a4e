"""How many GPUs of several hosts a job takes with `--num-gpus auto`. Pure."""

from collections.abc import Callable

from gputopo.planner.how_many import GAIN, doublings, enough, gains, reason_of
from gputopo.values.run.plan import HowMany


def how_many(largest: int, gain: float | None, images_per_sec: Callable[[int], float | str]) -> HowMany:
    """Return the number of GPUs: all where a step of one of the numbers cannot be predicted.

    `images_per_sec`: of so many GPUs on the fewest hosts, or what is missing.
    """
    least = GAIN if gain is None else gain
    speeds: dict[int, float] = {}
    for count in doublings(largest):
        speed = images_per_sec(count)
        if isinstance(speed, str):
            return HowMany(num_gpus=largest, gain=least, reason=f"all, unless predicted: {speed}")
        speeds[count] = speed
    counts = gains(speeds)
    chosen = enough(counts, least)
    return HowMany(
        num_gpus=chosen.num_gpus, gain=least, reason=reason_of(counts, chosen, least), counts=counts
    )
