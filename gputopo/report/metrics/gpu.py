"""The series of one GPU for Prometheus."""

from gputopo.findings.nvlink import JOINED, SOUND, SUCCESS
from gputopo.reference.clock_events import reasons_of
from gputopo.report.metrics.exposition import MIB, Exposition, Label, times
from gputopo.values.machine import JOINING, Fabric, Gpu, MemoryMib, NvLink

Labels = dict[str, Label]


def add_gpu(out: Exposition, gpu: Gpu) -> None:
    """Add all that is known of a GPU; every series names its index, model and PCI address."""
    labels: Labels = {"gpu": gpu.index, "name": gpu.name, "pci_address": gpu.pci_address}
    out.info(
        "gpu",
        "what a GPU is and where it sits",
        **labels,
        uuid=gpu.uuid,
        brand=gpu.brand,
        architecture=gpu.architecture,
        pci_device_id=gpu.pci_device_id,
        cuda_index=gpu.cuda_index,
        numa_node=gpu.numa_node,
        cpu_affinity=gpu.cpu_affinity,
        compute_mode=gpu.compute_mode,
        virtualization=gpu.virtualization,
        limiting_hop=gpu.pcie.limiting_hop,
    )
    out.gauge("gpu_lost", "whether a GPU was counted and then did not answer", gpu.lost, **labels)
    action = gpu.recovery_action
    needed = None if action is None else action != "none"
    says = "whether the driver asks for a recovery of a GPU, with its own word"
    out.gauge("gpu_recovery_needed", says, needed, **labels, action=action)
    _clocks(out, gpu, labels)
    _power_and_heat(out, gpu, labels)
    _pcie(out, gpu, labels)
    _memory(out, "gpu_memory", "memory of a GPU", gpu.memory_mib, labels)
    _memory(out, "gpu_bar1", "BAR1 (the window for other devices) of a GPU", gpu.bar1_mib, labels)
    _load(out, gpu, labels)
    _errors(out, gpu, labels)
    _modes(out, gpu, labels)
    for link in gpu.nvlinks or ():
        _nvlink(out, link, labels)
    _fabric(out, gpu.fabric, labels)


def _clocks(out: Exposition, gpu: Gpu, labels: Labels) -> None:
    kinds = (
        ("now", "gpu_clock_hertz", "clock of a GPU now"),
        ("max", "gpu_clock_max_hertz", "clock of a GPU at most"),
        ("application", "gpu_clock_application_hertz", "clock that is set for applications"),
        ("boost", "gpu_clock_boost_hertz", "boost clock of a GPU"),
    )
    for domain in gpu.clocks_mhz.__struct_fields__:
        clock = getattr(gpu.clocks_mhz, domain)
        for field, name, says in kinds:
            out.gauge(name, says, times(getattr(clock, field), 1_000_000), **labels, domain=domain)
    for reason in reasons_of(gpu.throttle):
        out.gauge("gpu_throttle_reason", "a reason why clocks are held down now", 1, **labels, reason=reason)
    out.gauge("gpu_throttle_mask", "NVML's mask of the clock event reasons", gpu.throttle.mask, **labels)
    held_s = {policy: nanoseconds / 1e9 for policy, nanoseconds in (gpu.violation_ns or {}).items()}
    says = "time that clocks were held down, by reason"
    out.counters("gpu_throttled_seconds_total", says, held_s, "reason", **labels)
    state = (gpu.pstate or "").removeprefix("P")
    number = int(state) if state.isascii() and state.isdecimal() else None
    out.gauge("gpu_performance_state", "P-state, 0 is the fastest", number, **labels)


def _power_and_heat(out: Exposition, gpu: Gpu, labels: Labels) -> None:
    power, heat = gpu.power_w, gpu.temperature_c
    out.gauge("gpu_power_watts", "power that a GPU draws", power.draw, **labels)
    for field, says in (
        ("limit", "power limit that is set"),
        ("default_limit", "power limit that a GPU starts with"),
        ("enforced_limit", "power limit that is enforced"),
        ("min", "lowest power limit that can be set"),
        ("max", "highest power limit that can be set"),
    ):
        name = field if "limit" in field else f"{field}_limit"
        out.gauge(f"gpu_power_{name}_watts", says, getattr(power, field), **labels)
    for sensor, degrees in (("gpu", heat.gpu), ("memory", heat.memory)):
        out.gauge("gpu_temperature_celsius", "temperature now", degrees, **labels, sensor=sensor)
    for field in heat.__struct_fields__:
        if field not in ("gpu", "memory"):
            says = f"temperature: {field.replace('_', ' ')}"
            out.gauge(f"gpu_temperature_{field}_celsius", says, getattr(heat, field), **labels)
    out.gauge("gpu_fan_speed_ratio", "fan speed, 1 is full", _ratio(gpu.fan_percent), **labels)


def _pcie(out: Exposition, gpu: Gpu, labels: Labels) -> None:
    pcie = gpu.pcie
    out.gauge("gpu_pcie_generation", "PCIe generation of the link now", pcie.gen_now, **labels)
    out.gauge("gpu_pcie_generation_max", "what card and slot can do together", pcie.gen_max, **labels)
    out.gauge("gpu_pcie_generation_card", "what the card can do", pcie.gen_max_device, **labels)
    out.gauge("gpu_pcie_generation_slot", "what the slot can do", pcie.gen_max_host, **labels)
    out.gauge("gpu_pcie_lanes", "lanes of the link now", pcie.width_now, **labels)
    out.gauge("gpu_pcie_lanes_max", "lanes of the link at most", pcie.width_max, **labels)
    out.counter("gpu_pcie_replays_total", "packets that were sent again", pcie.replay_counter, **labels)
    says = "errors of the PCIe link (AER)"
    out.counters("gpu_pcie_errors_total", says, pcie.aer, "severity", **labels)


