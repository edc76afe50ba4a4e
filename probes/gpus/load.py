"""Clocks, throttling, power, temperature, memory and processes of a GPU."""

from gputopo.probes.facts import FactReader
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.nvml.words import MARGINS, PROCESS_KINDS, THRESHOLDS, VIOLATIONS
from gputopo.reference.clock_events import decode
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    GpuProcess,
    MemoryMib,
    PowerW,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)
from gputopo.values.subject import within

_MEMORY_PARTS = ("total", "used", "free")


def clocks(gpu: FactReader) -> ClocksMhz:
    """Read all clock domains."""
    return ClocksMhz(
        graphics=_clock(gpu, "graphics"),
        sm=_clock(gpu, "sm"),
        memory=_clock(gpu, "memory"),
        video=_clock(gpu, "video"),
    )


def _clock(gpu: FactReader, name: str) -> ClockMhz:
    nvml, path = gpu.nvml, within("clocks_mhz", name)
    return ClockMhz(
        now=gpu.read(within(path, "now"), nvml.clock_mhz, name),
        max=gpu.read(within(path, "max"), nvml.max_clock_mhz, name),
        application=gpu.read(within(path, "application"), nvml.application_clock_mhz, name),
        default_application=gpu.read(
            within(path, "default_application"), nvml.default_application_clock_mhz, name
        ),
        boost=gpu.read(within(path, "boost"), nvml.boost_clock_mhz, name),
    )


def throttle(gpu: FactReader) -> Throttle:
    """Read the clock event reasons as a mask and in words."""
    mask = gpu.read(("throttle.mask", "throttle.reasons"), gpu.nvml.throttle_mask)
    return Throttle() if mask is None else Throttle(mask=mask, reasons=decode(mask))


def violations(gpu: FactReader) -> dict[str, int] | None:
    """Read for how many ns each policy has throttled the clocks; None if no policy is reported."""
    return gpu.gather("violation_ns", VIOLATIONS, gpu.nvml.violation_ns) or None


def power(gpu: FactReader) -> PowerW:
    """Read power draw and limits."""
    names = ("draw", "limit", "default_limit", "enforced_limit")
    readings = gpu.read_each("power_w", names, gpu.nvml.power_w)
    return PowerW(**readings, **gpu.read_parts("power_w", ("min", "max"), gpu.nvml.power_range_w))


def temperature(gpu: FactReader) -> TemperatureC:
    """Read temperatures, the thresholds of older GPUs and the margins of newer ones."""
    nvml = gpu.nvml
    return TemperatureC(
        gpu=gpu.read("temperature_c.gpu", nvml.temperature_c),
        memory=gpu.read("temperature_c.memory", nvml.memory_temperature_c),
        margin=gpu.read("temperature_c.margin", nvml.temperature_margin_c),
        **gpu.read_each("temperature_c", THRESHOLDS, nvml.temperature_threshold_c),
        **gpu.read_each("temperature_c", MARGINS, nvml.margin_threshold_c),
    )


def memory(gpu: FactReader) -> MemoryMib:
    """Read the device memory."""
    return MemoryMib(**gpu.read_named("memory_mib", _MEMORY_PARTS, gpu.nvml.memory_mib))


def bar1(gpu: FactReader) -> MemoryMib:
    """Read BAR1, through which the bus reaches device memory."""
    return MemoryMib(**gpu.read_named("bar1_mib", _MEMORY_PARTS, gpu.nvml.bar1_mib))


def utilization(gpu: FactReader) -> UtilizationPercent:
    """Read the utilization of the chip and of its memory."""
    rates = gpu.read_parts("utilization_percent", ("gpu", "memory"), gpu.nvml.utilization_percent)
    return UtilizationPercent(**rates)


def processes(gpu: FactReader) -> tuple[GpuProcess, ...] | None:
    """Read the processes; one that computes and draws is listed under both kinds, as in NVML."""
    by_kind = gpu.gather("processes", PROCESS_KINDS, gpu.nvml.processes)
    if not by_kind:
        return None
    return tuple(
        GpuProcess(pid=pid, kind=kind, name=_process_name(gpu, pid), memory_mib=memory_mib)
        for kind, found in by_kind.items()
        for pid, memory_mib in found
    )


def _process_name(gpu: FactReader, pid: int) -> str | None:
    """Return the name of a process, None where it has ended since."""
    try:
        return gpu.nvml.process_name(pid)
    except NotReadError:
        return None
