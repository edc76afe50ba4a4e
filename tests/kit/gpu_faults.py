"""Faults of one GPU, each a function from a scenario and a GPU's number to the scenario with the fault."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.kit.specs import NOT_SUPPORTED, GpuSpec, ProcessSpec, Scenario, changed

# Bits of the mask of clock event reasons (nvmlClocksEventReason*)
_POWER_CAP, _HARDWARE, _THERMAL, _POWER_BRAKE = 0x4, 0x8, 0x20, 0x80

_SLOWEST = 2.5  # GT/s per lane: the first generation, to which links of idle cards fall
_SLOWER = {64.0: 32.0, 32.0: 16.0, 16.0: 8.0, 8.0: 5.0, 5.0: 2.5}


def one(scenario: Scenario, gpu: int, **fields: Any) -> Scenario:
    """Return the scenario with fields of one GPU changed."""
    return changed(scenario, gpus={gpu: fields})


def with_slot(scenario: Scenario, gpu: int, **fields: Any) -> Scenario:
    """Return the scenario with fields of the link of the bridge above a GPU changed."""
    above = scenario.gpus[gpu].parent
    bridges = tuple(
        replace(bridge, link=replace(bridge.link, **fields)) if bridge.address == above else bridge
        for bridge in scenario.bridges
    )
    return replace(scenario, bridges=bridges)


def _linked(scenario: Scenario, gpu: int, **fields: Any) -> Scenario:
    """Change the current link, which is the same at both ends."""
    link = replace(scenario.gpus[gpu].link, **fields)
    return with_slot(one(scenario, gpu, link=link), gpu, **fields)


def _answers(scenario: Scenario, gpu: int, *calls: str) -> GpuSpec:
    """Return the GPU. Raises ValueError if it refuses a call that would report the fault."""
    card = scenario.gpus[gpu]
    refused = [call for call in calls if card.refuses.get(call) == NOT_SUPPORTED]
    if refused:
        raise ValueError(f"GPU {gpu} of {scenario.name} ({card.name}) does not answer {refused[0]}")
    return card


def busy(scenario: Scenario, gpu: int, *, clock: float = 1.0, reasons: int = 0, **fields: Any) -> Scenario:
    """A GPU under load, its clocks at a share of their maximum, throttled for reasons (bits)."""
    card = scenario.gpus[gpu]
    graphics, sm, memory, video = card.max_clocks
    clocks = (int(graphics * clock), int(sm * clock), memory, int(video * clock))
    load: Mapping[str, Any] = {
        "clocks": clocks,
        "pstate": 0,
        "throttle": reasons,
        "utilization": (98, 61),
        "power_mw": int(card.power_enforced_mw * 0.87),
        "temperature": card.slowdown - 25,
        "memory_temperature": card.slowdown - 20,
        "margin": 23,
        "fan": None if card.fan is None else 62,
    }
    return one(scenario, gpu, **{**load, **fields})


def idle_link(scenario: Scenario) -> Scenario:
    """All links at the lowest speed and the cards idle, which tools often report as a fault."""
    for gpu in range(len(scenario.gpus)):
        scenario = _linked(one(scenario, gpu, utilization=(0, 0), throttle=0x1), gpu, speed=_SLOWEST)
    return scenario


def x1_riser(scenario: Scenario, gpu: int) -> Scenario:
    """One lane, because the slot has only one."""
    return with_slot(_linked(scenario, gpu, width=1), gpu, max_width=1)


def width_degraded(scenario: Scenario, gpu: int) -> Scenario:
    """Half of the lanes that card and slot both have, as for a badly seated card."""
    return _linked(scenario, gpu, width=scenario.gpus[gpu].link.max_width // 2)


def gen_degraded_under_load(scenario: Scenario, gpu: int) -> Scenario:
    """Under load, but the link is as slow as an idle card's."""
    return _linked(busy(scenario, gpu), gpu, speed=_SLOWEST)


