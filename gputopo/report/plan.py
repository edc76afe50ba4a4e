"""A plan as text: what was chosen and why, the alternatives, and what a launcher must set."""

import re
from collections.abc import Sequence

from gputopo.report.document import Block, Bullets, Document, Drawing, Rows, Table, of_sections
from gputopo.report.layout import Column, Line, aligned, line, plain, width_of
from gputopo.report.plan_parts import (
    autotune_blocks,
    how_many_blocks,
    how_many_words,
    limit_words,
    measured_speed,
    speed_words,
    step_line_blocks,
    unequal_blocks,
    what_if_answer,
    what_if_blocks,
)
from gputopo.report.units import counted, whole
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import host_set, index_ranges
from gputopo.values.run.batches import as_typed
from gputopo.values.run.plan import (
    CLEARLY_FASTER,
    MIN_JOBS,
    Candidate,
    Learned,
    Plan,
    Prediction,
    mode_words,
)

_ALTERNATIVES = 5  # the JSON has all
_RUNNERS_UP = 3
_REASONS = 5
_SHORTEST_BAR, _WIDEST_BAR = 8, 40
_NUMBERS = 25  # columns for images/sec, ms and gaps in a row of steps
# The parts of a step: the mark in a bar, and the style on a terminal.
_PARTS = {
    "compute": ("█", "green"),
    "weights": ("▓", "cyan"),
    "gradients": ("▒", "yellow"),
    "variables": ("░", "magenta"),
    "network": ("▄", "blue"),
}
_NO_SHARE = 0.005  # smaller differences are not shown
_HOSTS_NAMED = 8  # hosts; the JSON has all
_SPELLED_OUT = 4  # more GPUs than these are written as ranges


def plan_document(plan: Plan) -> Document:
    """Return the choice with its gain, the reasons, the candidates, and what was refused."""
    refused = tuple(refusal.reason for refusal in plan.refused)
    asked = [] if plan.what_if is None else [what_if_answer(plan.what_if, plan.model)]
    return of_sections(
        [
            ("", [*asked, _answer(plan), Rows(tuple(_choice(plan)))]),
            ("Number of GPUs", [] if plan.how_many is None else how_many_blocks(plan.how_many)),
            ("What if", [] if plan.what_if is None else what_if_blocks(plan.what_if)),
            ("Line of gradients", [] if plan.line is None else step_line_blocks(plan.line)),
            ("Measured", [] if plan.autotune is None else autotune_blocks(plan.autotune)),
            ("Why", [Bullets(_why(plan, refused))]),
            ("Candidates", _candidates(plan)),
            ("Unequal GPUs", [] if plan.unequal is None else unequal_blocks(plan.unequal)),
            ("Refused", [Bullets(refused)] if refused else []),
        ]
    )


def _answer(plan: Plan) -> str:
    """Return what to use and how fast it is. If fewer GPUs would be clearly faster, that comes first."""
    choice = plan.choice
    where = _all_gpus(choice) if choice.gpus or choice.hosts else "Logical CPU devices"
    words, tuned = f"{where}, {mode_words(choice)}", plan.autotune
    best = None if tuned is None or tuned.winner is None else tuned.measured[tuned.winner].images_per_sec
    if tuned is not None and best is not None:
        return f"{words}: {measured_speed(best)} images/sec of {tuned.model}, measured."
    if choice.images_per_sec is None:
        return f"{words}{f' for {plan.model}' if plan.model else ''}."
    words += f": {speed_words(choice, plan.model)}."
    fewer = plan.prediction.fewer if plan.prediction is not None else None
    if fewer is None or fewer.images_per_sec <= CLEARLY_FASTER * choice.images_per_sec:
        return words
    count = fewer.num_gpus
    faster = whole(fewer.images_per_sec)
    return f"Slower than {counted(count, 'GPU')} ({faster}): --num-gpus {count}. {words}"


def _why(plan: Plan, refused: Sequence[str]) -> tuple[str, ...]:
    """Return the most important reasons, each once; warnings (GPUs in use, errors) come first."""
    reasons = dict.fromkeys((*plan.warnings, limit_words(plan.choice), *plan.choice.reasons))
    shown = [reason for reason in reasons if reason and reason not in refused]
    more = len(shown) - _REASONS
    return (*shown[:_REASONS], *([f"and {more} more (--json)"] if more > 0 else []))


