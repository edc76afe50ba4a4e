"""What is wrong with a machine, or unknown: rules, and checks that report findings under them.

To add a rule, put a `Rule`, its thresholds and a check in the module of its subject. Add the check to
`checks.CHECKS` with the facts that it needs (for a Machine at one sample), to `measured.COPY_CHECKS` (for
measured copies) or to `watched.WATCHES` (for counts over time). A fact that is None is neither a fault nor a
pass. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.findings.catalogue import rules as rules
    from gputopo.findings.checks import checks_made as checks_made
    from gputopo.findings.checks import driver_broken as driver_broken
    from gputopo.findings.checks import find as find
    from gputopo.findings.checks import find_bandwidth as find_bandwidth
    from gputopo.findings.checks import find_port_faults as find_port_faults
    from gputopo.findings.checks import find_read as find_read
    from gputopo.findings.difference import machine_difference as machine_difference
    from gputopo.findings.driver import stopped as stopped
    from gputopo.findings.fleet import inspect_fleet as inspect_fleet
    from gputopo.findings.measured.difference import bandwidth_difference as bandwidth_difference
    from gputopo.findings.measured.validity import contradiction as contradiction
    from gputopo.findings.rule import Rule as Rule
    from gputopo.findings.rule import fails as fails
    from gputopo.findings.rule import named as named
    from gputopo.findings.sources import doubtful_topology as doubtful_topology
    from gputopo.findings.tensorflow import Support as Support
    from gputopo.findings.tensorflow import install_support as install_support
    from gputopo.findings.tensorflow import support_of as support_of
    from gputopo.findings.usage import CONTEXT_MIB as CONTEXT_MIB
    from gputopo.findings.usage import use_of as use_of
    from gputopo.findings.watched import WATCHES as WATCHES
    from gputopo.findings.watched import faults_of_run as faults_of_run
    from gputopo.findings.watched import find_after_watch as find_after_watch

_MODULES = {
    "CONTEXT_MIB": "usage",
    "Rule": "rule",
    "Support": "tensorflow",
    "WATCHES": "watched",
    "bandwidth_difference": "measured.difference",
    "checks_made": "checks",
    "contradiction": "measured.validity",
    "doubtful_topology": "sources",
    "driver_broken": "checks",
    "fails": "rule",
    "faults_of_run": "watched",
    "find": "checks",
    "find_after_watch": "watched",
    "find_bandwidth": "checks",
    "find_port_faults": "checks",
    "find_read": "checks",
    "inspect_fleet": "fleet",
    "install_support": "tensorflow",
    "machine_difference": "difference",
    "named": "rule",
    "rules": "catalogue",
    "stopped": "driver",
    "support_of": "tensorflow",
    "use_of": "usage",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