def slot_slower(scenario: Scenario, gpu: int) -> Scenario:
    """A slot one generation below the card's."""
    slower = _SLOWER[scenario.gpus[gpu].link.max_speed]
    return with_slot(_linked(scenario, gpu, speed=slower), gpu, max_speed=slower)


def link_flapping(scenario: Scenario, gpu: int) -> Scenario:
    """Under load; each call reports another generation, 500 times."""
    top = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}[scenario.gpus[gpu].link.speed]
    return one(busy(scenario, gpu), gpu, gen_script=(top, 1) * 250)


def replay_errors(scenario: Scenario, gpu: int) -> Scenario:
    """Packets that were sent again."""
    return one(scenario, gpu, replays=1200)


def aer_errors(scenario: Scenario, gpu: int) -> Scenario:
    """Errors that the kernel counted."""
    return one(scenario, gpu, aer=(1200, 3, 0))


def nvlink_down(scenario: Scenario, gpu: int) -> Scenario:
    """The first NVLink that is up goes down, and so does its other end."""
    links = list(scenario.gpus[gpu].nvlinks)
    place = _first_nvlink(scenario, gpu)
    remote = links[place].remote
    links[place] = replace(links[place], remote=None)
    scenario = one(scenario, gpu, nvlinks=tuple(links))
    if isinstance(remote, int):
        there = list(scenario.gpus[remote].nvlinks)
        end = next(number for number, link in enumerate(there) if link.remote == gpu)
        there[end] = replace(there[end], remote=None)
        scenario = one(scenario, remote, nvlinks=tuple(there))
    return scenario


def nvlink_errors(scenario: Scenario, gpu: int) -> Scenario:
    """The first NVLink that is up counts replays, recoveries and checksum errors."""
    links = list(scenario.gpus[gpu].nvlinks)
    place = _first_nvlink(scenario, gpu)
    links[place] = replace(links[place], errors={0: 140, 1: 3, 2: 9000, 3: 7})
    return one(scenario, gpu, nvlinks=tuple(links))


def fabric_not_ready(scenario: Scenario, gpu: int) -> Scenario:
    """It is still joining its NVSwitches, as without a running fabric manager."""
    return one(scenario, gpu, fabric={"state": 2})


def _first_nvlink(scenario: Scenario, gpu: int) -> int:
    for place, link in enumerate(scenario.gpus[gpu].nvlinks):
        if link.remote is not None:
            return place
    raise ValueError(f"GPU {gpu} of {scenario.name} has no NVLink that is up")


def power_cap_low(scenario: Scenario, gpu: int) -> Scenario:
    """A power limit that was set to 60 % of the default."""
    card = scenario.gpus[gpu]
    limit = max(int(card.power_default_mw * 0.6), card.power_range_mw[0])
    return one(scenario, gpu, power_limit_mw=limit, power_enforced_mw=limit)


def power_capped(scenario: Scenario, gpu: int) -> Scenario:
    """Under load at its power limit, with reduced clocks."""
    limit = scenario.gpus[gpu].power_enforced_mw
    return busy(scenario, gpu, clock=0.85, reasons=_POWER_CAP, power_mw=int(limit * 0.998))


def thermal_slowdown(scenario: Scenario, gpu: int) -> Scenario:
    """Under load at its max operating temperature, with reduced clocks; below the hardware slowdown."""
    card = scenario.gpus[gpu]
    hot = min(card.max_operating or card.slowdown, card.slowdown - 8)
    return busy(scenario, gpu, clock=0.7, reasons=_THERMAL, temperature=hot, margin=0, fan=card.fan and 100)


def hw_slowdown(scenario: Scenario, gpu: int) -> Scenario:
    """Under load, and the power supply makes the card slow down."""
    return busy(scenario, gpu, clock=0.4, reasons=_HARDWARE | _POWER_BRAKE, power_mw=110_000)


