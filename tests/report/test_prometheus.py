import re

import pytest

from gputopo.report import exposition
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Driver,
    Fabric,
    Gpu,
    Hop,
    Host,
    Link,
    Machine,
    MemoryMib,
    NvLink,
    Pcie,
    PowerW,
    TemperatureC,
    UtilizationPercent,
)
from gputopo.values.subject import Subject
from tests.kit.machines import machine_of
from tests.kit.scenarios import SCENARIOS
from tests.report.exposition_grammar import Family, read

# prometheus.io/docs/practices/naming: base units, and never a multiple of one.
NO_BASE_UNIT = ("mhz", "mib", "gib", "percent", "milliwatts", "kilobytes", "megabytes", "ns", "ms")


def families(machine: Machine, *findings: Finding) -> dict[str, Family]:
    return read(exposition(Inspection(machine=machine, findings=findings)))


def value(found: dict[str, Family], metric: str, /, **labels: str) -> float:
    """Return the value of the one series with these labels among its own."""
    fitting = [one for one in found[metric].samples if labels.items() <= one.labels.items()]
    assert len(fitting) == 1
    return fitting[0].value


def whole(**facts: object) -> Machine:
    return Machine(source="live", gpus=(Gpu(index=0, name="card", pci_address="0000:05:00.0", **facts),))  # type: ignore[arg-type]


def test_numbers_are_in_base_units() -> None:
    found = families(
        whole(
            clocks_mhz=ClocksMhz(memory=ClockMhz(now=4004, max=4005)),
            power_w=PowerW(draw=61.5, limit=151.0, max=200.0),
            temperature_c=TemperatureC(gpu=31, slowdown=95),
            memory_mib=MemoryMib(total=8114),
            utilization_percent=UtilizationPercent(gpu=7),
            violation_ns={"power": 2_500_000_000},
            nvlinks=(NvLink(link=3, gb_per_s=25.0, active=True, errors={"replay": 2}),),
            pcie=Pcie(replay_counter=4),
            pstate="P2",
        )
    )
    assert value(found, "gputopo_gpu_clock_hertz", gpu="0", domain="memory") == 4.004e9
    assert value(found, "gputopo_gpu_clock_max_hertz", domain="memory") == 4.005e9
    assert value(found, "gputopo_gpu_power_watts", name="card") == 61.5
    assert value(found, "gputopo_gpu_power_limit_watts") == 151
    assert value(found, "gputopo_gpu_power_max_limit_watts") == 200
    assert value(found, "gputopo_gpu_temperature_celsius", sensor="gpu") == 31
    assert value(found, "gputopo_gpu_memory_size_bytes") == 8114 * 2**20
    assert value(found, "gputopo_gpu_utilization_ratio") == 0.07
    assert value(found, "gputopo_gpu_throttled_seconds_total", reason="power") == 2.5
    assert value(found, "gputopo_gpu_nvlink_speed_bytes_per_second", link="3") == 25e9
    assert value(found, "gputopo_gpu_nvlink_errors_total", link="3", error="replay") == 2
    assert value(found, "gputopo_gpu_pcie_replays_total", pci_address="0000:05:00.0") == 4
    assert value(found, "gputopo_gpu_performance_state") == 2


def test_the_firmware_versions_are_labels_of_the_gpu() -> None:
    found = families(whole(vbios_version="86.04.50.00.01", gsp_firmware_version="550.163.01"))
    labels = {"vbios_version": "86.04.50.00.01", "gsp_firmware_version": "550.163.01"}
    assert value(found, "gputopo_gpu_info", **labels) == 1


@pytest.mark.parametrize(("action", "needed"), [("none", 0), ("drain and reset", 1)])
def test_what_the_driver_asks_for_is_a_series_with_its_word(action: str, needed: int) -> None:
    found = families(whole(recovery_action=action))
    assert value(found, "gputopo_gpu_recovery_needed", gpu="0", action=action) == needed
    assert "gputopo_gpu_recovery_needed" not in families(whole())


def test_how_a_gpu_stands_with_its_nvswitches_is_a_state_set_and_its_health_a_series_a_part() -> None:
    health = {"summary": "limited capacity", "bandwidth": "full", "partition_assigned": "false", "new": "x"}
    found = families(whole(fabric=Fabric(state="completed", status="success", health=health)))
    states = {one.labels["state"]: one.value for one in found["gputopo_gpu_fabric_state"].samples}
    assert states == {"not started": 0, "in progress": 0, "completed": 1}
    assert value(found, "gputopo_gpu_fabric_joined", gpu="0", status="success") == 1
    assert value(found, "gputopo_gpu_fabric_healthy", part="summary", status="limited capacity") == 0
    assert value(found, "gputopo_gpu_fabric_healthy", part="bandwidth", status="full") == 1
    assert len(found["gputopo_gpu_fabric_healthy"].samples) == 2
    assert value(found, "gputopo_gpu_fabric_partition_assigned") == 0
    refused = families(whole(fabric=Fabric(state="completed", status="insufficient resources")))
    assert value(refused, "gputopo_gpu_fabric_joined", status="insufficient resources") == 0


