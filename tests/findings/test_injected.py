"""One fault at a time, by NVIDIA's names, in the `nvidia-smi -q -x` of a sound machine with eight GPUs."""

import functools
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from gputopo.captures import reading
from gputopo.findings import Finding, find
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Driver,
    Ecc,
    Fabric,
    Gpu,
    Machine,
    MemoryMib,
    Mig,
    Pcie,
    PowerW,
    RemappedRows,
    SpareRows,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)
from tests.kit.dialects import smi

Edits = Mapping[str, str]

GPUS = 8
ERA = 595
WITH_APPLICATION_CLOCKS = 560  # later drivers call them deprecated

_COUNTS = {
    f"{since}.{place}": 0
    for since in ("volatile", "aggregate")
    for place in (
        "sram_correctable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
        "dram_correctable",
        "dram_uncorrectable",
    )
}


def sound() -> Machine:
    """Eight idle H100 SXM without a fault."""
    return Machine(
        source="a test",
        driver=Driver(version="580.105.08", cuda_version="13.0"),
        gpus=tuple(_gpu(index) for index in range(GPUS)),
    )


def _gpu(index: int) -> Gpu:
    core = ClockMhz(now=345, max=1980, application=1980, default_application=1980)
    return Gpu(
        index=index,
        uuid=f"GPU-0000000{index}-0000-0000-0000-000000000000",
        name="NVIDIA H100 80GB HBM3",
        brand="NVIDIA",
        architecture="Hopper",
        pci_address=f"0000:{0x19 + 0x10 * index:02x}:00.0",
        pci_device_id="2330",
        pci_subsystem_id="16c110de",
        board_part_number="692-2G520-0200-000",
        inforom_version="G520.0200.00.05",
        c2c_mode=True,
        vbios_version="96.00.99.00.01",
        gsp_firmware_version="580.105.08",
        clocks_mhz=ClocksMhz(
            graphics=core,
            sm=core,
            memory=ClockMhz(now=2619, max=2619, application=2619, default_application=2619),
            video=ClockMhz(now=765, max=1545),
        ),
        pstate="P0",
        throttle=Throttle(mask=1, reasons=("gpu_idle",)),
        violation_ns={
            "sw_power_cap": 7_015_000_000_000 + 10**9 * index,
            "sync_boost": 0,
            "sw_thermal_slowdown": 0,
            "hw_thermal_slowdown": 0,
            "hw_power_brake_slowdown": 0,
        },
        power_w=PowerW(
            draw=66.0 + index, limit=700.0, default_limit=700.0, enforced_limit=700.0, min=200.0, max=700.0
        ),
        temperature_c=TemperatureC(gpu=27 + index, memory=36 + index, margin=60 - index, margin_slowdown=-2),
        pcie=Pcie(
            gen_now=5,
            gen_max=5,
            gen_max_device=5,
            width_now=16,
            width_max=16,
            replay_counter=140 + index,
            replay_rollovers=0,
        ),
        memory_mib=MemoryMib(total=81559, used=0, free=81079),
        bar1_mib=MemoryMib(total=131072, used=1, free=131071),
        utilization_percent=UtilizationPercent(gpu=0, memory=0),
        ecc=Ecc(
            mode=True,
            mode_pending=True,
            counts={**_COUNTS, "aggregate.sram_threshold_exceeded": 0},
            channel_repair_pending=False,
            tpc_repair_pending=False,
            unrepairable_memory=False,
        ),
        remapped_rows=RemappedRows(
            correctable=0,
            uncorrectable=0,
            pending=False,
            failure=False,
            banks=SpareRows(max=2560, high=0, partial=0, low=0, none=0),
        ),
        mig=Mig(mode=False, mode_pending=False, instances=0),
        compute_mode="default",
        persistence_mode=True,
        processes=(),
        fabric=Fabric(
            state="completed",
            status="success",
            clique_id=0,
            health={"summary": "healthy", "bandwidth": "full"},
        ),
        recovery_action="none",
    )


_REASON = "clocks_event_reasons/clocks_event_reason_"
_COUNTER = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
_GEN = "pci/pci_gpu_link_info/pcie_gen/"
_WIDTH = "pci/pci_gpu_link_info/link_widths/"
_POWER = "gpu_power_readings/"
BUSY = {
    "utilization/gpu_util": "98 %",
    "clocks_event_reasons/clocks_event_reason_gpu_idle": "Not Active",
    "clocks/graphics_clock": "1905 MHz",
    "clocks/sm_clock": "1905 MHz",
    "temperature/gpu_temp": "60 C",
    "fb_memory_usage/used": "70000 MiB",
    "fb_memory_usage/free": "11079 MiB",
    f"{_POWER}average_power_draw": "640.00 W",
}

