from typing import get_args

import msgspec
import pytest

from gputopo.findings import driver_broken, fails, rules
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import Contradiction, Driver, DriverStatus, Gpu, Machine, PciNode, Unread
from gputopo.values.schema import decode, encode, to_builtins
from tests.findings import tensorflow_installs
from tests.findings.boxes import IDS, at_times, find
from tests.findings.faults import FAULTS
from tests.findings.measured import networks
from tests.findings.measured.machines import MEASURED, OTHERS
from tests.findings.network_cards import with_every_fault
from tests.findings.watched import all_watched
from tests.matrices import SEVEN, changed, machine_of

BROKEN = (
    *("not_loaded", "library_missing", "version_mismatch", "too_old", "not_ready"),
    *("no_permission", "other_driver", "failed"),
    *("hung", "crashed"),
)


def with_driver(status: DriverStatus, **fields: str | None) -> Machine:
    return Machine(source="live", driver=msgspec.convert({"status": status, **fields}, Driver))


def only(machine: Machine) -> Finding:
    (finding,) = find(machine)
    return finding


def test_a_sound_machine_has_no_findings() -> None:
    machine = msgspec.structs.replace(machine_of(SEVEN), driver=Driver(status="ok", version="580.65.06"))
    assert find(machine) == ()
    assert find(machine_of(SEVEN)) == ()  # a capture without driver status


@pytest.mark.parametrize("status", get_args(DriverStatus))
def test_every_state_of_the_driver_is_either_fine_or_one_finding(status: DriverStatus) -> None:
    machine = with_driver(status, detail="driver message")
    broken = driver_broken(machine)
    assert (broken is not None) is (status in BROKEN)
    if broken is None:
        assert not fails(find(machine), "warning")
    else:
        assert find(machine) == (broken,)
        assert (broken.id, broken.severity, broken.subject.text) == (f"driver.{status}", "error", "driver")
        assert broken.evidence["detail"] == "driver message"
        assert broken.remedy


def test_the_driver_that_holds_the_device_is_named() -> None:
    node = PciNode(address="0000:05:00.0", root="pci0000:00", kind="gpu", vendor_id="10de", driver="nouveau")
    found = only(msgspec.structs.replace(with_driver("other_driver"), pci=(node,)))
    assert "nouveau" in found.says
    assert found.evidence["pci_devices"] == {"0000:05:00.0": "nouveau"}


@pytest.mark.parametrize("other", ["nvidia", None])
@pytest.mark.parametrize(
    ("holder", "severity", "remedy"),
    [("vfio-pci", "info", "virtual machine"), ("nouveau", "warning", "blacklist")],
)
def test_a_gpu_bound_to_another_driver_beside_others_is_reported(
    holder: str, severity: str, remedy: str, other: str | None
) -> None:
    nodes = tuple(
        PciNode(address=f"0000:0{n}:00.0", root="pci0000:00", kind="gpu", driver=driver, name="a GPU")
        for n, driver in ((5, holder), (6, other), (7, other))
    )
    found = only(msgspec.structs.replace(machine_of("X PIX\nPIX X"), pci=nodes))
    assert (found.id, found.severity, found.subject.text) == ("driver.other_driver", severity, "machine")
    assert f"kernel driver {holder} is bound to 0000:05:00.0 (a GPU)" in found.says
    assert found.evidence["pci_devices"] == {
        "0000:05:00.0": holder,
        "0000:06:00.0": other,
        "0000:07:00.0": other,
    }
    assert found.remedy
    assert remedy in found.remedy


