"""A learning-rate schedule in one word: `piecewise:30=0.1,60=0.01`, `exponential:1000:0.5`, `cosine:5000`."""

import math
import re

from gputopo.cli.choices import nearest, shown
from gputopo.cli.run.offers import Offer
from gputopo.launch.spec.run_spec import Schedule
from gputopo.values.errors import UsageError

OF_THE_MODEL = "model"  # resolved where the model and its batch are known
GRAMMAR = "piecewise:STEP=FACTOR,... or exponential:STEPS:DECAY or cosine:STEPS, or model for its authors'"
_EXAMPLES = {
    "constant": "constant",
    "cosine": "cosine:5000",
    "exponential": "exponential:1000:0.5",
    "piecewise": "piecewise:3000=0.1,6000=0.01",
    OF_THE_MODEL: OF_THE_MODEL,
}
_STEPS = r"[1-9][0-9]{0,8}"


def parse_schedule(offer: Offer, text: str | None, warmup_steps: int) -> Schedule:
    """Read a schedule; None is constant. A piecewise one begins with the factor 1. Raises UsageError."""
    name, _, rest = ("constant" if text is None else text).partition(":")
    if name not in _EXAMPLES:
        near = nearest(name, _EXAMPLES)
        hint = f"did you mean {_EXAMPLES[near[0]]}?" if near else f"give {GRAMMAR}"
        raise UsageError(f"{offer.option} cannot be {shown(text or '')}", hint)
    found = _READ.get(name, _constant)(rest, warmup_steps)
    if found is None:
        raise UsageError(f"{offer.option} cannot be {shown(text or '')}", f"write it so: {_EXAMPLES[name]}")
    return found


def _constant(rest: str, warmup_steps: int) -> Schedule | None:
    return None if rest else Schedule(warmup_steps=warmup_steps)


def _cosine(rest: str, warmup_steps: int) -> Schedule | None:
    if not re.fullmatch(_STEPS, rest):
        return None
    return Schedule(kind="cosine", decay_steps=int(rest), warmup_steps=warmup_steps)


def _exponential(rest: str, warmup_steps: int) -> Schedule | None:
    steps, _, decay = rest.partition(":")
    share = _factor(decay) if decay else Schedule().decay
    if not re.fullmatch(_STEPS, steps) or share is None:
        return None
    return Schedule(kind="exponential", decay_steps=int(steps), decay=share, warmup_steps=warmup_steps)


def _piecewise(rest: str, warmup_steps: int) -> Schedule | None:
    boundaries: list[int] = []
    factors = [1.0]
    for part in rest.split(","):
        step, _, factor = part.partition("=")
        share = _factor(factor)
        if not re.fullmatch(_STEPS, step) or share is None or (boundaries and int(step) <= boundaries[-1]):
            return None
        boundaries.append(int(step))
        factors.append(share)
    return Schedule(
        kind="piecewise", boundaries=tuple(boundaries), factors=tuple(factors), warmup_steps=warmup_steps
    )


def _factor(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


_READ = {"cosine": _cosine, "exponential": _exponential, "piecewise": _piecewise}
