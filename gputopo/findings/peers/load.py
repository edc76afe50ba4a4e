"""Facts that pass, compared between GPUs of one model at the same load: heat, idle power, clocks, links."""

from collections.abc import Iterator, Sequence
from statistics import median

from gputopo.findings import clocks, throttling
from gputopo.findings.links import pcie
from gputopo.findings.load import BUSY_PERCENT, LOAD_STATES, idle, use_of
from gputopo.findings.peers.compare import differences, known
from gputopo.findings.rule import Check, Fault, Rule, Threshold, by_model, check
from gputopo.reference.clock_events import IDLE, reasons_of
from gputopo.values.machine import Gpu, Machine

SAME_LOAD_POINTS = Threshold(
    "same load", 10, "% points from the median utilization", "Samples of one training differ by less. Ours"
)
IDLE_PERCENT = Threshold("idle", 5, "% utilization or less", "A desktop on an idle GPU uses less. Ours")
PEERS = Threshold("GPUs at the same load", 3, "GPUs", "A median of fewer is not meaningful. Ours")
HOTTER_C = Threshold(
    "hotter than peers",
    25,
    "°C above the median of the peers",
    "From the cool to the warm end of a chassis GPUs under load differ by up to 20 °C. Ours",
)
IDLE_DRAW_TIMES = Threshold("idle power draw beside peers", 2, "times the median of the peers", "Ours")
IDLE_DRAW_W = Threshold(
    "idle power draw beside peers, at least", 50, "W above the median of the peers", "Ours"
)
MEMORY_NOW_SHARE = Threshold(
    "memory clock in the same P-state", 0.05, "of the most common clock", "A P-state has one memory clock"
)

HOTTER = Rule(
    "thermal.hotter_than_peers",
    title="much hotter than GPUs of the same model at the same load",
    remedy="Check the fan, heat sink and thermal paste of this card, and what blocks its air flow.",
    thresholds=(HOTTER_C, SAME_LOAD_POINTS, PEERS),
)
IDLE_DRAW = Rule(
    "power.idle_draw",
    title="high power draw while idle",
    remedy="Look for a program that nvidia-smi does not list (containers, a hung kernel), then reset the GPU "
    "(sudo nvidia-smi -r -i GPU). If it stays, the power sensor or the board may be defective.",
    thresholds=(IDLE_DRAW_TIMES, IDLE_DRAW_W, IDLE_PERCENT, PEERS),
)
MEMORY_SLOWER = Rule(
    "clocks.memory_slower_than_peers",
    title="lower memory clock than GPUs of the same model in the same P-state",
    remedy="Remove locked memory clocks: sudo nvidia-smi -i GPU -rmc, and application clocks: -rac.",
    thresholds=(MEMORY_NOW_SHARE, PEERS),
)
LINK_SLOWER = Rule(
    "pcie.link_slower_than_peers",
    title="PCIe link of an idle GPU slower than those of the same model in the same P-state",
    remedy="Compare under load (gputopo bandwidth): an idle link may save power. If it stays slow, reseat "
    "card and riser, and look for PCIe errors in sudo dmesg.",
    severities=("info",),
    thresholds=(PEERS,),
)


