"""What the double answers about one GPU: tables from NVML's symbols to the values of its spec."""

from collections.abc import Callable
from typing import Any

from tests.kit.nvml_fill import INVALID_ARGUMENT, Answer, Code
from tests.kit.specs import GpuSpec, LinkSpec, NvLinkSpec, Scenario

_ALL_BITS_64 = 0xFFFFFFFFFFFFFFFF

ABOUT_SYSTEM: dict[str, Callable[[Scenario], Answer]] = {
    "nvmlSystemGetDriverVersion": lambda scenario: scenario.driver_version.encode(),
    "nvmlSystemGetNVMLVersion": lambda scenario: scenario.nvml_version.encode(),
    "nvmlSystemGetCudaDriverVersion": lambda scenario: scenario.cuda_version,
    "nvmlSystemGetCudaDriverVersion_v2": lambda scenario: scenario.cuda_version,
}

# Symbols about one GPU: the answer, from its values and the call's plain arguments.
ABOUT_GPU: dict[str, Callable[..., Answer]] = {
    "nvmlDeviceGetName": lambda gpu: gpu.name.encode(),
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid.encode(),
    "nvmlDeviceGetVbiosVersion": lambda gpu: gpu.vbios.encode(),
    # The GPU System Processor came with Turing.
    "nvmlDeviceGetGspFirmwareVersion": lambda gpu: (
        gpu.gsp_firmware.encode() if gpu.architecture >= 6 else None
    ),
    "nvmlDeviceGetBoardPartNumber": lambda gpu: gpu.part_number.encode(),
    "nvmlDeviceGetInforomImageVersion": lambda gpu: gpu.inforom.encode(),
    "nvmlDeviceGetC2cModeInfoV": lambda gpu: None if gpu.c2c is None else {"isC2cEnabled": gpu.c2c},
    "nvmlDeviceGetPciInfo_v3": lambda gpu: pci_info(gpu.address, gpu.device_id, gpu.subsystem_id),
    "nvmlDeviceGetClockInfo": lambda gpu, kind: gpu.clocks[kind],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu.max_clocks[kind],
    "nvmlDeviceGetApplicationsClock": lambda gpu, kind: gpu.application_clocks[kind],
    "nvmlDeviceGetClock": lambda gpu, kind, _: gpu.application_clocks[kind],
    "nvmlDeviceGetDefaultApplicationsClock": lambda gpu, kind: (gpu.default_clocks or {}).get(kind),
    "nvmlDeviceGetMaxCustomerBoostClock": lambda gpu, kind: gpu.boost_clocks[kind],
    "nvmlDeviceGetPerformanceState": lambda gpu: gpu.pstate,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetViolationStatus": lambda gpu, policy: (
        {"referenceTime": 1, "violationTime": gpu.violations[policy]} if policy in gpu.violations else None
    ),
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetPowerManagementLimit": lambda gpu: gpu.power_limit_mw,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda gpu: gpu.power_default_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: gpu.power_enforced_mw,
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda gpu: gpu.power_range_mw,
    "nvmlDeviceGetTemperatureV": lambda gpu: {"temperature": gpu.temperature},
    "nvmlDeviceGetTemperature": lambda gpu, _: gpu.temperature,
    "nvmlDeviceGetTemperatureThreshold": lambda gpu, kind: {
        0: gpu.shutdown,
        1: gpu.slowdown,
        2: gpu.memory_max_operating,
        3: gpu.max_operating,
        5: gpu.target,
    }.get(kind),
    "nvmlDeviceGetMarginTemperature": lambda gpu: {"marginTemperature": gpu.margin},
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: _generation(gpu.link.speed),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda gpu: _generation(gpu.link.max_speed),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.link.width,
    "nvmlDeviceGetPcieReplayCounter": lambda gpu: gpu.replays,
    "nvmlDeviceGetPcieThroughput": lambda gpu, direction: gpu.pcie_kb_per_s[direction],
    "nvmlDeviceGetMemoryInfo": lambda gpu: _memory(gpu),
    "nvmlDeviceGetMemoryInfo_v2": lambda gpu: _memory(gpu) | {"reserved": 0},
    "nvmlDeviceGetBAR1MemoryInfo": lambda gpu: dict(
        zip(("bar1Total", "bar1Used", "bar1Free"), gpu.bar1_bytes, strict=True)
    ),
    "nvmlDeviceGetFanSpeed": lambda gpu: gpu.fan,
    "nvmlDeviceGetBrand": lambda gpu: gpu.brand,
    "nvmlDeviceGetArchitecture": lambda gpu: gpu.architecture,
    "nvmlDeviceGetDisplayActive": lambda gpu: gpu.display,
    "nvmlDeviceGetVirtualizationMode": lambda gpu: gpu.virtualization,
    "nvmlDeviceGetUtilizationRates": lambda gpu: {"gpu": gpu.utilization[0], "memory": gpu.utilization[1]},
    "nvmlDeviceGetEccMode": lambda gpu: gpu.ecc_mode,
    "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, since: gpu.ecc_errors[2 * kind + since],
    "nvmlDeviceGetMemoryErrorCounter": lambda gpu, kind, since, place: (
        gpu.ecc_at[place][2 * kind + since] if place in gpu.ecc_at else None
    ),
    "nvmlDeviceGetRemappedRows": lambda gpu: gpu.remapped_rows,
    "nvmlDeviceGetRowRemapperHistogram": lambda gpu: gpu.spare_rows,
    "nvmlDeviceGetRepairStatus": lambda gpu: gpu.repairs,
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": lambda gpu: gpu.unrepairable,
    "nvmlDeviceGetRetiredPages": lambda gpu, cause: [0x1000 * n for n in range(gpu.retired_pages[cause])],
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu: gpu.retired_pending,
    "nvmlDeviceGetMigMode": lambda gpu: gpu.mig,
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
    "nvmlDeviceGetComputeMode": lambda gpu: gpu.compute_mode,
    "nvmlDeviceGetPersistenceMode": lambda gpu: gpu.persistence,
    "nvmlDeviceGetComputeRunningProcesses_v2": lambda gpu: _processes(gpu, "compute"),
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda gpu: _processes(gpu, "compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": lambda gpu: _processes(gpu, "graphics"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda gpu: _processes(gpu, "graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": lambda gpu: _processes(gpu, "mps"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": lambda gpu: _processes(gpu, "mps"),
    "nvmlDeviceGetNvLinkState": lambda gpu, link: of_link(gpu, link, lambda one: one.remote is not None),
    "nvmlDeviceGetNvLinkVersion": lambda gpu, link: of_link(gpu, link, lambda one: one.version),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: of_link(
        gpu, link, lambda one: 2 if isinstance(one.remote, str) else 0
    ),
    "nvmlDeviceGetNvLinkErrorCounter": lambda gpu, link, counter: of_link(
        gpu, link, lambda one: one.errors.get(counter, 0)
    ),
}

# What card and slot can do together.
WITH_SLOT: dict[str, Callable[[LinkSpec, LinkSpec], int]] = {
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda card, slot: _generation(min(card.max_speed, slot.max_speed)),
    "nvmlDeviceGetMaxPcieLinkWidth": lambda card, slot: min(card.max_width, slot.max_width),
}
# Their only plain argument is the size of the buffer.
TEXTS = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetInforomImageVersion",
)


def pci_info(address: str, device_id: str = "0000", subsystem_id: int = 0) -> dict[str, Any]:
    """Return an nvmlPciInfo_t as drivers fill it: the domain with eight digits, in upper case."""
    domain, bus, rest = address.split(":")
    device = rest.partition(".")[0]
    return {
        "busIdLegacy": f"{int(domain, 16) & 0xFFFF:04X}:{bus}:{rest}".upper().encode(),
        "busId": f"{int(domain, 16):08X}:{bus}:{rest}".upper().encode(),
        "domain": int(domain, 16),
        "bus": int(bus, 16),
        "device": int(device, 16),
        "pciDeviceId": int(device_id, 16) << 16 | 0x10DE,
        "pciSubSystemId": subsystem_id,
    }


def _generation(speed: float) -> int:
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}[speed]


def _memory(gpu: GpuSpec) -> dict[str, int]:
    total, used, free = gpu.memory_bytes
    return {"total": total, "used": used, "free": free}


def _processes(gpu: GpuSpec, kind: str) -> list[dict[str, int]]:
    return [
        {
            "pid": process.pid,
            "usedGpuMemory": _ALL_BITS_64 if process.used_bytes is None else process.used_bytes,
        }
        for process in gpu.processes
        if process.kind == kind
    ]


def of_link(gpu: GpuSpec, link: int, give: Callable[[NvLinkSpec], int]) -> int | Code:
    return int(give(gpu.nvlinks[link])) if link < len(gpu.nvlinks) else Code(INVALID_ARGUMENT)


# NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 to L5, L6 to L11: the link of each field.
_SPEED_FIELDS = {84 + link: link for link in range(6)} | {126 + link: link for link in range(6, 12)}


# Power smoothing, if it is reported: three numbers that are not times.
_SMOOTHING = (0, 2, 1)


def slowdown_fields(driver_version: str) -> dict[int, int]:
    """Return the index in `GpuSpec.slowdown_ns` for each field number, or -1 for power smoothing.

    From the nvml.h of each driver: R570 has power smoothing at 251 and no slowdowns; R575 put the slowdowns
    there; 580.82 put power smoothing back, and the slowdowns after it.
    """
    release, update = map(int, driver_version.split(".")[:2])
    if (575, 51) <= (release, update) < (580, 82):
        return {252: 0, 253: 1}
    after = {270: 0, 271: 1} if (release, update) >= (580, 82) else {}
    return {252: -1, 253: -1, **after} if release >= 570 else {}


def field_value(gpu: GpuSpec, number: int, scope: int, driver_version: str) -> int | None:
    """Return a field value (NVML_FI_*) of a GPU, or, by `scope`, of one of its NVLinks.

    None: not supported.
    """
    if (place := slowdown_fields(driver_version).get(number)) is not None:
        return gpu.slowdown_ns[place] if place >= 0 else _SMOOTHING[number - 251]
    if number == 82:  # NVML_FI_DEV_MEMORY_TEMP
        return gpu.memory_temperature
    if number in gpu.fields:
        return gpu.fields[number]
    link = gpu.nvlinks[scope] if scope < len(gpu.nvlinks) else None
    if number == 164 and link is not None:  # NVML_FI_DEV_NVLINK_GET_SPEED
        return link.mb_per_s if link.version > 3 else None
    if number in _SPEED_FIELDS and _SPEED_FIELDS[number] < len(gpu.nvlinks):
        return gpu.nvlinks[_SPEED_FIELDS[number]].mb_per_s
    return None if link is None else link.field_errors.get(number)
