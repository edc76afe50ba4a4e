"""Which options of a run go together: a refusal has the reason and the nearest that works. Pure.

The rules are tables by theme, to which a new one is added as a line; the first that applies is reported.
"""

from dataclasses import dataclass

from gputopo.launch.spec.rules.data import DATA_RULES, NUMBER_RULES, SCHEDULE_RULES
from gputopo.launch.spec.rules.exchange import EXCHANGE_RULES, require_exchange
from gputopo.launch.spec.rules.hosts import HOSTS_RULES
from gputopo.launch.spec.rules.rule import Rule, replaced
from gputopo.launch.spec.rules.task import KEPT_RULES, TASK_RULES
from gputopo.launch.spec.rules.trainer import TRAINER_RULES, require_strategy
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import UsageError
from gputopo.values.run import all_reduce

RULES: tuple[Rule, ...] = (
    *HOSTS_RULES,
    *TRAINER_RULES,
    *TASK_RULES,
    *EXCHANGE_RULES,
    *NUMBER_RULES,
    *SCHEDULE_RULES,
    *DATA_RULES,
    *KEPT_RULES,
)


@dataclass(frozen=True)
class Clash:
    """Options that do not go together. `nearest`: the run that comes closest and does not clash here."""

    what: str
    use: str
    nearest: RunSpec


def clash(spec: RunSpec) -> Clash | None:
    """Return the first clash of a spec; None if all its options go together."""
    for rule in RULES:
        if rule.when(spec):
            what, use = rule.what.format(spec=spec), rule.use.format(spec=spec)
            return Clash(what, use, rule.nearest(spec))
    return _reduction_clash(spec)


def check(spec: RunSpec) -> None:
    """Raise UsageError for options that do not go together."""
    found = clash(spec)
    if found is not None:
        raise UsageError(found.what, found.use)
    # What the trainers themselves refuse, should the tables be incomplete.
    if spec.strategy is not None:
        require_strategy(spec)
    elif spec.task == "train" and spec.method is None:
        require_exchange(spec)


def _reduction_clash(spec: RunSpec) -> Clash | None:
    if spec.all_reduce is None:
        return None
    asked = all_reduce.parse(spec.all_reduce)
    why_not = asked.why_not(spec.backend, len(spec.devices))
    if why_not is None:
        return None
    reason, nearest = why_not
    return Clash(
        f"--all-reduce {asked.written} cannot be used: {reason}",
        f"use --all-reduce {nearest}",
        replaced(spec, all_reduce=nearest),
    )
