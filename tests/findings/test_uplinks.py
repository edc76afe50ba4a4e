import pytest
from msgspec.structs import replace

from gputopo.findings import find
from gputopo.values.machine import Machine
from tests.findings.boxes import PORT, UP, all_of, node, sound
from tests.findings.faults import chipset_slot


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_few_gpus_on_one_switch_are_usual(count: int) -> None:
    assert find(sound(count)) == ()


def test_eight_gpus_on_one_uplink_are_told_with_their_bridge() -> None:
    (found,) = find(sound(8))
    assert (found.id, found.severity, found.subject.text) == ("pcie.shared_uplink", "info", "machine")
    assert found.evidence["uplinks"] == {
        PORT: {"gpus": list(range(8)), "times_oversubscribed": 8.0},
    }


def test_four_gpus_on_an_uplink_of_eight_lanes_are_too_many() -> None:
    machine = all_of(node(PORT, max_width=8), node(UP, max_width=8))(sound())
    assert "pcie.shared_uplink" in {finding.id for finding in find(machine)}


def test_gpus_with_one_lane_each_leave_the_uplink_free() -> None:
    machine = sound(8)
    narrow = tuple(replace(one, max_width=1) if one.kind == "gpu" else one for one in machine.pci)
    assert "pcie.shared_uplink" not in {finding.id for finding in find(replace(machine, pci=narrow))}


def other_vendor(machine: Machine) -> Machine:
    return replace(machine, pci=tuple(replace(one, vendor_id="1022") for one in machine.pci))


def test_a_chipset_slot_is_known_by_intels_port_numbers_only() -> None:
    (found,) = find(chipset_slot(sound()))
    assert (found.id, found.subject.text, found.severity) == ("pcie.chipset_slot", "gpu:0", "warning")
    assert find(other_vendor(chipset_slot(sound()))) == ()