def memory_clock_low(scenario: Scenario, gpu: int) -> Scenario:
    """A memory clock below cards of the same model."""
    card = scenario.gpus[gpu]
    top = list(card.max_clocks)
    top[2] = int(top[2] * 0.9)
    now = (*card.clocks[:2], min(card.clocks[2], top[2]), card.clocks[3])
    return one(scenario, gpu, max_clocks=tuple(top), clocks=now)


def order_swapped(scenario: Scenario, gpu: int) -> Scenario:
    """A core clock below its peers': CUDA puts the fastest first, so CUDA's order is not the PCI order."""
    graphics, sm, memory, video = scenario.gpus[gpu].max_clocks
    top = (int(graphics * 0.9), int(sm * 0.9), memory, video)
    now = tuple(map(min, scenario.gpus[gpu].clocks, top))
    return one(scenario, gpu, max_clocks=top, clocks=now)


def lost(scenario: Scenario, gpu: int) -> Scenario:
    """A GPU that is counted and refuses every call."""
    return one(scenario, gpu, lost="calls")


def ecc_uncorrected(scenario: Scenario, gpu: int) -> Scenario:
    """Memory errors that could not be corrected, since boot and in total."""
    card = _answers(scenario, gpu, "nvmlDeviceGetTotalEccErrors")
    return one(scenario, gpu, ecc_errors=(0, 0, 3, 3), ecc_at={**card.ecc_at, 2: (0, 0, 3, 3)})


def remap_pending(scenario: Scenario, gpu: int) -> Scenario:
    """A row that will be remapped at the next reset."""
    _answers(scenario, gpu, "nvmlDeviceGetRemappedRows")
    return one(scenario, gpu, remapped_rows=(0, 1, 1, 0))


def retired_pending(scenario: Scenario, gpu: int) -> Scenario:
    """A page that will be retired at the next reboot."""
    _answers(scenario, gpu, "nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPagesPendingStatus")
    return one(scenario, gpu, retired_pages=(0, 1), retired_pending=1)


def xid_79(scenario: Scenario, gpu: int) -> Scenario:
    """The kernel module reports that the GPU has fallen off the bus."""
    return replace(scenario, xids=(*scenario.xids, (gpu, 79)))


def busy_process(scenario: Scenario, gpu: int) -> Scenario:
    """Another user's training holds memory and computes."""
    card = scenario.gpus[gpu]
    total, used, _ = card.memory_bytes
    taken = total // 4
    process = ProcessSpec(31_337, "compute", taken)
    memory = (total, used + taken, total - used - taken)
    return busy(scenario, gpu, processes=(*card.processes, process), memory_bytes=memory)


def exclusive_mode(scenario: Scenario, gpu: int) -> Scenario:
    """Compute mode EXCLUSIVE_PROCESS."""
    return one(scenario, gpu, compute_mode=3)


def prohibited_mode(scenario: Scenario, gpu: int) -> Scenario:
    """Compute mode PROHIBITED."""
    return one(scenario, gpu, compute_mode=2)


def persistence_off(scenario: Scenario, gpu: int) -> Scenario:
    """Persistence mode off."""
    return one(scenario, gpu, persistence=0)


def mixed_cards(scenario: Scenario, gpu: int) -> Scenario:
    """A card of another model, with less of everything."""
    card = scenario.gpus[gpu]
    total = card.memory_bytes[0] * 3 // 4
    return one(
        scenario,
        gpu,
        name="NVIDIA Test-90",
        device_id="20f1",
        max_clocks=tuple(clock * 9 // 10 for clock in card.max_clocks),
        clocks=tuple(clock * 9 // 10 for clock in card.clocks),
        memory_bytes=(total, 0, total),
    )


def mixed_memory(scenario: Scenario, gpu: int) -> Scenario:
    """The same model with half the memory."""
    total = scenario.gpus[gpu].memory_bytes[0] // 2
    return one(scenario, gpu, memory_bytes=(total, 0, total))
