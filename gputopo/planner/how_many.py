"""How many GPUs a job uses.

`--num-gpus auto` adds GPUs as long as they give a minimum share of the ideal speedup: the last doubling, and
all GPUs added since the last accepted number. The first additional GPU can gain less than later ones, because
some costs of several GPUs arise only once. With GPUs of different speeds and equal batches, fewer can be
faster, because the slowest GPU limits synchronous training.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from gputopo.planner.chooser import Basis, Chooser
from gputopo.planner.reasons import UNPREDICTED, unpredicted_reason
from gputopo.planner.request import Request, check_batch_size, speed_classes
from gputopo.planner.selection import MachineFacts
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.batches import AUTO, as_typed, plain
from gputopo.values.run.plan import SURE_MARGIN, Candidate, GpuCount, GroupSpeed, HowMany, Unequal

# A doubling with less than half of the ideal gain is better left to another job.
GAIN = 0.5
# A smaller difference between groups is within the error of any prediction.
CLEARLY = 0.01
MAX_POWER = 13  # batches of up to 4,096 are tried
_NOISE = 1e-9  # of sums of floating-point numbers


def how_many(facts: MachineFacts, request: Request, unavailable: Mapping[int, str], basis: Basis) -> HowMany:
    """Return the number of GPUs for a checked request with `num_gpus` auto.

    By prediction; all GPUs if no step can be predicted. Raises NoPlanError if no GPU can be used.
    """
    gain = GAIN if request.gain is None else request.gain
    # Some reductions do not work for all numbers of GPUs: find the largest number without the reduction.
    free = msgspec.structs.replace(request, all_reduce=None)
    selection = Chooser(facts, free, unavailable, basis)
    if not selection.predicts:
        why = selection.missing or "no step is predicted for this job"
        reason = "the only one" if selection.size == 1 else f"all that can be used: {why}"
        return HowMany(num_gpus=selection.size, gain=gain, reason=reason)
    counts = gains(
        {size: _speed_of_size(selection, request.all_reduce, size) for size in doublings(selection.size)}
    )
    chosen = enough(counts, gain)
    reasons = [reason_of(counts, chosen, gain)]
    if len(counts) > 1:
        batch = _pays_from(selection, request.all_reduce, gain)
        pays = f"from batch {batch} per GPU" if batch else f"with no batch up to {2 ** (MAX_POWER - 1):,}"
        if batch or chosen.num_gpus == 1:
            reasons.append(f"a second GPU helps {pays}")
    return HowMany(num_gpus=chosen.num_gpus, gain=gain, reason="; ".join(reasons), counts=counts)


def _speed_of_size(selection: Chooser, all_reduce: str | None, size: int) -> float:
    reduction = None if all_reduce is None else parse(all_reduce)
    usable = size > 1 and reduction is not None and reduction.why_not("gpu", size) is None
    sized = selection.asked(num_gpus=size, gain=None, all_reduce=all_reduce if usable else None)
    return sized.speed_of_best()


def _pays_from(selection: Chooser, all_reduce: str | None, gain: float) -> int | None:
    """Return the smallest power of two as a batch with which a second GPU gains `gain` of the ideal."""
    for batch in (2**power for power in range(MAX_POWER)):
        basis = selection.basis._replace(batch=batch, speeds=selection.basis.speeds_with(batch))
        other = selection.asked(basis, batch_size=batch)
        single, double = (_speed_of_size(other, all_reduce, size) for size in (1, 2))
        if double / single - 1 >= gain:
            return int(batch)
    return None


def best_of_fewer(selection: Chooser) -> GpuCount | None:
    """Return the fastest of half the GPUs, a quarter, ... one; None if there are none."""
    sizes = [size for size in doublings(selection.size) if size < selection.size]
    if not sizes or isinstance(selection.request.batch_size, tuple):
        return None
    counts = gains({size: _speed_of_size(selection, selection.request.all_reduce, size) for size in sizes})
    return max(counts, key=lambda count: count.images_per_sec)


def doublings(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the largest number."""
    powers = (2**power for power in range(largest.bit_length()))
    return tuple(dict.fromkeys((*powers, largest)))


def gains(images_per_sec: Mapping[int, float]) -> tuple[GpuCount, ...]:
    """Return the counts with what each adds to the previous one; the counts rise from 1."""
    single = images_per_sec[1]
    counts = [GpuCount(num_gpus=1, images_per_sec=round(single, 2), speedup=1.0)]
    for (fewer, before), (more, after) in pairwise(images_per_sec.items()):
        gain = (after / before - 1) / (more / fewer - 1)
        counts.append(
            GpuCount(
                num_gpus=more,
                images_per_sec=round(after, 2),
                speedup=round(after / single, 3),
                gain=round(gain, 4),
            )
        )
    return tuple(counts)


def enough(counts: Sequence[GpuCount], gain: float) -> GpuCount:
    """Return the largest accepted count: it adds at least `gain` of what ideal GPUs would add.

    This holds relative to the previous count, and to the largest accepted smaller one.
    """
    chosen, least = counts[0], max(gain, 0.0) - _NOISE
    for count in counts[1:]:
        if count.gain is not None and min(count.gain, _gain(chosen, count)) >= least:
            chosen = count
    return chosen


