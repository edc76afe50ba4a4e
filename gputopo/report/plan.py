"""A plan as text to read: what was chosen, why, what else there was, what a launcher must set."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gputopo.plan import Candidate, Plan, Refusal
from gputopo.report.layout import QUIET, Side, columns, labelled, plain, section

_ALTERNATIVES = 5  # the rest is in the JSON


def plan_view(plan: Plan) -> Group:
    """Give the choice with its reasons, the next best candidates, what was refused, the environment."""
    title = f"Plan for {plan.model}" if plan.model else "Plan"
    parts: list[RenderableType] = [section(title, _choice(plan))]
    parts.append(section("Why", _lines(plan.choice.reasons)))
    others = [candidate for candidate in plan.candidates if candidate != plan.choice]
    if others:
        parts.append(section("Next best", *_alternatives(others)))
    if plan.refused:
        parts.append(section("Refused", _refused(plan.refused)))
    parts.append(section("Environment", *(Text(line, overflow="fold") for line in environment_lines(plan))))
    return Group(*parts)


def environment_lines(plan: Plan) -> list[str]:
    """Give `NAME=value` lines, fit for `env $(...)`, a shell's `set -a` and docker's --env-file."""
    import shlex

    return [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]


def placement_in_words(candidate: Candidate) -> str:
    """Give where the variables live: `parameter_server, variables on gpu:0`."""
    words: list[str] = [candidate.variable_update]
    if candidate.ps_device is not None:
        words.append(f"variables on {candidate.ps_device}")
    elif candidate.variable_update == "replicated":
        words.append("a copy on every GPU")
    if candidate.all_reduce is not None:
        words.append(f"gradients reduced by {candidate.all_reduce}")
    return ", ".join(words)


def _choice(plan: Plan) -> RenderableType:
    choice = plan.choice
    rows = [("GPUs", _gpus(choice.gpus)), ("Variables", placement_in_words(choice))]
    if choice.images_per_sec is not None:
        rows.append(("Images/sec", _speed(choice)))
    rows.append(("Machine", plain(plan.source)))
    return labelled(rows)


def _speed(candidate: Candidate) -> str:
    speed = f"{candidate.images_per_sec:.0f}"
    if candidate.images_per_sec_low is None or candidate.images_per_sec_high is None:
        return speed
    return f"{speed} ({candidate.images_per_sec_low:.0f} to {candidate.images_per_sec_high:.0f})"


def _alternatives(others: Sequence[Candidate]) -> list[RenderableType]:
    heads: list[tuple[str, Side]] = [("GPUs", "left"), ("Variables", "left"), ("Because", "left")]
    rows = [
        [
            Text(_gpus(other.gpus)),
            Text(placement_in_words(other)),
            Text("; ".join(map(plain, other.reasons[:1]))),
        ]
        for other in others[:_ALTERNATIVES]
    ]
    table: list[RenderableType] = [columns(heads, rows, folds=2)]
    if len(others) > _ALTERNATIVES:
        table.append(Text(f"and {len(others) - _ALTERNATIVES} more; --json has them", style=QUIET))
    return table


def _refused(refused: Iterable[Refusal]) -> RenderableType:
    return _lines(refusal.reason for refusal in refused)


def _lines(texts: Iterable[str]) -> RenderableType:
    return labelled(("-", plain(text)) for text in texts)


def _gpus(gpus: Iterable[int]) -> str:
    return ",".join(map(str, gpus))
