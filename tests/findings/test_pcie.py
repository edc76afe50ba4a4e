import pytest

from gputopo.values.machine import Machine
from tests.findings.boxes import PORT, UP, all_of, down, every_gpu, find, gpu, node, sound
from tests.findings.faults import IDLE


def reported(machine: Machine) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.subject.text, finding.severity) for finding in find(machine)]


def test_lanes_are_judged_of_an_idle_card_too() -> None:
    machine = all_of(every_gpu(**IDLE), gpu(2, pcie={"width_now": 4}))(sound())
    assert reported(machine) == [("pcie.width_degraded", "gpu:2", "warning")]


def test_lanes_that_a_board_splits_between_all_slots_are_reported_once_and_mildly() -> None:
    machine = every_gpu(pcie={"width_now": 8})(sound(2))
    assert reported(machine) == [("pcie.width_degraded", "gpus:0-1", "info")]


def test_half_the_lanes_of_one_card_are_a_warning() -> None:
    assert reported(gpu(0, pcie={"width_now": 8})(sound(2))) == [("pcie.width_degraded", "gpu:0", "warning")]
    assert reported(gpu(0, pcie={"width_now": 8})(sound(1))) == [("pcie.width_degraded", "gpu:0", "warning")]


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3060 Laptop GPU", "GeForce RTX 2080 with Max-Q Design"])
def test_a_laptop_on_half_of_its_lanes_has_what_its_maker_wired(name: str) -> None:
    laptop = every_gpu(name=name)(sound(1))
    said = [finding.id for finding in find(every_gpu(pcie={"width_now": 8})(laptop))]
    assert "pcie.width_degraded" not in said
    assert "pcie.width_degraded" in [one.id for one in find(every_gpu(pcie={"width_now": 4})(laptop))]


def test_eight_lanes_of_a_card_that_gets_no_more_in_clouds_are_reported_mildly() -> None:
    t4 = every_gpu(name="Tesla T4", clocks_mhz={"memory": {"max": 5001, "now": 5001, "application": 5001}})
    eight = all_of(t4, every_gpu(pcie={"width_now": 8}))(sound(1))
    assert reported(eight) == [("pcie.width_degraded", "gpu:0", "info")]
    (usual,) = [one for one in find(eight) if one.id == "pcie.width_degraded"]
    assert "8 of 16 lanes, usual for this model" in usual.says
    assert "contacts" not in (usual.remedy or "")
    four = all_of(t4, every_gpu(pcie={"width_now": 4}))(sound(1))
    assert reported(four) == [("pcie.width_degraded", "gpu:0", "warning")]
    (few,) = [one for one in find(four) if one.id == "pcie.width_degraded"]
    assert "usual" not in few.says
    assert "contacts" in (few.remedy or "")


@pytest.mark.parametrize("name", ["NVIDIA A10G", "Tesla T4"])
def test_eight_lanes_are_usual_for_models_of_clouds(name: str) -> None:
    found = find(every_gpu(name=name, pcie={"width_now": 8})(sound(1)))
    (width,) = [one for one in found if one.id == "pcie.width_degraded"]
    assert (width.severity, "usual for this model" in width.says) == ("info", True)
    assert (width.remedy or "").startswith("None needed")
    slot = every_gpu(name=name, pcie={"width_now": 8, "width_max": 8})(sound(1))
    (narrow,) = [one for one in find(slot) if one.id == "pcie.slot_narrow"]
    assert narrow.says.endswith("x16 card in an x8 slot, usual for this model in servers and clouds")
    assert narrow.remedy == width.remedy


@pytest.mark.parametrize("idle", [IDLE, {"pstate": "P8"}, {"throttle": {"mask": 1}}, {"pstate": None}])
def test_the_generation_of_an_idle_link_is_unknown(idle: dict[str, object]) -> None:
    machine = gpu(1, **(idle | {"pcie": {"gen_now": 1}}))(sound())
    assert reported(machine) == []


def test_a_slow_link_under_load_is_a_fault() -> None:
    machine = gpu(1, pstate="P2", pcie={"gen_now": 2})(sound())
    assert reported(machine) == [("pcie.generation_degraded", "gpu:1", "warning")]


def test_a_host_generation_below_what_runs_is_not_believed() -> None:
    # A GB300 reports 4 for the host while the link runs at 6.
    pcie = {"gen_now": 6, "gen_max": 6, "gen_max_device": 6, "gen_max_host": 4}
    assert reported(every_gpu(pcie=pcie)(sound())) == []


@pytest.mark.parametrize(("lanes", "severity"), [(1, "warning"), (4, "warning"), (8, "info")])
def test_a_narrow_slot_is_named_as_such_and_not_as_a_fault_of_the_card(lanes: int, severity: str) -> None:
    pcie = {"width_now": lanes, "width_max": lanes, "limiting_hop": down(1)}
    machine = all_of(gpu(1, pcie=pcie), node(down(1), max_width=lanes))(sound())
    assert reported(machine) == [("pcie.slot_narrow", "gpu:1", severity)]
    (found,) = find(machine)
    assert found.evidence["card_width"] == 16
    assert found.evidence["copy_gb_per_s_at_this_width"] == pytest.approx(0.77 * lanes, rel=0.02)


CARD, MODULE = "Tesla V100-PCIE-16GB", "Tesla V100-SXM2-16GB"


@pytest.mark.parametrize(
    ("name", "count", "severity"),
    [
        (CARD, 80, None),
        (CARD, 81, "info"),
        (CARD, 11_519, "info"),
        (CARD, 11_520, "warning"),
        (MODULE, 1_152, None),
        (MODULE, 1_153, "info"),
    ],
)
def test_replays_count_from_a_limit_on(name: str, count: int, severity: str | None) -> None:
    machine = gpu(1, name=name, pcie={"replay_counter": count})(sound(name=name))
    found = [one for one in find(machine) if one.id == "pcie.replays"]
    assert [one.severity for one in found] == ([severity] if severity else [])
    assert all(("riser" in (one.remedy or "")) is (name == CARD) for one in found)


@pytest.mark.parametrize(
    ("counts", "severity"),
    [
        ({"correctable": 480}, None),
        ({"correctable": 481}, "warning"),
        ({"nonfatal": 1}, "warning"),
        ({"fatal": 1}, "error"),
    ],
)
def test_errors_that_the_kernel_counted_are_reported_by_their_kind(
    counts: dict[str, int], severity: str | None
) -> None:
    by_card = find(gpu(1, pcie={"aer": counts})(sound()))
    by_slot = find(node(down(1), aer=counts)(sound()))
    for found in (by_card, by_slot):
        assert [finding.severity for finding in found] == ([severity] if severity else [])
        assert all(finding.subject.text == "gpu:1" for finding in found)


def test_four_gpus_on_an_uplink_of_eight_lanes_are_too_many() -> None:
    machine = all_of(node(PORT, max_width=8), node(UP, max_width=8))(sound())
    assert "pcie.shared_uplink" in {finding.id for finding in find(machine)}