def _gain(few: GpuCount, many: GpuCount) -> float:
    """Return what the additional GPUs gain, as a share of the ideal gain."""
    return (many.images_per_sec / few.images_per_sec - 1) / (many.num_gpus / few.num_gpus - 1)


def reason_of(counts: Sequence[GpuCount], chosen: GpuCount, gain: float) -> str:
    """Return why this number was chosen, and what more GPUs would gain."""
    if len(counts) == 1:
        return "the only one"
    after = next((count for count in counts if count.num_gpus > chosen.num_gpus), None)
    if after is None:
        worth = _gain(counts[0], chosen)
        return (
            f"they reach {worth:.0%} of the ideal speedup, the last step {chosen.gain:.0%}; {gain:.0%} "
            "is required"
        )
    brings = (
        f"would bring {after.gain:.0%} of the ideal speedup, less than {gain:.0%} (--num-gpus auto:{gain:g})"
    )
    if after.images_per_sec < chosen.images_per_sec:
        brings = f"are slower: {after.images_per_sec:,.0f} instead of {chosen.images_per_sec:,.0f} images/sec"
    reason, best = f"{after.num_gpus} {brings}", max(counts, key=lambda count: count.images_per_sec)
    if best.images_per_sec * (1 - SURE_MARGIN) <= chosen.images_per_sec:
        return reason
    times = best.images_per_sec / chosen.images_per_sec
    return f"{reason}; {best.num_gpus} are {times:.2f} times as fast: --num-gpus {best.num_gpus}"


# GPUs of different speeds


def unequal(selection: Chooser, gpus: Sequence[int]) -> Unequal | None:
    """Return the speed of the chosen GPUs with equal batches, of groups of them, and with unequal batches.

    The groups, with equal batches: the GPUs of the most frequent speed, and all without the slower ones. The
    unequal batches are proportional to the speeds of the GPUs. None if all have the same speed.
    """
    parts = groups({gpu: selection.basis.speeds[gpu].images_per_sec for gpu in gpus})
    if not parts:
        return None
    equal, by_speed = (selection.asked(batch_size=batch) for batch in (selection.basis.batch, AUTO))
    together, in_proportion = _group(equal, gpus), _group(by_speed, gpus)
    required = selection.required
    alone = [_group(equal, part) for part in parts if required is None or required in part]
    better, chosen = max([together, in_proportion, *alone], key=_speed), _group(selection, gpus)
    if _speed(better) <= (1 + CLEARLY) * _speed(chosen):
        better = chosen
    return Unequal(
        together=together,
        alone=tuple(alone),
        in_proportion=in_proportion,
        better=better,
        use=_options(selection, gpus, better),
    )


def groups(speeds: Mapping[int, float]) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of the most frequent speed, and all without the slower ones; none if all are equal."""
    classes = speed_classes(speeds)
    if len(classes) < 2:
        return ()
    faster = [[gpu for part in classes[:count] for gpu in part] for count in range(1, len(classes))]
    parts = dict.fromkeys(tuple(sorted(part)) for part in (max(classes, key=len), *faster))
    return tuple(sorted(parts, key=lambda part: (-len(part), part)))


def _speed(group: GroupSpeed) -> float:
    return group.images_per_sec


def _group(selection: Chooser, gpus: Sequence[int]) -> GroupSpeed:
    sized = selection.asked(gpus=None, num_gpus=len(gpus))
    return GroupSpeed(
        gpus=tuple(gpus),
        images_per_sec=round(sized.speed_of_best(gpus), 2),
        batch_sizes=selection.batches(gpus),
    )


def _options(selection: Chooser, gpus: Sequence[int], better: GroupSpeed) -> str:
    """Return the options that select these GPUs for a run; "" if the plan selects them already."""
    batch = plain(better.batch_sizes)
    words = (
        [f"--batch-size {as_typed(batch)}"] if selection.batches(better.gpus) != better.batch_sizes else []
    )
    if set(better.gpus) != set(gpus) or (words and set(gpus) != set(selection.pool)):
        words.insert(0, f"--gpus {','.join(map(str, better.gpus))}")
    return " ".join(words)


def how_many_of_hosts(largest: int, request: Request, choose: Callable[[int], Candidate]) -> HowMany:
    """Return how many of the `largest` number of GPUs to use; all if a step of a number cannot be predicted.

    `choose`: returns the choice of a number of GPUs on the fewest hosts. Raises UsageError if the request has
    one batch for each GPU.
    """
    check_batch_size(request)
    gain = GAIN if request.gain is None else request.gain
    speeds: dict[int, float] = {}
    for count in doublings(largest):
        choice = choose(count)
        if choice.images_per_sec is None:
            why = unpredicted_reason(choice) or UNPREDICTED
            return HowMany(num_gpus=largest, gain=gain, reason=f"all, unless predicted: {why}")
        speeds[count] = choice.images_per_sec
    counts = gains(speeds)
    chosen = enough(counts, gain)
    return HowMany(num_gpus=chosen.num_gpus, gain=gain, reason=reason_of(counts, chosen, gain), counts=counts)
