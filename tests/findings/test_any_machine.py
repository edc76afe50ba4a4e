"""No rule fails, whatever is missing or odd in a machine."""

from hypothesis import given

from gputopo.findings import find
from gputopo.topology import with_p2p_reasons
from gputopo.values.machine import Gpu, Machine
from gputopo.values.schema import encode
from tests.findings.boxes import IDS
from tests.invented_machines import machines


@given(machines())
def test_every_rule_stands_any_machine_and_its_findings_can_be_written(machine: Machine) -> None:
    for finding in find(machine):
        assert finding.id in IDS
        assert finding.remedy
        assert encode(finding)
    with_p2p_reasons(machine)


def test_a_machine_of_which_nothing_is_known_has_nothing_wrong() -> None:
    assert find(Machine(source="a test")) == ()
    assert find(Machine(source="a test", gpus=(Gpu(index=0),))) == ()