# What is written into a GPU of an idle machine, the id of the finding and its severity: other faults, which
# are plain values, are in `faults`.
IDLE_FAULTS: dict[str, tuple[Edits, str, str]] = {
    "corrected errors": (
        {"ecc_errors/aggregate/dram_correctable": "50000"}, "memory.more_errors_than_peers", "info"),
    "reboot required": ({"gpu_recovery_action": "Reboot"}, "gpu.reset_required", "error"),
    "drain and reset": ({"gpu_recovery_action": "Drain and Reset"}, "gpu.reset_recommended", "warning"),
    "thermal time": ({f"{_COUNTER}hw_therm_slowdown": "1200000000 us"}, "throttle.time", "warning"),
    "time beyond the peers'": ({f"{_COUNTER}hw_therm_slowdown": "300000000 us"}, "throttle.time", "info"),
    "generation of the slot": (
        {f"{_GEN}max_link_gen": "4", f"{_GEN}current_link_gen": "4"}, "pcie.slot_differs", "warning"),
    "one lane": ({f"{_WIDTH}current_link_width": "1x"}, "pcie.slot_narrow", "warning"),
    "power of a load while idle": ({f"{_POWER}average_power_draw": "600.00 W"}, "gpu.busy", "warning"),
    "hot memory": ({"temperature/memory_temp": "95 C"}, "thermal.hotter_than_peers", "warning"),
    "fan": ({"fan_speed": "Unknown Error"}, "gpu.field_error", "warning"),
    "average power unknown": ({f"{_POWER}average_power_draw": "Unknown Error"}, "gpu.field_error", "warning"),
    "temperature not reported": ({"temperature/gpu_temp": "N/A"}, "gpu.field_error", "info"),
    "InfoROM": ({"inforom_version/img_version": "N/A"}, "gpu.field_error", "warning"),
    "lost": ({"temperature/gpu_temp": "GPU is lost"}, "gpu.lost", "error"),
    "fabric refused": ({"fabric/status": "Failure"}, "nvlink.fabric_not_ready", "error"),
    "fabric degraded": ({"fabric/health/bandwidth": "Degraded"}, "nvlink.fabric_unhealthy", "warning"),
    "clique": ({"fabric/cliqueId": "7"}, "nvlink.differs", "warning"),
    "C2C": ({"c2c_mode": "Disabled"}, "nvlink.differs", "warning"),
    "board": ({"board_part_number": "692-2G520-0280-000"}, "card.differs", "info"),
    "subsystem": ({"pci/pci_sub_system_id": "1A2210DE"}, "card.differs", "info"),
}  # fmt: skip
# The same where all GPUs are under load.
BUSY_FAULTS: dict[str, tuple[Edits, str, str]] = {
    "SW power cap at low power": (
        {f"{_REASON}sw_power_cap": "Active", f"{_POWER}average_power_draw": "250.00 W"},
        "throttle.sw_power_cap", "warning"),
    "power": ({f"{_POWER}average_power_draw": "220.00 W"}, "power.below_peers", "warning"),
    "graphics clock": ({"clocks/graphics_clock": "900 MHz"}, "clocks.core_below_maximum", "warning"),
}  # fmt: skip


@functools.cache
def written(era: int) -> str:
    return smi.xml(sound(), era)


def inspected(edits: Edits, gpus: Sequence[int], *, era: int = ERA, busy: bool = False) -> list[Finding]:
    """Return the findings after writing values over those of some GPUs, in place of the sound ones."""
    log = ET.fromstring(written(era))
    for index, gpu in enumerate(log.findall("gpu")):
        for path, text in {**(BUSY if busy else {}), **(edits if index in gpus else {})}.items():
            if path == "fan_speed" and gpu.find(path) is None:
                ET.SubElement(gpu, path)
            element = gpu.find(path)
            if element is None and era != ERA:
                continue  # another name
            assert element is not None, path
            element.text = text
    machine = reading.read_text(ET.tostring(log, encoding="unicode"), origin="injected.xml")
    assert machine.unread == ()
    usual = {"topology.unknown"} | ({"gpu.busy"} if busy else set())
    return [found for found in find(machine) if found.id not in usual]


@pytest.mark.parametrize(("era", "busy"), [(ERA, False), (ERA, True), (WITH_APPLICATION_CLOCKS, True)])
def test_the_sound_machine_has_no_findings(era: int, busy: bool) -> None:
    assert inspected({}, [], era=era, busy=busy) == []


@pytest.mark.parametrize("busy", [False, True])
def test_each_fault_is_found_once_on_its_gpu_and_no_other_gpu_is_accused(busy: bool) -> None:
    for name, (edits, id, severity) in (BUSY_FAULTS if busy else IDLE_FAULTS).items():
        sick = Random(name).randrange(GPUS)
        found = [(one.id, one.severity, one.subject.gpus) for one in inspected(edits, [sick], busy=busy)]
        assert found == [(id, severity, (sick,))], name


def test_set_application_clocks_give_their_finding_and_no_other() -> None:
    edits = {"applications_clocks/graphics_clock": "1200 MHz"}
    (found,) = inspected(edits, range(GPUS), era=WITH_APPLICATION_CLOCKS)
    assert (found.id, found.subject.gpus) == ("clocks.application_below_default", tuple(range(GPUS)))


def test_two_of_eight_are_the_odd_ones() -> None:
    (found,) = inspected({"vbios_version": "96.00.61.00.01"}, [2, 5])
    assert (found.id, found.subject.gpus) == ("card.differs", (2, 5))


def test_where_half_differ_neither_half_is_at_fault() -> None:
    (found,) = inspected({"vbios_version": "96.00.61.00.01"}, [0, 2, 4, 6])
    assert (found.id, found.subject.gpus) == ("card.differs", tuple(range(GPUS)))
    assert found.says == "VBIOS version 96.00.61.00.01 (GPU 0,2,4,6), 96.00.99.00.01 (GPU 1,3,5,7)"
