"""A plan as text to read: what was chosen, why, what else there was, what a launcher must set."""

from collections.abc import Iterable, Sequence

from gputopo.report.layout import (
    INDENT,
    QUIET,
    Column,
    Line,
    aligned,
    labelled,
    line,
    plain,
    section,
    width_of,
)
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.plan import Candidate, Plan

_ALTERNATIVES = 5  # the rest is in the JSON
_SPELLED_OUT = 4  # more GPUs than these are written as ranges


def plan_view(plan: Plan, width: int) -> list[Line]:
    """Return the choice with its reasons, the next best candidates, what was refused, the environment."""
    space = width - INDENT
    lines = section(f"Plan for {plan.model}" if plan.model else "Plan", labelled(_choice(plan), space))
    lines += section("Why", _listed(plan.choice.reasons, space))
    others = [candidate for candidate in plan.candidates if candidate != plan.choice]
    if others:
        lines += section("Next best", _alternatives(others, space))
    if plan.refused:
        lines += section("Refused", _listed((refusal.reason for refusal in plan.refused), space))
    lines += section("Environment", map(line, environment_lines(plan)))
    return lines[:-1]


def environment_lines(plan: Plan) -> list[str]:
    """Return `NAME=value` lines, fit for `env $(...)`, a shell's `set -a` and docker's --env-file."""
    import shlex

    return [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]


def placement_in_words(candidate: Candidate) -> str:
    """Return where the variables are placed: `parameter_server, variables on gpu:0`."""
    words: list[str] = [candidate.variable_update]
    if candidate.ps_device is not None:
        words.append(f"variables on {candidate.ps_device}")
    elif candidate.variable_update == "replicated":
        words.append("a copy on every GPU")
    if candidate.all_reduce is not None:
        words.append(f"gradients reduced by {candidate.all_reduce}")
    return ", ".join(words)


def _choice(plan: Plan) -> list[tuple[str, str]]:
    choice = plan.choice
    rows = [("GPUs", _gpus(choice.gpus)), ("Variables", placement_in_words(choice))]
    if choice.images_per_sec is not None:
        rows.append(("Images/sec", _speed(choice)))
    return [*rows, ("Machine", plain(plan.source))]


def _speed(candidate: Candidate) -> str:
    speed = f"{candidate.images_per_sec:.0f}"
    if candidate.images_per_sec_low is None or candidate.images_per_sec_high is None:
        return speed
    return f"{speed} ({candidate.images_per_sec_low:.0f} to {candidate.images_per_sec_high:.0f})"


def _alternatives(others: Sequence[Candidate], width: int) -> list[Line]:
    shown = others[:_ALTERNATIVES]
    gpus = Column("GPUs", tuple(_gpus(other.gpus) for other in shown), max_width=width // 3)
    places = Column("Variables", tuple(map(placement_in_words, shown)), max_width=width // 2)
    space = max(width - gpus.width - width_of([places]) - 2, 8)
    why = Column("Because", tuple(plain("".join(other.reasons[:1])) for other in shown), max_width=space)
    lines = aligned(gpus, [places, why])
    if len(others) > _ALTERNATIVES:
        lines.append(line(f"and {len(others) - _ALTERNATIVES} more; --json has them", QUIET))
    return lines


def _listed(texts: Iterable[str], width: int) -> list[Line]:
    return labelled((("-", plain(text)) for text in texts), width)


def _gpus(gpus: Sequence[int]) -> str:
    """Return GPUs in the order of the towers, as --gpus accepts them."""
    in_order = list(gpus) == sorted(gpus)
    return index_ranges(gpus) if in_order and len(gpus) > _SPELLED_OUT else ",".join(map(str, gpus))