def plan_summary(plan: Plan) -> tuple[str, ...]:
    """Return the number of GPUs with `--num-gpus auto`, and the prediction, if any, in two sentences."""
    choice, prediction = plan.choice, plan.prediction
    count = () if plan.how_many is None else (f"{how_many_words(plan.how_many)}.",)
    if prediction is None:
        return count
    limit = limit_words(choice)
    return (
        *count,
        f"Predicted for {_all_gpus(choice)}, {mode_words(choice)}: {speed_words(choice)}.",
        f"{limit[:1].upper()}{limit[1:]}; {_sureness(plan, prediction)}.",
    )


def _choice(plan: Plan) -> list[tuple[str, str]]:
    choice, prediction = plan.choice, plan.prediction
    rows: list[tuple[str, str]] = []
    if choice.batch_sizes:
        rows.append(("Batches", f"{as_typed(choice.batch_sizes)}, {sum(choice.batch_sizes)} together"))
    if prediction is not None:
        if gain := _gain(choice, prediction):
            rows.append(("Gain", gain))
        if plan.runners_up:
            rows.append(("Margin", _sureness(plan, prediction)))
        rows.append(("From", _basis(choice, prediction)))
        if prediction.learned is not None:
            rows.append(("Own runs", learned_words(prediction.learned)))
    return [*rows, ("Machine", plain(plan.source))]


def _gain(choice: Candidate, prediction: Prediction) -> str:
    """Return how many times as fast the choice is as one GPU and as fewer GPUs."""
    speed, parts = choice.images_per_sec or 0.0, list[str]()
    if choice.speedup is not None and _device_count(choice) > 1:
        parts.append(f"{choice.speedup:.2f} times one GPU")
    if prediction.fewer is not None and prediction.fewer.num_gpus > 1:
        times = speed / prediction.fewer.images_per_sec
        parts.append(f"{times:.2f} times {counted(prediction.fewer.num_gpus, 'GPU')}")
    return "; ".join(parts)


def _device_count(candidate: Candidate) -> int:
    return sum(host.devices for host in candidate.hosts) or len(candidate.gpus)


def _sureness(plan: Plan, prediction: Prediction) -> str:
    runner_up = next(iter(plan.runners_up), None)
    if runner_up is None:
        return "there is no other placement to compare with"
    if prediction.margin is None:
        return "the fastest measured by --autotune"
    other = mode_words(runner_up)
    if runner_up.gpus != plan.choice.gpus:
        other += f" on {_named(runner_up.gpus)}"
    known = "measured" if runner_up.evidence == "measured" else "predicted"
    if abs(prediction.margin) < _NO_SHARE:
        return f"as fast as {other} ({known})"
    # The margin is a share of the choice's speed, the text is about the other candidate.
    more = 1 / (1 - prediction.margin) - 1
    return f"{abs(more):.0%} {'faster' if more >= 0 else 'slower'} than {other} ({known})"


def _basis(choice: Candidate, prediction: Prediction) -> str:
    alone = prediction.single_gpu_images_per_sec
    speeds = list(alone.values()) if choice.hosts else [alone[gpu] for gpu in choice.gpus]
    span = " to ".join(dict.fromkeys((whole(min(speeds)), whole(max(speeds)))))
    batch = "each with its own batch" if choice.batch_sizes else f"batch {prediction.batch_size} per GPU"
    return (
        f"{span} images/sec of one GPU ({prediction.single_gpu_source}), {batch}, "
        f"constants of {prediction.program}"
    )


def learned_words(learned: Learned) -> str:
    """Return how many runs of this machine a prediction is based on, and what they changed."""
    rests = f"{counted(learned.runs, 'run')} of {counted(learned.jobs, 'job')} on several GPUs"
    if learned.jobs < MIN_JOBS:
        return f"{rests}: changes no prediction, {MIN_JOBS} jobs are needed"
    return f"{rests}: steps take {learned.step_factor:.2f} times as long as the default prediction"


