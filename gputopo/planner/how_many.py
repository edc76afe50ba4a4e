"""How many GPUs a job takes. Pure.

`--num-gpus auto` takes more while that brings a share of its worth: the last doubling, and all GPUs beyond
the number before that was worth it. Several GPUs cost at once what more of them do not cost again, so that
the step from one to two may be worth less than those that follow. Of GPUs of different speeds
fewer can be faster with equal batches, since the slowest sets the pace of synchronous training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise

import msgspec

from gputopo.planner.fastest import Basis, Fastest
from gputopo.planner.request import Request, speed_classes
from gputopo.prediction.links.paths import Paths
from gputopo.values.machine import Machine
from gputopo.values.run import all_reduce
from gputopo.values.run.batches import AUTO, AskedBatch, as_typed, plain
from gputopo.values.run.plan import SURE_MARGIN, GpuCount, GroupSpeed, HowMany, Unequal

# A doubling that brings less than half of what ideal GPUs would bring is better left to another job.
GAIN = 0.5
# Between groups a smaller difference is within the error of any prediction.
CLEARLY = 0.01
_NOISE = 1e-9  # of sums of floating-point numbers


def how_many(machine: Machine, request: Request, unavailable: Mapping[int, str], basis: Basis) -> HowMany:
    """Return the number of GPUs for a request with `num_gpus` auto, which was checked.

    By prediction; where the speed of a GPU is assumed the largest number that no smaller one beats, and all
    where no step can be predicted. Raises NoPlanError where no GPU can be used.
    """
    gain = GAIN if request.gain is None else request.gain
    # Some reductions cannot serve all numbers of GPUs: the largest number is known without.
    free = msgspec.structs.replace(request, all_reduce=None)
    selection = Fastest(machine, free, unavailable, basis)
    if not selection.predicts:
        why = basis.missing or "no step is predicted for this job"
        reason = "the only one" if selection.size == 1 else f"all that can be used: {why}"
        return HowMany(num_gpus=selection.size, gain=gain, reason=reason)
    counts = gains(_speeds(selection, doublings(selection.size), request))
    if len(counts) == 1:
        return HowMany(num_gpus=1, gain=gain, reason="the only one", counts=counts)
    if selection.is_assumed:
        best = max(one.images_per_sec for one in counts)
        chosen = next(one for one in counts if one.images_per_sec == best)
        reason = "the fastest; the speed of one GPU is assumed (--single-gpu-images-per-sec)"
        if chosen is not counts[-1]:
            reason = f"{_slower([chosen, counts[-1]])}; {reason}"
    else:
        chosen = enough(counts, gain)
        reason = reason_of(counts, chosen, gain)
        if not is_measured(selection.paths, selection.pool):
            reason += "; links as expected, not measured (gputopo bandwidth --save)"
    return HowMany(num_gpus=chosen.num_gpus, gain=gain, reason=reason, counts=counts)


def best_of_fewer(selection: Fastest) -> GpuCount | None:
    """Return the fastest of half as many GPUs, a quarter, ... one; None where there are none, or assumed."""
    sizes = [size for size in doublings(selection.size) if size < selection.size]
    if not sizes or selection.is_assumed or isinstance(selection.request.batch_size, tuple):
        return None
    return max(gains(_speeds(selection, sizes, selection.request)), key=lambda one: one.images_per_sec)


def _speeds(selection: Fastest, sizes: Sequence[int], request: Request) -> dict[int, float]:
    return {
        size: _images_per_sec(selection.machine, one, selection.unavailable, selection.basis)
        for size in sizes
        if (one := _of_size(request, size)) is not None
    }


def doublings(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the largest number."""
    powers = (2**power for power in range(largest.bit_length()))
    return tuple(dict.fromkeys((*powers, largest)))


def gains(images_per_sec: Mapping[int, float]) -> tuple[GpuCount, ...]:
    """Return the counts with what each adds to the one before it; the counts rise from 1."""
    one = images_per_sec[1]
    found = [GpuCount(num_gpus=1, images_per_sec=round(one, 2), speedup=1.0)]
    for (fewer, before), (more, after) in pairwise(images_per_sec.items()):
        gain = (after / before - 1) / (more / fewer - 1)
        found.append(
            GpuCount(
                num_gpus=more,
                images_per_sec=round(after, 2),
                speedup=round(after / one, 3),
                gain=round(gain, 4),
            )
        )
    return tuple(found)


def enough(counts: Sequence[GpuCount], gain: float) -> GpuCount:
    """Return the largest count that is worth it: it adds at least `gain` of what ideal GPUs would.

    To the count before it, and to the largest smaller one that is worth it.
    """
    chosen, least = counts[0], max(gain, 0.0) - _NOISE
    for one in counts[1:]:
        if one.gain is not None and min(one.gain, _gain(chosen, one)) >= least:
            chosen = one
    return chosen


def _gain(few: GpuCount, many: GpuCount) -> float:
    """Return the share of their worth that more GPUs bring."""
    return (many.images_per_sec / few.images_per_sec - 1) / (many.num_gpus / few.num_gpus - 1)


def is_measured(paths: Paths, gpus: Sequence[int]) -> bool:
    """Return whether what GPUs exchange was measured: each with the host, or each pair."""
    hosts = all(paths.hosts[gpu].basis == "measured" for gpu in gpus)
    return hosts or all(paths.pair(a, b).basis == "measured" for a, b in combinations(gpus, 2))


