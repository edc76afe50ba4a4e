"""Parts of a plan: other numbers of GPUs, unequal GPUs, a changed machine, the timeline of gradients."""

import re

from gputopo.report.document import Block, Document, Rows, Table, of_sections
from gputopo.report.layout import plain
from gputopo.report.units import counted, rough, three_figures, whole
from gputopo.values.index_ranges import gpu_ranges, index_ranges
from gputopo.values.run.batches import batch_words
from gputopo.values.run.batches import plain as plain_batch
from gputopo.values.run.plan import (
    Autotune,
    Candidate,
    HowMany,
    StepLine,
    TimedRun,
    Unequal,
    WhatIf,
    mode_words,
)

_MAX_RESOURCES = 10  # the JSON has all; the others are faster
_SETTLED = {
    "lead": "its lead exceeds the noise",
    "same": "the others are within 1%",
    "time": "time ran out before its lead exceeded the noise",
    "stopped": "stopped before its lead exceeded the noise",
    "failed": "no other could be run",
}


def how_many_words(how_many: HowMany) -> str:
    """Return how many GPUs were chosen and why: `2 GPUs: 4 are slower than 2: ...`."""
    return f"{counted(how_many.num_gpus, 'GPU')}: {how_many.reason}"


def how_many_blocks(how_many: HowMany) -> list[Block]:
    """Return how many GPUs were chosen and why, and the predicted speed of 1, 2, 4, ... GPUs."""
    rows = [
        (
            str(count.num_gpus),
            whole(count.images_per_sec),
            f"{count.speedup:.2f}",
            "" if count.gain is None else f"{count.gain:.0%}",
            "*" if count.num_gpus == how_many.num_gpus else "",
        )
        for count in how_many.counts
    ]
    heads = ("GPUs", "images/sec", "speedup", "gain", "")
    return [how_many_words(how_many), *([Table.of(heads, rows, words=("GPUs", ""))] if rows else [])]


def unequal_blocks(unequal: Unequal) -> list[Block]:
    """Return the predicted images/sec of GPUs of different speeds.

    There is a row for all together, for each speed by itself, and for all with batches in proportion to
    speed. The column "less" has the share by which each is slower than the fastest of them.
    """
    better = unequal.better
    groups = list(dict.fromkeys((unequal.together, *unequal.alone, unequal.in_proportion, better)))
    fastest = max(group.images_per_sec for group in groups)
    less = 1 - better.images_per_sec / fastest
    if not unequal.use:
        words = (
            f"no alternative is clearly faster than the plan ({less:.1%})"
            if less
            else "the plan is the fastest"
        )
    elif better == unequal.in_proportion:
        words = f"batches in proportion to the GPUs' speeds would be faster: {unequal.use}"
    elif better == unequal.together:
        words = f"equal batches would be faster: {unequal.use}"
    else:
        words = f"{gpu_ranges(better.gpus)} alone would be faster: {unequal.use}"
    rows = []
    for group in groups:
        batch = plain_batch(group.batch_sizes)
        batches = ", ".join(map(str, batch)) if isinstance(batch, tuple) else f"{batch} each"
        share = f"{1 - group.images_per_sec / fastest:.1%}"
        mark = "*" if group == better else ""
        rows.append((index_ranges(group.gpus), batches, whole(group.images_per_sec), share, mark))
    heads = ("GPUs", "batches", "images/sec", "less", "")
    return [words, Table.of(heads, rows, words=("GPUs", "batches", ""))]


def what_if_answer(what_if: WhatIf, model: str | None) -> str:
    """Return what the changes bring, in one sentence."""
    if not what_if.changes:
        return "No single change of a link, NVLink, ACS or peer access helps by 1% or more."
    changes = "; ".join(map(change_words, what_if.changes))
    after, before = (whole(candidate.images_per_sec or 0.0) for candidate in (what_if.after, what_if.before))
    words = f"{changes}: {after} instead of {before} images/sec{f' of {model}' if model else ''}"
    batch = what_if.pays_at_batch
    pays = "" if batch is None else f" It helps at batch {batch} per GPU or below."
    gain = "no difference" if abs(what_if.share) < 0.005 else f"{what_if.share:+.0%}"
    # The user's own words stay as they are.
    if change_words(what_if.changes[0]) != plain(what_if.changes[0]):
        words = words[0].upper() + words[1:]
    return f"{words}, {gain}.{pays}"


def what_if_blocks(what_if: WhatIf) -> list[Block]:
    """Return the predicted images/sec before and after changes, and what the prediction is based on."""
    if not what_if.changes:
        return []
    rows = [
        (
            label,
            ", ".join(
                filter(None, (speed_words(candidate), gpu_ranges(candidate.gpus), limit_words(candidate)))
            ),
        )
        for label, candidate in (("Before", what_if.before), ("After", what_if.after))
    ]
    return [Rows((*rows, ("Rests on", "; ".join(what_if.basis))))]


