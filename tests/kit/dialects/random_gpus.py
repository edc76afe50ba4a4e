"""GPUs with random values, or none, for the facts that a driver prints in a dialect."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from gputopo.values.machine import Driver, Gpu, GpuProcess, Machine
from tests.kit.dialects import smi

# NVML's bits: nvmlClocksEventReason* in nvml.h.
_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_NAMES = ("NVIDIA A100-SXM4-80GB", "Tesla K80", "GeForce GTX 1070", "Graphics Device <1>")
_ACTIONS = ("none", "reset", "reboot", "drain p2p", "drain and reset")
_HEALTH = ("healthy", "full", "false", "true", "none", "limited capacity")
_PROCESS_KINDS = ("compute", "graphics", "compute+graphics", "mps")


def _among(*found: Any) -> Callable[[Random], Any]:
    return lambda random: random.choice(found)


def _between(low: int, high: int, factor: float = 1) -> Callable[[Random], Any]:
    return lambda random: random.choice((low, high, random.randint(low, high))) * factor


_OF_FACT: dict[str, Callable[[Random], Any]] = {
    "name": _among(*_NAMES),
    "brand": _among("Tesla", "GeForce", "Quadro RTX"),
    "architecture": _among("Ampere", "Ada Lovelace"),
    "uuid": lambda random: f"GPU-{random.getrandbits(128):032x}",
    "gsp_firmware_version": _among("470.82.01", "580.105.08"),
    "vbios_version": _among("86.04.50.00.01", "92.00.9E.00.02", "90.04.7a.40.73"),
    "board_part_number": _among("900-2G133-0080-000", "692-2G520-0200-000"),
    "inforom_version": _among("G520.0200.00.05", "G001.0000.03.03"),
    "pstate": lambda random: f"P{random.randint(0, 15)}",
    "virtualization": _among("none", "pass-through", "vgpu", "host vgpu"),
    "recovery_action": _among(*_ACTIONS),
    "pcie.gen_now": _between(1, 7),
    "pcie.gen_max": _between(1, 7),
    "pcie.gen_max_device": _between(1, 7),
    "pcie.gen_max_host": _between(1, 7),
    "fabric.state": _among("not started", "in progress", "completed"),
    "fabric.status": _among("success", "insufficient resources"),
    "ecc.counts[aggregate.sram_threshold_exceeded]": _between(0, 1),
}
_OF_KIND: dict[str, Callable[[Random], Any]] = {
    "device": lambda random: f"{random.randint(1, 0xFFFF):04x}",
    "subsystem": lambda random: f"{random.randint(1, 0xFFFFFFFF):08x}",
    "switch": _among(True, False),
    "yes": _among(True, False),
    "MiB": _between(0, 200_000),
    "MHz": _between(0, 15_000),
    "%": _between(0, 100),
    "C": _between(-20, 110),
    "W": lambda random: random.randint(0, 150_000) / 100,
    "us": _between(0, 10**12, 1000),
    "count": _between(0, 10**9),
    "banks": _between(0, 2560),
    "width": _among(1, 2, 4, 8, 16),
    "mode": _among("default", "exclusive_process", "prohibited"),
    "instances": _between(1, 7),
    "title": _among(*_HEALTH),
    "reset": _among("none", "reset", "drain and reset"),
    "drain": _among("none", "reset", "drain and reset"),
}


def machine(random: Random, era: int, dialect: smi.Dialect) -> Machine:
    """Return a machine of one to three GPUs that a driver prints completely."""
    gpus = [_gpu(random, era, dialect, index) for index in range(random.randint(1, 3))]
    cuda = "12.4" if era >= 410 and dialect != "csv" else None
    driver = Driver(version=f"{era}.104.05", cuda_version=cuda)
    return Machine(source="random", driver=driver, gpus=tuple(gpus))


def _gpu(random: Random, era: int, dialect: smi.Dialect, index: int) -> Gpu:
    facts: dict[str, Any] = {}
    reasons: list[str] = []
    absent = random.choice((0, 0.1, 0.5))
    for fact, kind in smi.facts(era, dialect):
        if fact.startswith("throttle."):
            reasons.append(fact.removeprefix("throttle."))
        elif random.random() >= absent and fact not in ("processes", "pci_address"):
            facts[fact] = (_OF_KIND if kind in ("reset", "drain") else _OF_FACT).get(
                fact, _OF_KIND.get(kind, _among("none"))
            )(random)
    _one_set_of_sram_counts(random, facts, dict(smi.facts(era, dialect)))
    if random.random() >= absent:
        known = [reason for reason in reasons if dialect != "csv" or reason in _BITS]
        facts["throttle.reasons"] = tuple(reason for reason in known if random.random() < 0.3)
        if "mask" in reasons:
            facts["throttle.mask"] = sum(_BITS[reason] for reason in facts["throttle.reasons"])
    facts |= {"name": facts.get("name", "Tesla M60"), "pci_address": f"0000:{5 + 0x40 * index:02x}:00.0"}
    gpu = smi.with_facts(index, facts)
    if dialect == "csv" or random.random() < absent:
        return gpu
    return msgspec.structs.replace(gpu, processes=_processes(random))


def _one_set_of_sram_counts(random: Random, facts: dict[str, Any], printed: dict[str, str]) -> None:
    """Keep either Turing's uncorrectable SRAM errors, or later GPUs' separate parity and SEC-DED errors."""
    apart = "ecc.counts[aggregate.sram_uncorrectable_parity]" in printed and random.random() < 0.5
    for since in ("volatile", "aggregate"):
        together = [f"ecc.counts[{since}.sram_uncorrectable]"]
        parts = [f"ecc.counts[{since}.sram_uncorrectable_{part}]" for part in ("parity", "secded")]
        for fact in together if apart else parts:
            facts.pop(fact, None)
        for fact in parts if apart else together:
            if fact in printed:
                facts.setdefault(fact, random.randint(0, 1000))
        for total in (f"ecc.corrected_{since}", f"ecc.uncorrected_{since}"):
            if total in printed and facts.keys() & {*together, *parts}:
                facts.setdefault(total, random.randint(0, 1000))  # otherwise the reader adds the parts


def _processes(random: Random) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(
            pid=random.randint(1, 4_000_000),
            kind=random.choice(_PROCESS_KINDS),
            name=random.choice(("python3", "Xorg", "nccl-tests")),
            memory_mib=random.choice((None, random.randint(0, 80_000))),
        )
        for _ in range(random.randint(0, 3))
    )