def test_a_lost_gpu_is_an_error_and_does_not_make_its_links_unknown() -> None:
    # The links of GPU 3 are gone with it; those of the others are all known.
    machine = changed(machine_of(SEVEN), 3, lost=True, pci_address="0000:08:00.0")
    machine = msgspec.structs.replace(
        machine,
        links=tuple(link for link in machine.links if 3 not in (link.a, link.b)),
        missing={
            "gpus[3].name": "GPU_IS_LOST",
            "gpus[30].name": "another",
            "gpus[0].pstate": "NOT_SUPPORTED",
        },
    )
    found = only(machine)
    assert (found.id, found.severity, found.subject.text) == ("gpu.lost", "error", "gpu:3")
    assert "0000:08:00.0" in found.says
    assert found.evidence["missing"] == {"gpus[3].name": "GPU_IS_LOST"}
    assert driver_broken(machine) is None


def test_lines_that_were_not_understood_are_counted_by_capture() -> None:
    lines = tuple(Unread(source="a.txt", line=number, text=f"line {number}") for number in range(1, 8))
    machine = Machine(source="a test", unread=(*lines, Unread(source="b.txt", line=3, text="?")))
    first, second = find(machine)
    assert {first.id, second.id} == {"capture.unread"}
    assert "7 lines not understood in a.txt: line 1, 2, 3, 4, 5, ..." in first.says
    assert "1 line not understood in b.txt: line 3" in second.says
    assert len(first.evidence["lines"]) == 7


def everything_wrong() -> Machine:
    return Machine(
        source="a test",
        driver=Driver(status="failed", detail="unknown error"),
        gpus=(Gpu(index=0), Gpu(index=1), Gpu(index=2, lost=True)),
        contradictions=(Contradiction(fact="links[0-1].hop", said={"nvml": "PIX", "sysfs": "PHB"}),),
        unread=(Unread(source="a.txt", line=1, text="?"),),
    )


def test_errors_come_before_warnings_and_warnings_before_the_rest() -> None:
    assert [finding.severity for finding in find(everything_wrong())] == [
        "error",
        "error",
        "warning",
        "info",
        "info",
    ]


def test_every_id_is_in_the_table_and_states_something() -> None:
    machines = [everything_wrong(), *(with_driver(status) for status in get_args(DriverStatus))]
    machines += [*OTHERS, *networks.with_each_fault(), *tensorflow_installs.with_each_fault()]
    machines.append(at_times({"pcie.aer": {"fatal": 0}}, {"pcie.aer": {"fatal": 1}}))
    found = [finding for machine in machines for finding in find(machine)]
    found += [*all_watched(), *with_every_fault()]
    tables = (ids for table in (FAULTS, MEASURED) for _, ids in table.values())  # each is found in its test
    of_fleets = {id for id in IDS if id.startswith("fleet.")}  # see test_fleet
    assert {finding.id for finding in found}.union(*tables) == IDS - of_fleets
    assert all(finding.says and finding.remedy and "\n" not in finding.says for finding in found)


def test_every_rule_is_declared_once_and_completely() -> None:
    assert [rule.id for rule in rules()] == sorted({rule.id for rule in rules()})
    for rule in rules():
        cases = rule.cases
        texts = [rule.title, rule.remedy, *(text for case in cases for text in (case.says, case.remedy))]
        assert all((rule.title, rule.remedy, rule.severities)), rule.id
        assert not any("  " in text for text in texts), rule.id
        assert all(case.severity in rule.severities for case in cases), rule.id
        assert all(one.name and one.unit and len(one.origin) > 3 for one in rule.thresholds), rule.id


def test_fail_on_counts_from_its_severity_upwards() -> None:
    warning = find(msgspec.structs.replace(everything_wrong(), driver=Driver(), gpus=()))
    assert {finding.severity for finding in warning} == {"warning", "info"}
    assert fails(warning, "warning")
    assert not fails(warning, "error")
    assert fails(find(everything_wrong()), "error")
    assert not fails((), "info")


def test_an_inspection_reads_back_from_its_json() -> None:
    machine = everything_wrong()
    inspection = Inspection(machine=machine, findings=find(machine))
    assert decode(encode(inspection), Inspection, origin="a test") == inspection
    built = to_builtins(inspection)
    assert built["schema"] == "gputopo.inspect/1"
    assert built["machine"]["schema"] == "gputopo.machine/1"
