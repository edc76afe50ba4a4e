"""A GPU at work: clocks, what holds them down, power, heat, memory, processes."""

from gputopo.probes.gpus.notes import Asker
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

_MEMORY_PARTS = ("total", "used", "free")


def clocks(gpu: Asker) -> ClocksMhz:
    """Give all clock domains."""
    return ClocksMhz(
        graphics=_clock(gpu, "graphics"),
        sm=_clock(gpu, "sm"),
        memory=_clock(gpu, "memory"),
        video=_clock(gpu, "video"),
    )


def _clock(gpu: Asker, name: str) -> ClockMhz:
    nvml, path = gpu.nvml, f"clocks_mhz.{name}"
    return ClockMhz(
        now=gpu.take(f"{path}.now", nvml.clock_mhz, name),
        max=gpu.take(f"{path}.max", nvml.max_clock_mhz, name),
        application=gpu.take(f"{path}.application", nvml.application_clock_mhz, name),
        boost=gpu.take(f"{path}.boost", nvml.boost_clock_mhz, name),
    )


def throttle(gpu: Asker) -> Throttle:
    """Give the mask of clock event reasons and its bits in words."""
    paths = [f"{gpu.path}throttle.{name}" for name in ("mask", "reasons")]
    mask = gpu.notes.take(paths, gpu.nvml.throttle_mask, gpu.handle)
    return Throttle() if mask is None else Throttle(mask=mask, reasons=decode(mask))


def violations(gpu: Asker) -> dict[str, int] | None:
    """Give for how many ns each policy has held the clocks down, or None if none tells."""
    return gpu.gather("violation_ns", VIOLATIONS, gpu.nvml.violation_ns) or None


def power(gpu: Asker) -> PowerW:
    """Give draw and limits."""
    names = ("draw", "limit", "default_limit", "enforced_limit")
    told = gpu.take_each("power_w", names, gpu.nvml.power_w)
    return PowerW(**told, **gpu.take_parts("power_w", ("min", "max"), gpu.nvml.power_range_w))


def temperature(gpu: Asker) -> TemperatureC:
    """Give temperatures, the thresholds of older cards and the margins of newer ones."""
    nvml = gpu.nvml
    return TemperatureC(
        gpu=gpu.take("temperature_c.gpu", nvml.temperature_c),
        memory=gpu.take("temperature_c.memory", nvml.memory_temperature_c),
        margin=gpu.take("temperature_c.margin", nvml.temperature_margin_c),
        **gpu.take_each("temperature_c", THRESHOLDS, nvml.temperature_threshold_c),
        **gpu.take_each("temperature_c", MARGINS, nvml.margin_threshold_c),
    )


def memory(gpu: Asker) -> MemoryMib:
    """Give the device memory."""
    return MemoryMib(**gpu.take_named("memory_mib", _MEMORY_PARTS, gpu.nvml.memory_mib))


def bar1(gpu: Asker) -> MemoryMib:
    """Give the window through which the bus reaches device memory."""
    return MemoryMib(**gpu.take_named("bar1_mib", _MEMORY_PARTS, gpu.nvml.bar1_mib))


def utilization(gpu: Asker) -> UtilizationPercent:
    """Give the load of the chip and of its memory."""
    told = gpu.take_parts("utilization_percent", ("gpu", "memory"), gpu.nvml.utilization_percent)
    return UtilizationPercent(**told)


def processes(gpu: Asker) -> tuple[GpuProcess, ...] | None:
    """Give the processes; one that computes and draws is listed under both kinds, as NVML does."""
    told = gpu.gather("processes", PROCESS_KINDS, gpu.nvml.processes)
    if not told:
        return None
    return tuple(
        GpuProcess(pid=pid, kind=kind, name=_process_name(gpu, pid), memory_mib=memory_mib)
        for kind, found in told.items()
        for pid, memory_mib in found
    )


def _process_name(gpu: Asker, pid: int) -> str | None:
    """Give a name where there is one: a process may have ended since, which is no fact of the GPU."""
    try:
        return gpu.nvml.process_name(pid)
    except NotReadError:
        return None
