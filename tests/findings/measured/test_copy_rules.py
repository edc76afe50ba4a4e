"""Measured copies with exactly one fault: that is found, and nothing else."""

import pytest

from gputopo.findings import find_bandwidth
from tests.findings.boxes import find, gpu
from tests.findings.measured.machines import MEASURED, conditions, measured


def test_each_fault_gives_its_finding_and_no_other() -> None:
    found = {fault: find_bandwidth(change(measured())) for fault, (change, _) in MEASURED.items()}
    ids = {fault: {finding.id for finding in findings} for fault, findings in found.items()}
    assert ids == {fault: expected for fault, (_, expected) in MEASURED.items()}
    assert all(one.says and one.remedy and "\n" not in one.says for of in found.values() for one in of)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_sound_copies_have_no_findings(count: int) -> None:
    assert find_bandwidth(measured(count)) == ()


def test_what_a_reading_and_the_copies_both_show_is_reported_once() -> None:
    machine = gpu(1, pcie={"width_now": 8})(conditions(1, pcie_width=8)(measured()))
    reported = [finding for finding in find(machine) if finding.id == "pcie.width_degraded"]
    assert len(reported) == 1
    assert "during copies" in reported[0].says
