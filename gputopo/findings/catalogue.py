"""The rules of all findings, of readings, of measured copies, of samples over time and of fleets."""

from gputopo.findings import fleet, network, rising
from gputopo.findings.checks import CHECKS
from gputopo.findings.measured import COPY_CHECKS
from gputopo.findings.rule import Rule
from gputopo.findings.watched import WATCHES


def rules() -> tuple[Rule, ...]:
    """Return every rule that a finding can have, by id."""
    watches = (watch.check.rules for watch in WATCHES)
    checks = (check.rules for check in (*CHECKS, *COPY_CHECKS))
    all_rules = (*checks, *watches, rising.rising.rules, network.rising.rules, fleet.RULES)
    by_id = {rule.id: rule for of_check in all_rules for rule in of_check}
    return tuple(by_id[id] for id in sorted(by_id))
