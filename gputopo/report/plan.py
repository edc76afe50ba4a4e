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
    others = [candidate for candidate in plan.candidates if candidate != plan.choice]
    candidates: list[Block] = []
    if others and plan.prediction is not None:
        steps = _unlike((plan.choice, *plan.runners_up))[: _RUNNERS_UP + 1]
        candidates = [Drawing(lambda width: _steps(steps, width))]
    elif others:
        candidates = [_alternatives(others)]
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
            ("Candidates", candidates),
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
    choice = plan.choice
    reasons = [one for one in (*plan.warnings, limit_words(choice), *choice.reasons) if one not in refused]
    reasons = list(dict.fromkeys(filter(None, reasons)))
    more = len(reasons) - _REASONS
    if more <= 0:
        return tuple(reasons)
    return (*reasons[:_REASONS], f"and {more} more (--json)")


def _unlike(candidates: Sequence[Candidate]) -> list[tuple[Candidate, str]]:
    """Return candidates with their placements in words. Equally fast ones on the same GPUs are joined."""
    alike = grouped(((one.gpus, round(one.images_per_sec or 0.0), one.hosts), one) for one in candidates)
    return [(some[0], " or ".join(dict.fromkeys(map(mode_words, some)))) for some in alike.values()]


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
    if choice.speedup is not None and _counted(choice) > 1:
        parts.append(f"{choice.speedup:.2f} times one GPU")
    if prediction.fewer is not None and prediction.fewer.num_gpus > 1:
        times = speed / prediction.fewer.images_per_sec
        parts.append(f"{times:.2f} times {counted(prediction.fewer.num_gpus, 'GPU')}")
    return "; ".join(parts)


def _names(hosts: Sequence[str]) -> str:
    return plain(", ".join(hosts) if len(hosts) <= _HOSTS_NAMED else host_set(hosts))


def _by_gpus(candidate: Candidate) -> dict[str, list[str]]:
    """Return the names of the hosts, by their GPUs in words."""
    return grouped(
        (_named(one.gpus) if one.gpus else f"{one.devices} CPU devices", one.host) for one in candidate.hosts
    )


def _counted(candidate: Candidate) -> int:
    return sum(one.devices for one in candidate.hosts) or len(candidate.gpus)


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
    more = (
        1 / (1 - prediction.margin) - 1
    )  # the margin is a share of the choice's speed, the text is about the other candidate
    return f"{abs(more):.0%} {'faster' if more >= 0 else 'slower'} than {other} ({known})"


def _basis(choice: Candidate, prediction: Prediction) -> str:
    alone = prediction.single_gpu_images_per_sec
    speeds = list(alone.values()) if choice.hosts else [alone[gpu] for gpu in choice.gpus]
    one = " to ".join(dict.fromkeys((whole(min(speeds)), whole(max(speeds)))))
    equal = not choice.batch_sizes
    batch = f"batch {prediction.batch_size} per GPU" if equal else "each with its own batch"
    return (
        f"{one} images/sec of one GPU ({prediction.single_gpu_source}), {batch}, "
        f"constants of {prediction.program}"
    )


def learned_words(learned: Learned) -> str:
    """Return how many runs of this machine a prediction is based on, and what they changed."""
    rests = f"{counted(learned.runs, 'run')} of {counted(learned.jobs, 'job')} on several GPUs"
    if learned.jobs < MIN_JOBS:
        return f"{rests}: changes no prediction, {MIN_JOBS} jobs are needed"
    return f"{rests}: steps take {learned.step_factor:.2f} times as long as the default prediction"


def _steps(shown: Sequence[tuple[Candidate, str]], width: int) -> list[Line]:
    """Return the steps of candidates with their placements as bars; the length is the time of the step."""
    candidates = [one for one, _ in shown]
    gpus = Column("GPUs", tuple(map(_short_gpus, candidates)), max_width=width // 5)
    space = width - gpus.width - _NUMBERS - _SHORTEST_BAR
    modes = Column("Variables", tuple(words for _, words in shown), max_width=max(space, 8))
    speeds = Column("images/sec", tuple(whole(one.images_per_sec or 0.0) for one in candidates), "right")
    steps = Column("ms", tuple(f"{one.step_ms:.1f}" for one in candidates), "right")
    left = [modes, speeds, steps]
    space = min(max(width - gpus.width - width_of(left) - 2, _SHORTEST_BAR), _WIDEST_BAR)
    longest = max(one.step_ms or 0.0 for one in candidates) or 1.0
    bars = Column("", tuple(_bar(one, space / longest) for one in candidates))
    parts = {"compute", *(part for one in candidates for part in one.exposed_ms)}
    legend = "  ".join(f"{mark} {part}" for part, (mark, _) in _PARTS.items() if part in parts)
    return [_painted(one) for one in (*aligned(gpus, [*left, bars]), line(legend))]


def _all_gpus(candidate: Candidate) -> str:
    if not candidate.hosts:
        return _named(candidate.gpus)
    return "; ".join(f"{words} of {_names(of)}" for words, of in _by_gpus(candidate).items())


def _short_gpus(candidate: Candidate) -> str:
    hosts = len(candidate.hosts)
    return f"{_counted(candidate)} of {hosts} hosts" if hosts else _gpus(candidate.gpus)


def _bar(candidate: Candidate, per_ms: float) -> str:
    bar, end = "", 0.0
    for part, ms in {"compute": candidate.compute_ms or 0.0, **candidate.exposed_ms}.items():
        end += ms * per_ms
        bar += _PARTS[part][0] * (round(end) - len(bar))
    return bar


def _painted(spans: Line) -> Line:
    """Return a line with coloured bars."""
    styles = dict(_PARTS.values())
    runs = re.compile("|".join([*(f"{mark}+" for mark in styles), f"[^{''.join(styles)}]+"]))
    return tuple((run, styles.get(run[0], style)) for text, style in spans for run in runs.findall(text))


def _alternatives(others: Sequence[Candidate]) -> Table:
    shown = others[:_ALTERNATIVES]
    rows = [(_gpus(one.gpus), mode_words(one), "".join(one.reasons[:1])) for one in shown]
    more = len(others) - len(shown)
    notes = (f"and {more} more; --json has them",) if more else ()
    return Table.of(("GPUs", "Variables", "Because"), rows, notes=notes)


def _named(gpus: Sequence[int]) -> str:
    """Return `GPU 3` or `GPUs 0,1`."""
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {_gpus(gpus)}"


def _gpus(gpus: Sequence[int]) -> str:
    """Return GPUs in the order of the towers, as --gpus accepts them."""
    in_order = list(gpus) == sorted(gpus)
    return index_ranges(gpus) if in_order and len(gpus) > _SPELLED_OUT else ",".join(map(str, gpus))