def _of_size(request: Request, size: int) -> Request | None:
    """Return the request for so many GPUs; None where its reduction cannot serve them."""
    sized = msgspec.structs.replace(request, num_gpus=size, gain=None)
    if request.all_reduce is None or all_reduce.parse(request.all_reduce).why_not("gpu", size) is None:
        return sized
    # One GPU reduces nothing.
    return msgspec.structs.replace(sized, all_reduce=None) if size == 1 else None


def _images_per_sec(
    machine: Machine, request: Request, unavailable: Mapping[int, str], basis: Basis
) -> float:
    selection = Fastest(machine, request, unavailable, basis)
    best = selection.search(selection.pool, 1, selection.troubles)[0]
    return selection.images_per_sec(best)


def reason_of(counts: Sequence[GpuCount], chosen: GpuCount, gain: float) -> str:
    """Return why so many were chosen, and what more of them would bring."""
    after = next((one for one in counts if one.num_gpus > chosen.num_gpus), None)
    if after is None:
        if chosen.num_gpus == 1:
            return "the only one"
        if any((one.gain or 0.0) < gain - _NOISE for one in counts[1:]):
            worth = f"{chosen.num_gpus} bring {_gain(counts[0], chosen):.0%} of their worth"
            return f"{worth}, the last step {chosen.gain:.0%}; at least {gain:.0%} of both is required"
        return f"each step up to {chosen.num_gpus} brings at least {gain:.0%} of its worth"
    slower = _slower([one for one in counts if one.num_gpus >= chosen.num_gpus])
    if after.gain is not None and after.gain < 0:
        return slower
    brings = (
        f"{after.num_gpus} would bring {after.gain:.0%} of their worth, less than {gain:.0%} "
        f"(--num-gpus auto:{gain:g})"
    )
    return "; ".join(filter(None, (brings, slower, _more(counts, chosen))))


def _more(counts: Sequence[GpuCount], chosen: GpuCount) -> str:
    """Return how much faster than the chosen number another is, where that can be told; else empty."""
    best = max(counts, key=lambda one: one.images_per_sec)
    if best.images_per_sec * (1 - SURE_MARGIN) <= chosen.images_per_sec:
        return ""
    times = best.images_per_sec / chosen.images_per_sec
    return f"{best.num_gpus} are {times:.2f} times as fast as {chosen.num_gpus}: --num-gpus {best.num_gpus}"


def _slower(counts: Sequence[GpuCount]) -> str:
    """Return which is the first count that is slower than the one before it; empty where there is none."""
    for before, after in pairwise(counts):
        if after.images_per_sec < before.images_per_sec:
            return (
                f"{after.num_gpus} are slower than {before.num_gpus}: "
                f"{after.images_per_sec:,.0f} instead of {before.images_per_sec:,.0f} images/sec"
            )
    return ""


# GPUs of different speeds


def unequal(selection: Fastest, gpus: Sequence[int]) -> Unequal | None:
    """Return what the chosen GPUs do with equal batches, those of one speed alone, and all with batches in
    proportion to their speeds; None where all are of one speed.

    The groups: of the most frequent speed, and without the slower ones.
    """
    parts = groups({gpu: selection.basis.speeds[gpu].images_per_sec for gpu in gpus})
    if not parts:
        return None
    equal, by_speed = (_asked_for(selection, batch) for batch in (selection.basis.batch, AUTO))
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
    """Return the GPUs of the most frequent speed, and those without the slower ones; none for one speed."""
    classes = speed_classes(speeds)
    if len(classes) < 2:
        return ()
    faster = [[gpu for part in classes[:count] for gpu in part] for count in range(1, len(classes))]
    found = dict.fromkeys(tuple(sorted(part)) for part in (max(classes, key=len), *faster))
    return tuple(sorted(found, key=lambda part: (-len(part), part)))


def _asked_for(selection: Fastest, batch: AskedBatch) -> Fastest:
    request = msgspec.structs.replace(selection.request, batch_size=batch)
    return Fastest(selection.machine, request, selection.unavailable, selection.basis)


def _speed(group: GroupSpeed) -> float:
    return group.images_per_sec


def _group(selection: Fastest, gpus: Sequence[int]) -> GroupSpeed:
    best = selection.search(gpus, 1)[0]
    return GroupSpeed(
        gpus=tuple(gpus),
        images_per_sec=round(selection.images_per_sec(best), 2),
        batch_sizes=selection.batches(gpus),
    )


def _options(selection: Fastest, gpus: Sequence[int], better: GroupSpeed) -> str:
    """Return the options with which a run does as these GPUs; none where the plan does so by itself."""
    batch = plain(better.batch_sizes)
    words = (
        [f"--batch-size {as_typed(batch)}"] if selection.batches(better.gpus) != better.batch_sizes else []
    )
    if set(better.gpus) != set(gpus) or (words and set(gpus) != set(selection.pool)):
        words.insert(0, f"--gpus {','.join(map(str, better.gpus))}")
    return " ".join(words)


def how_many_of_hosts(
    numbers: Iterable[int], gain: float | None, images_per_sec: Callable[[int], float | str]
) -> HowMany:
    """Return one of the numbers of GPUs: the largest where a step of one of them cannot be predicted.

    `images_per_sec`: of so many GPUs on the fewest hosts, or what is missing.
    """
    wanted = sorted({*numbers})
    least = GAIN if gain is None else gain
    speeds: dict[int, float] = {}
    for count in wanted:
        speed = images_per_sec(count)
        if isinstance(speed, str):
            return HowMany(num_gpus=wanted[-1], gain=least, reason=f"all, unless predicted: {speed}")
        speeds[count] = speed
    counts = gains(speeds)
    chosen = enough(counts, least)
    return HowMany(
        num_gpus=chosen.num_gpus, gain=least, reason=reason_of(counts, chosen, least), counts=counts
    )