def change_words(change: str) -> str:
    """Return a change in words: `GPU 3 into an x16 slot`."""
    if match := re.fullmatch(r"gpu([0-9]+): x([0-9]+)", change):
        return f"GPU {match[1]} into an x{match[2]} slot"
    if match := re.fullmatch(r"all: x([0-9]+)", change):
        return f"all GPUs into x{match[1]} slots"
    if match := re.fullmatch(r"nvlink ([0-9]+)-([0-9]+)", change):
        return f"NVLink between GPUs {match[1]} and {match[2]}"
    return {"acs off": "ACS off", "p2p on": "peer access on"}.get(change) or plain(change)


def limit_words(choice: Candidate) -> str:
    """Return what limits a step: compute, or the longest wait after compute; "" if unknown."""
    limit = choice.limited_by or ""
    return f"{'limited by' if limit.startswith('compute') else 'waits longest for'}: {limit}" if limit else ""


def speed_words(candidate: Candidate, model: str | None = None) -> str:
    """Return the images/sec of a candidate with their range, or that they were measured."""
    speed = candidate.images_per_sec or 0.0
    low, high = candidate.images_per_sec_low, candidate.images_per_sec_high
    of_model = f" of {model}" if model else ""
    if low is None or high is None:
        return f"about {rough(speed)} images/sec{of_model} (order of magnitude only)"
    if candidate.evidence == "measured":
        return f"{whole(speed)} images/sec{of_model}, measured"
    return f"{whole(speed)} images/sec{of_model} (80% range {whole(low)} to {whole(high)})"


def step_line_blocks(step_line: StepLine) -> list[Block]:
    """Return the parts of the step, ordered by when they end, and a table of what each link carries."""
    parts = {
        "weights": step_line.weights_ms,
        "forward": step_line.forward_ms,
        "backward": step_line.backward_ms,
        "gradients": step_line.gradients_ms,
        "variables": step_line.variables_ms,
    }
    ends, end = [], 0.0
    for name, ms in parts.items():
        end += ms
        if ms:
            ends.append(f"{name} until {end:.1f}")
    words = f"ms from the start of the step: {', '.join(ends)}"
    if not step_line.resources:
        return [words, "nothing is exchanged between GPUs"]
    rows = [
        (
            resource.resource,
            _mb(resource.weights_mb),
            _mb(resource.wait_ms),
            _mb(resource.gradients_mb),
            _mb(resource.busy_ms),
            f"{resource.through_ms:.1f}" if resource.busy_ms else "",
        )
        for resource in step_line.resources[:_MAX_RESOURCES]
    ]
    heads = ("Link, each", "weights\nMB", "waits\nms", "gradients\nMB", "busy\nms", "through\nat")
    more = len(step_line.resources) - len(rows)
    notes = (f"and {more} more; --json has them",) if more else ()
    return [words, Table.of(heads, rows, words=heads[:1], notes=notes)]


def _mb(value: float) -> str:
    return f"{value:.1f}" if value else ""


def autotune_blocks(autotune: Autotune) -> list[Block]:
    """Return a table of the placements, and how certain it is that the first one is the fastest."""
    rows = [
        (
            mode_words(trial.candidate),
            measured_speed(trial.candidate.images_per_sec),
            measured_speed(trial.images_per_sec),
            str(len(trial.runs)),
            f"failed: {trial.failure}" if trial.failure else "fastest" if place == autotune.winner else "",
        )
        for place, trial in enumerate(autotune.measured)
    ]
    heads = ("Placement", "predicted", "measured", "runs", "")
    title = f"Autotune of {autotune.model}, images/sec at batch {batch_words(autotune.batch_size)}"
    return [title, Table.of(heads, rows, words=("Placement", ""))]


def autotune_document(autotune: Autotune) -> Document:
    """Return the table of the measured placements by itself."""
    return of_sections([("", autotune_blocks(autotune))])


def autotune_run_line(number: int, candidate: Candidate, result: TimedRun | str) -> str:
    """Return `autotune round 1: replicated: 512 images/sec`. `result`: a string if the run failed: why."""
    outcome = (
        f"failed: {plain(result)}"
        if isinstance(result, str)
        else f"{three_figures(result.images_per_sec)} images/sec"
    )
    return f"autotune round {number}: {mode_words(candidate)}: {outcome}"


def autotune_note(autotune: Autotune) -> str:
    """Return the choice in one sentence."""
    if autotune.winner is None:
        return "Autotune: nothing was measured."
    best = autotune.measured[autotune.winner]
    speed = f"{measured_speed(best.images_per_sec)} images/sec measured"
    if best.candidate.images_per_sec is not None:
        speed += f", {measured_speed(best.candidate.images_per_sec)} predicted"
    count = sum(bool(trial.runs) for trial in autotune.measured)
    which = f"Fastest of {count} measured placements" if count > 1 else "The only measured placement"
    return f"{which}: {mode_words(best.candidate)}, {speed}; {_SETTLED[autotune.settled]}."


def measured_speed(speed: float | None) -> str:
    """Return images/sec with three figures or more."""
    if speed is None:
        return "-"
    return whole(speed) if speed >= 100 else f"{speed:.3g}"
