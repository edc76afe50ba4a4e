"""Every rule that a finding can be of."""

from gputopo.findings import CHECKS, Rule, fleet, network, rising
from gputopo.findings.measured import COPY_CHECKS
from gputopo.findings.watched import WATCHES


def catalogue() -> tuple[Rule, ...]:
    """Every rule, in the order of the ids."""
    checks = [*CHECKS, rising.rising, network.rising, *COPY_CHECKS, *(one.check for one in WATCHES)]
    rules = {rule.id: rule for check in checks for rule in check.rules}
    rules |= {rule.id: rule for rule in fleet.RULES}
    return tuple(rules[id] for id in sorted(rules))
