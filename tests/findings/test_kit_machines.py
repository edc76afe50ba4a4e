"""The machines of the test kit, read as the real ones are: what is reported of them is true, and no more."""

import pytest

from gputopo.findings import find
from tests.kit.machines import machine_of

TRUE = {
    "7gforce": {"pcie.slot_narrow", "clocks.core_differs", "machine.mixed_models"},
    "dual_socket_4_4": set(),
    "dgx1": set(),
    "desktop": {"pcie.slot_slower"},
    "four": {"card.no_expectation"},
    "lost_gpu": {"card.no_expectation", "gpu.lost"},
    "lost_handle": {"card.no_expectation", "gpu.lost"},
}


@pytest.mark.parametrize("name", TRUE)
def test_a_scenario_of_the_kit_has_only_the_findings_that_are_true_of_it(name: str) -> None:
    machine = machine_of(name)
    assert {finding.id for finding in find(machine)} == TRUE[name]