@check(HOTTER)
def heat(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that are much hotter than their peers at the same load, but not near their limits."""
    covered = _accused(machine, throttling.temperatures) | _accused(machine, throttling.slowdowns)
    for group in _same_load(machine):
        for name, sensor in (("gpu", ""), ("memory", "memory ")):
            now = known(group, f"temperature_c.{name}")
            for gpu in group:
                others = [value for index, value in now.items() if index != gpu.index]
                if gpu.index not in now or gpu.index in covered or len(others) < PEERS.value - 1:
                    continue
                if now[gpu.index] >= median(others) + HOTTER_C.value:
                    yield HOTTER.fault(
                        gpu,
                        f"{sensor}{now[gpu.index]} °C, {median(others):.0f} °C on GPUs of this model at the "
                        "same load",
                        {f"{name}_c": now[gpu.index], "peers_c": median(others)} | _load(gpu),
                    )
                    covered.add(gpu.index)


@check(IDLE_DRAW)
def idle_draw(machine: Machine) -> Iterator[Fault]:
    """Find idle GPUs that draw much more power than idle peers, and that no program is known to use."""
    for group in _same_load(machine):
        draws = known(group, "power_w.draw")
        for gpu in group:
            others = [draw for index, draw in draws.items() if index != gpu.index]
            if not idle(gpu) or use_of(gpu) or gpu.processes or len(others) < PEERS.value - 1:
                continue
            draw, usual = draws.get(gpu.index, 0.0), median(others)
            if draw >= max(IDLE_DRAW_TIMES.value * usual, usual + IDLE_DRAW_W.value):
                yield IDLE_DRAW.fault(
                    gpu,
                    f"draws {draw:.0f} W while idle, {usual:.0f} W on idle GPUs of this model",
                    {"draw_w": draw, "peers_w": usual} | _load(gpu),
                )


@check(MEMORY_SLOWER)
def memory_clocks(machine: Machine) -> Iterator[Fault]:
    """Find memory clocks below those of the peers in the same P-state, where no other finding shows it."""
    covered = _accused(machine, clocks.low)
    for group in _same_load(machine):
        unthrottled = [gpu for gpu in group if not throttling.explained(reasons_of(gpu.throttle))]
        found = differences(unthrottled, "clocks_mhz.memory.now", MEMORY_NOW_SHARE.value)
        if found is None or found.common is None:
            continue
        for gpu in unthrottled:
            now = found.odd.get(gpu.index)
            limits = (gpu.clocks_mhz.memory.max, gpu.clocks_mhz.memory.application)
            lowered = min((one for one in limits if one), default=found.common) < found.common
            if now is not None and now < found.common and not lowered and gpu.index not in covered:
                yield MEMORY_SLOWER.fault(
                    gpu,
                    f"memory at {now} MHz in {gpu.pstate}, {found.common} MHz on GPUs of this model",
                    {"now_mhz": now, "peers_mhz": found.common} | _load(gpu),
                )


@check(LINK_SLOWER)
def links(machine: Machine) -> Iterator[Fault]:
    """Find idle links in a P-state for load that are slower than those of most peers in the same state."""
    covered = _accused(machine, pcie.generations) | _accused(machine, pcie.slots)
    for group in _same_load(machine):
        if group[0].pstate not in LOAD_STATES:
            continue
        found = differences(group, "pcie.gen_now")
        if found is None or found.common is None:
            continue
        for gpu in group:
            now = found.odd.get(gpu.index)
            slot = gpu.pcie.gen_max is not None and gpu.pcie.gen_max < found.common
            if now is not None and now < found.common and not slot and gpu.index not in covered:
                yield LINK_SLOWER.fault(
                    gpu,
                    f"PCIe link at generation {now} in {gpu.pstate}, {found.common} on GPUs of this model",
                    {"gen_now": now, "peers_gen": found.common} | _load(gpu),
                )


def _same_load(machine: Machine) -> list[list[Gpu]]:
    """Return the GPUs of one model in one P-state that are all idle, or all under about the same load."""
    groups: dict[tuple[str, str, bool], list[Gpu]] = {}
    for model in by_model(machine):
        for gpu in model:
            used = gpu.utilization_percent.gpu
            loaded = used is not None and used >= BUSY_PERCENT.value
            if gpu.pstate is None or used is None or (loaded and IDLE in reasons_of(gpu.throttle)):
                continue
            if loaded or used <= IDLE_PERCENT.value:
                groups.setdefault((gpu.name or "", gpu.pstate, loaded), []).append(gpu)
    return [alike for group in groups.values() if len(alike := _alike(group)) >= PEERS.value]


def _alike(group: Sequence[Gpu]) -> list[Gpu]:
    usual = median(gpu.utilization_percent.gpu or 0 for gpu in group)
    return [gpu for gpu in group if abs((gpu.utilization_percent.gpu or 0) - usual) <= SAME_LOAD_POINTS.value]


def _accused(machine: Machine, other: Check[[]]) -> set[int]:
    return {index for finding in other(machine) for index in finding.subject.gpus}


def _load(gpu: Gpu) -> dict[str, object]:
    return {"utilization_percent": gpu.utilization_percent.gpu, "pstate": gpu.pstate}
