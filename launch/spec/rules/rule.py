"""A rule of options that do not go together, and how a spec is changed to the nearest that works. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gputopo.launch.spec.run_spec import Exchange, RunSpec


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
    """Return the spec with other values, of itself or of one of its parts."""
    if part is None:
        return msgspec.structs.replace(spec, **changes)
    return msgspec.structs.replace(spec, **{part: msgspec.structs.replace(getattr(spec, part), **changes)})


def to(part: str | None = None, **changes: Any) -> Callable[[RunSpec], RunSpec]:
    """Return a function that replaces these values."""
    return lambda spec: replaced(spec, part, **changes)


def moves_gradients(exchange: Exchange) -> bool:
    """Whether anything is asked of the exchange but a place for the variables."""
    plain = Exchange(ps_spread=exchange.ps_spread, groups=exchange.groups, small_group=exchange.small_group)
    return exchange != plain


def typed(spec: RunSpec, *names: str) -> bool:
    """Whether one of these options was typed; names as in `RunSpec.asked`."""
    return any(name in spec.asked for name in names)


def untyped(*names: str) -> Callable[[RunSpec], RunSpec]:
    """Return a function that removes these options from those that were typed."""
    return lambda spec: replaced(
        spec, asked={name: value for name, value in spec.asked.items() if name not in names}
    )


def needless(names: Iterable[str], when: Callable[[RunSpec], bool], why: str, use: str) -> tuple[Rule, ...]:
    """Return a rule for each option that has no effect `when`; `why` follows its name.

    The spec has the value in any case, so the rule looks at what was typed.
    """

    def rule(name: str) -> Rule:
        return Rule(
            lambda spec: when(spec) and typed(spec, name), f"{written(name)} {why}", use, untyped(name)
        )

    return tuple(rule(name) for name in names)


def written(name: str) -> str:
    """Return an option as it is typed, from its name in `RunSpec.asked`."""
    return f"--{name.replace('_', '-')}"