def test_a_gpu_that_is_joining_or_has_no_nvswitches_has_no_more_series_than_is_known() -> None:
    joining = families(whole(fabric=Fabric(state="in progress")))
    assert value(joining, "gputopo_gpu_fabric_state", state="in progress") == 1
    assert value(joining, "gputopo_gpu_fabric_state", state="completed") == 0
    assert [name for name in joining if "fabric" in name] == ["gputopo_gpu_fabric_state"]
    unheard = families(whole(fabric=Fabric(state="a new word")))
    assert value(unheard, "gputopo_gpu_fabric_state", state="a new word") == 1
    assert not [name for name in families(whole()) if "fabric" in name]


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_names_and_kinds_follow_the_rules_of_the_ecosystem(scenario: str) -> None:
    found = families(machine_of(scenario))
    assert len(found) > 20
    for name, family in found.items():
        assert re.fullmatch(r"gputopo_[a-z0-9]+(_[a-z0-9]+)*", name)
        assert (family.kind == "counter") == name.endswith("_total")
        assert not set(name.split("_")) & set(NO_BASE_UNIT)
        assert family.help
        if name.endswith("_info"):
            assert {one.value for one in family.samples} == {1}


def test_what_is_not_known_has_no_series_and_zero_is_a_zero() -> None:
    found = families(whole(power_w=PowerW(limit=0.0), pcie=Pcie(replay_counter=0)))
    assert value(found, "gputopo_gpu_power_limit_watts") == 0
    assert value(found, "gputopo_gpu_pcie_replays_total") == 0
    silent = [name for name in found if re.search("clock|temperature|memory|ecc|nvlink|utilization", name)]
    assert silent == []
    assert "gputopo_gpu_power_watts" not in found
    assert "gputopo_driver_up" not in found


@pytest.mark.parametrize(("status", "up"), [("ok", 1), ("not_loaded", 0)])
def test_a_driver_that_was_read_is_up_or_not(status: str, up: int) -> None:
    found = families(Machine(source="live", driver=Driver(status=status)))  # type: ignore[arg-type]
    assert value(found, "gputopo_driver_up") == up


def test_the_hop_matrix_is_a_series_a_pair() -> None:
    links = (
        Link(a=0, b=1, hop=Hop.PIX, nvlinks=2, p2p_read="OK", p2p_write="CHIPSET_NOT_SUPPORTED"),
        Link(a=0, b=2, hop=Hop.SYS),
        Link(a=1, b=2, p2p_read="UNKNOWN"),
    )
    found = families(Machine(source="x", links=links))
    assert value(found, "gputopo_link_hop_level", a="0", b="1", hop="PIX") == 10
    assert value(found, "gputopo_link_hop_level", a="0", b="2", hop="SYS") == 50
    assert len(found["gputopo_link_hop_level"].samples) == 2
    assert value(found, "gputopo_link_nvlinks", a="0") == 2
    assert value(found, "gputopo_link_p2p_allowed", direction="read") == 1
    assert value(found, "gputopo_link_p2p_allowed", status="CHIPSET_NOT_SUPPORTED") == 0


def test_findings_are_series_and_the_same_one_twice_is_one() -> None:
    lost = Finding(id="gpu.lost", severity="error", subject=Subject.parse("gpu:3"), says="one")
    again = Finding(id="gpu.lost", severity="error", subject=Subject.parse("gpu:3"), says="two")
    found = families(Machine(source="x"), lost, again)
    assert value(found, "gputopo_finding", id="gpu.lost", severity="error", subject="gpu:3") == 1
    assert value(found, "gputopo_findings", severity="error") == 2
    assert value(found, "gputopo_findings", severity="warning") == 0


def test_labels_are_escaped_and_read_back() -> None:
    name = 'a "quoted"\\ name\nof two lines'
    found = families(Machine(source="x", gpus=(Gpu(index=0, name=name),)))
    assert found["gputopo_gpu_info"].samples[0].labels["name"] == name


def test_a_fact_of_the_host_that_is_no_number_is_a_label() -> None:
    found = families(Machine(source="x", host=Host(kernel="6.1", memory_mib=1)))
    assert found["gputopo_machine_info"].samples[0].labels == {"source": "x", "kernel": "6.1"}
    assert value(found, "gputopo_host_memory_bytes") == 2**20