def _memory(out: Exposition, name: str, says: str, memory: MemoryMib, labels: Labels) -> None:
    for ending, mib, part in (
        ("size", memory.total, "in all"),
        ("used", memory.used, "in use"),
        ("free", memory.free, "free"),
    ):
        out.gauge(f"{name}_{ending}_bytes", f"{says}, {part}", times(mib, MIB), **labels)


def _load(out: Exposition, gpu: Gpu, labels: Labels) -> None:
    load = gpu.utilization_percent
    out.gauge("gpu_utilization_ratio", "share of time that kernels ran", _ratio(load.gpu), **labels)
    out.gauge(
        "gpu_memory_utilization_ratio",
        "share of time that memory was read or written",
        _ratio(load.memory),
        **labels,
    )
    if gpu.processes is not None:
        out.gauge("gpu_processes", "processes on a GPU", len({one.pid for one in gpu.processes}), **labels)


def _errors(out: Exposition, gpu: Gpu, labels: Labels) -> None:
    ecc, rows, pages = gpu.ecc, gpu.remapped_rows, gpu.retired_pages
    for what in ("corrected", "uncorrected"):
        for since in ("volatile", "aggregate"):
            out.counter(
                "gpu_ecc_errors_total",
                "memory errors; volatile: since the driver was loaded, aggregate: in all",
                getattr(ecc, f"{what}_{since}"),
                **labels,
                error=what,
                counted=since,
            )
    out.counters("gpu_ecc_place_errors_total", "memory errors by their place", ecc.counts, "place", **labels)
    for error in ("correctable", "uncorrectable"):
        says = "memory rows that were replaced, by the error that caused it"
        out.gauge("gpu_remapped_rows", says, getattr(rows, error), **labels, error=error)
    for error in ("single_bit", "double_bit"):
        says = "memory pages that are no longer used, by the error that caused it"
        out.gauge("gpu_retired_pages", says, getattr(pages, error), **labels, error=error)
    out.gauge("gpu_remapping_pending", "whether a row waits for a reset", rows.pending, **labels)
    out.gauge("gpu_remapping_failed", "whether a row could not be replaced", rows.failure, **labels)
    out.gauge("gpu_retirement_pending", "whether a page waits for a reboot", pages.pending, **labels)


def _modes(out: Exposition, gpu: Gpu, labels: Labels) -> None:
    out.gauge("gpu_ecc_enabled", "whether memory errors are corrected", gpu.ecc.mode, **labels)
    out.gauge("gpu_ecc_enabled_after_reboot", "the same after a reboot", gpu.ecc.mode_pending, **labels)
    out.gauge("gpu_mig_enabled", "whether a GPU is split", gpu.mig.mode, **labels)
    out.gauge("gpu_mig_enabled_after_reset", "the same after a reset", gpu.mig.mode_pending, **labels)
    out.gauge("gpu_mig_instances", "into how many instances a GPU is split", gpu.mig.instances, **labels)
    out.gauge(
        "gpu_persistence_mode", "whether the driver stays loaded without use", gpu.persistence_mode, **labels
    )
    out.gauge("gpu_display_active", "whether a GPU drives a display", gpu.display_active, **labels)


def _nvlink(out: Exposition, link: NvLink, labels: Labels) -> None:
    labels = {**labels, "link": link.link}
    out.info(
        "gpu_nvlink",
        "an NVLink and what is at its other end",
        **labels,
        version=link.version,
        remote_pci_address=link.remote_pci_address,
        remote_kind=link.remote_kind,
    )
    out.gauge("gpu_nvlink_active", "whether an NVLink is up", link.active, **labels)
    speed = times(link.gb_per_s, 10**9)
    out.gauge("gpu_nvlink_speed_bytes_per_second", "speed of an NVLink in one direction", speed, **labels)
    out.counters("gpu_nvlink_errors_total", "errors of an NVLink", link.errors, "error", **labels)


def _fabric(out: Exposition, fabric: Fabric, labels: Labels) -> None:
    """Add how a GPU stands with its NVSwitches; one without any has no series of it."""
    says = "how far a GPU has joined its NVSwitches (its fabric): 1 for the state it is in"
    out.states("gpu_fabric_state", says, (*JOINING, JOINED), fabric.state, **labels)
    says = "whether a GPU that was through with joining its NVSwitches was let in, with the driver's own word"
    status = fabric.status
    out.gauge(
        "gpu_fabric_joined", says, None if status is None else status == SUCCESS, **labels, status=status
    )
    health = fabric.health or {}
    says = "whether a part of a GPU's NVSwitch fabric is sound, with the driver's own word"
    for part in (part for part in SOUND if part in health):
        out.gauge(
            "gpu_fabric_healthy", says, health[part] == SOUND[part], **labels, part=part, status=health[part]
        )
    assigned = health.get("partition_assigned")
    says = "whether a GPU has a partition of its NVSwitches"
    out.gauge(
        "gpu_fabric_partition_assigned", says, None if assigned is None else assigned == "true", **labels
    )


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100
