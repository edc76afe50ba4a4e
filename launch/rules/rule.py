"""A rule of options that do not go together, and how a spec is changed to the nearest that works. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gputopo.launch.spec import Exchange, RunSpec


@dataclass(frozen=True)
class Rule:
    """`when` it applies, `what` does not go together and why, what to `use`, and the `nearest` run.

    `what` and `use` are formatted with the spec as `spec`.
    """

    when: Callable[[RunSpec], bool]
    what: str
    use: str
    nearest: Callable[[RunSpec], RunSpec]


def replaced(spec: RunSpec, part: str | None = None, **changes: Any) -> RunSpec:
    """Give the spec with other values, of itself or of one of its parts."""
    if part is None:
        return msgspec.structs.replace(spec, **changes)
    return msgspec.structs.replace(spec, **{part: msgspec.structs.replace(getattr(spec, part), **changes)})


def to(part: str | None = None, **changes: Any) -> Callable[[RunSpec], RunSpec]:
    """Give a function that replaces these values."""
    return lambda spec: replaced(spec, part, **changes)


def moves_gradients(exchange: Exchange) -> bool:
    """Whether anything is asked of the exchange but a place for the variables."""
    plain = Exchange(ps_spread=exchange.ps_spread, groups=exchange.groups, small_group=exchange.small_group)
    return exchange != plain
