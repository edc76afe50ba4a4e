import re

import msgspec
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
from tests.report.exposition_grammar import Family, read
from tests.report.shown import assert_golden

# prometheus.io/docs/practices/naming: base units, and never a multiple of one.
NO_BASE_UNIT = ("mhz", "mib", "gib", "percent", "milliwatts", "kilobytes", "megabytes", "ns", "ms")


def families(machine: Machine, *findings: Finding) -> dict[str, Family]:
    return read(exposition(Inspection(machine=machine, findings=findings)))


def whole(**facts: object) -> Machine:
    return Machine(source="live", gpus=(Gpu(index=0, name="card", pci_address="0000:05:00.0", **facts),))  # type: ignore[arg-type]


HEALTH = {"summary": "limited capacity", "bandwidth": "full", "partition_assigned": "false", "new": "x"}
MACHINES = {
    "in base units": whole(
        clocks_mhz=ClocksMhz(memory=ClockMhz(now=4004, max=4005)),
        power_w=PowerW(draw=61.5, limit=151.0, max=200.0),
        temperature_c=TemperatureC(gpu=31, slowdown=95),
        memory_mib=MemoryMib(total=8114),
        utilization_percent=UtilizationPercent(gpu=7),
        violation_ns={"power": 2_500_000_000},
        nvlinks=(NvLink(link=3, gb_per_s=25.0, active=True, errors={"replay": 2}),),
        pcie=Pcie(replay_counter=4),
        pstate="P2",
        vbios_version="86.04.50.00.01",
        gsp_firmware_version="550.163.01",
        recovery_action="drain and reset",
        fabric=Fabric(state="completed", status="success", health=HEALTH),
    ),
    # A state that nobody has heard of is one.
    "unheard of": whole(fabric=Fabric(state="a new word")),
    "refused": whole(fabric=Fabric(state="completed", status="insufficient resources")),
    "of links": Machine(
        source="x",
        host=Host(kernel="6.1", memory_mib=1),
        driver=Driver(status="not_loaded"),
        links=(
            Link(a=0, b=1, hop=Hop.PIX, nvlinks=2, p2p_read="OK", p2p_write="CHIPSET_NOT_SUPPORTED"),
            Link(a=0, b=2, hop=Hop.SYS),
            Link(a=1, b=2, p2p_read="UNKNOWN"),
        ),
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_series_of_a_machine_are_as_they_were(name: str) -> None:
    lost = Finding(id="gpu.lost", severity="error", subject=Subject.parse("gpu:3"), says="one")
    again = msgspec.structs.replace(lost, says="two")  # the same series, counted twice
    text = exposition(Inspection(machine=MACHINES[name], findings=(lost, again)))
    read(text)
    assert_golden(f"exposition {name}", "".join(f"{line}\n" for line in text.splitlines() if line[0] != "#"))


@pytest.mark.parametrize("scenario", ["dgx1", "lost_gpu"])
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


def test_labels_are_escaped_and_read_back() -> None:
    name = 'a "quoted"\\ name\nof two lines'
    found = families(Machine(source="x", gpus=(Gpu(index=0, name=name),)))
    assert found["gputopo_gpu_info"].samples[0].labels["name"] == name
