"""Every rule that a finding can be of."""

from itertools import chain

from gputopo.findings import fleet, network, rising
from gputopo.findings.checks import CHECKS
from gputopo.findings.measured import COPY_CHECKS
from gputopo.findings.rule import Rule
from gputopo.findings.watched import WATCHES


def catalogue() -> tuple[Rule, ...]:
    """Every rule, in the order of the ids."""
    checks = ((one.rules for one in CHECKS), (one.rules for one in COPY_CHECKS))
    of_time = (rising.rising.rules, network.rising.rules, *(one.check.rules for one in WATCHES))
    rules = {rule.id: rule for of in chain(*checks, of_time, [fleet.RULES]) for rule in of}
    return tuple(rules[id] for id in sorted(rules))
