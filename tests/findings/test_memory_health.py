"""One verdict for each GPU: the worst sign gives the finding its id, the evidence has the fields of all."""

import pytest

from tests.findings.boxes import Change, every_gpu, find, gpu, sound
from tests.findings.faults import FAULTS

VERDICT_OF = {
    "new recovery action": "reset",
    "reset required": "reset",
    "reboot required": "reboot",
    "reset recommended": "reset",
    "ECC": "reset",
    "ECC before the reboot": "watch",
    "SRAM threshold": "replace",
    "channel repair pending": "repair pending",
    "TPC repair pending": "repair pending",
    "unrepairable memory": "replace",
    "no spare rows": "watch",
    "rows remapped": "fine",
    "remap pending": "reset",
    "remap failed": "replace",
    "retirement pending": "reboot",
    "retired pages": "replace",
}
# Causes with their usual consequences: the id of the one finding, and the verdict.
TOGETHER: dict[str, tuple[Change, str, str]] = {
    "the driver requests the reset that remaps": (
        gpu(1, recovery_action="reset", remapped_rows={"pending": True}),
        "gpu.reset_required",
        "reset",
    ),
    "errors until a row could not be replaced": (
        gpu(1, ecc={"uncorrected_volatile": 5}, remapped_rows={"failure": True}),
        "memory.remap_failed",
        "replace",
    ),
}


def test_the_verdict_is_in_the_evidence() -> None:
    found = {fault: find(FAULTS[fault][0](sound())) for fault in VERDICT_OF}
    verdicts = {fault: [one.evidence["verdict"] for one in findings] for fault, findings in found.items()}
    assert verdicts == {fault: [verdict] for fault, verdict in VERDICT_OF.items()}


@pytest.mark.parametrize("case", TOGETHER)
def test_one_gpu_has_one_finding(case: str) -> None:
    change, id, what = TOGETHER[case]
    (found,) = find(change(sound()))
    assert (found.id, found.evidence["verdict"], found.subject.text) == (id, what, "gpu:1")


@pytest.mark.parametrize(("rows", "severity"), [(1, "warning"), (2, "info")])
def test_errors_whose_rows_were_all_replaced_are_no_warning(rows: int, severity: str) -> None:
    change = gpu(1, ecc={"uncorrected_aggregate": 2}, remapped_rows={"uncorrectable": rows})
    (found,) = find(change(sound()))
    assert found.severity == severity


@pytest.mark.parametrize(
    ("name", "severity"),
    [("Tesla T4", "info"), ("NVIDIA A100-PCIE-40GB", "warning"), ("RTX A6000", None)],
)
def test_ecc_that_is_off_is_worth_a_warning_where_it_costs_no_memory(name: str, severity: str | None) -> None:
    change = every_gpu(name=name, ecc={"mode": False, "mode_pending": False})
    off = [one.severity for one in find(change(sound())) if one.id == "ecc.off"]
    assert off == [severity] * bool(severity)