def _candidates(plan: Plan) -> list[Block]:
    """Return the steps of the choice and its runners-up as bars; without a prediction, a table."""
    others = [candidate for candidate in plan.candidates if candidate != plan.choice]
    if not others:
        return []
    if plan.prediction is None:
        more = len(others) - _ALTERNATIVES
        notes = (f"and {more} more; --json has them",) if more > 0 else ()
        rows = [
            (_gpus(other.gpus), mode_words(other), "".join(other.reasons[:1]))
            for other in others[:_ALTERNATIVES]
        ]
        heads = ("GPUs", "Variables", "Because")
        return [Table.of(heads, rows, words=heads, notes=notes)]
    # Equally fast ones on the same GPUs are joined.
    alike = grouped(
        ((candidate.gpus, round(candidate.images_per_sec or 0.0), candidate.hosts), candidate)
        for candidate in (plan.choice, *plan.runners_up)
    )
    groups = list(alike.values())[: _RUNNERS_UP + 1]
    return [Drawing(lambda width: _steps(groups, width))]


def _steps(groups: Sequence[Sequence[Candidate]], width: int) -> list[Line]:
    """Return the steps of candidates with their placements as bars; the length is the time of the step."""
    candidates = [group[0] for group in groups]
    placements = tuple(" or ".join(dict.fromkeys(map(mode_words, group))) for group in groups)
    gpus = Column("GPUs", tuple(map(_short_gpus, candidates)), max_width=width // 5)
    space = width - gpus.width - _NUMBERS - _SHORTEST_BAR
    modes = Column("Variables", placements, max_width=max(space, 8))
    speeds = Column(
        "images/sec", tuple(whole(candidate.images_per_sec or 0.0) for candidate in candidates), "right"
    )
    steps = Column("ms", tuple(f"{candidate.step_ms:.1f}" for candidate in candidates), "right")
    left = [modes, speeds, steps]
    space = min(max(width - gpus.width - width_of(left) - 2, _SHORTEST_BAR), _WIDEST_BAR)
    longest = max(candidate.step_ms or 0.0 for candidate in candidates) or 1.0
    bars = []
    for candidate in candidates:
        bar, end = "", 0.0
        for part, ms in {"compute": candidate.compute_ms or 0.0, **candidate.exposed_ms}.items():
            end += ms * space / longest
            bar += _PARTS[part][0] * (round(end) - len(bar))
        bars.append(bar)
    parts = {"compute", *(part for candidate in candidates for part in candidate.exposed_ms)}
    legend = "  ".join(f"{mark} {part}" for part, (mark, _) in _PARTS.items() if part in parts)
    lines = aligned(gpus, [*left, Column("", tuple(bars))])
    return [_painted(spans) for spans in (*lines, line(legend))]


def _all_gpus(candidate: Candidate) -> str:
    if not candidate.hosts:
        return _named(candidate.gpus)
    hosts = grouped(
        (_named(host.gpus) if host.gpus else f"{host.devices} CPU devices", host.host)
        for host in candidate.hosts
    )
    return "; ".join(
        f"{gpus} of {plain(', '.join(names) if len(names) <= _HOSTS_NAMED else host_set(names))}"
        for gpus, names in hosts.items()
    )


def _short_gpus(candidate: Candidate) -> str:
    hosts = len(candidate.hosts)
    return f"{_device_count(candidate)} of {hosts} hosts" if hosts else _gpus(candidate.gpus)


def _painted(spans: Line) -> Line:
    """Return a line with coloured bars."""
    styles = dict(_PARTS.values())
    runs = re.compile("|".join([*(f"{mark}+" for mark in styles), f"[^{''.join(styles)}]+"]))
    return tuple((run, styles.get(run[0], style)) for text, style in spans for run in runs.findall(text))


def _named(gpus: Sequence[int]) -> str:
    """Return `GPU 3` or `GPUs 0,1`."""
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {_gpus(gpus)}"


def _gpus(gpus: Sequence[int]) -> str:
    """Return GPUs in the order of the towers, as --gpus accepts them."""
    in_order = list(gpus) == sorted(gpus)
    return index_ranges(gpus) if in_order and len(gpus) > _SPELLED_OUT else ",".join(map(str, gpus))
