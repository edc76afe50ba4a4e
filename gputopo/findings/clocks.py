"""Clocks: different from GPUs of the same model, or low under load."""

from collections.abc import Iterator, Sequence
from statistics import median

from gputopo.findings import pcie, throttling
from gputopo.findings.compare import differences, known
from gputopo.findings.rule import Fault, Rule, Threshold, accused, by_model, check, present
from gputopo.findings.throttling import explained
from gputopo.findings.usage import BUSY_PERCENT, busy
from gputopo.reference.clock_events import IDLE, LOAD_STATES, reasons_of
from gputopo.reference.expectations import expected_of
from gputopo.values import history
from gputopo.values.grouping import grouped
from gputopo.values.machine import Gpu, Machine

MEMORY_SHARE = Threshold(
    "memory or application clock difference",
    0.01,
    "of the most common clock",
    "GPUs of one model have one memory clock; drivers round differently by 1 MHz (Tesla T4: 5000 of 5001)",
)
CORE_SHARE = Threshold(
    "core clock difference",
    0.02,
    "of the most common clock",
    "Reference and factory-overclocked GTX 1070 differ by 5% (1683 and 1771 MHz), clock steps are 15 MHz",
)
CORE_BUSY_SHARE = Threshold(
    "core clock below peers under load",
    0.1,
    "below the median of the peers",
    "not measured on hardware: GPUs of one model under the same load vary by chip and cooler, some 5%",
)
MEMORY_BUSY_FLOOR = Threshold(
    "memory clock under load",
    0.9,
    "of the maximum or application clock",
    (
        "CUDA runs GeForce GPUs in P2 with slower memory: 9251 of 9501 MHz (RTX 3080), 5005 of 5505 (GTX "
        "1080 Ti)"
    ),
)
MEAN_BELOW_SHARE = Threshold(
    "mean core clock below peers over many samples",
    0.05,
    "below the median of the peers",
    (
        "not measured on hardware: boost clocks of GPUs of one model differ by some percent with chips "
        "and temperatures"
    ),
)
CORE_BUSY_FLOOR = Threshold("core clock under load", 0.9, "of the rated boost or application clock")
CORE_MAXIMUM_FLOOR = Threshold(
    "core clock under load, where only NVML's maximum is known",
    0.65,
    "of the maximum clock",
    "Rated boost clocks are at least 0.68 of NVML's maximum (gpus.csv)",
)
MODEL_SHARE = Threshold(
    "memory clock below the model's",
    0.03,
    "below the reference clock",
    "NVML and published tables agree within this (gpus.csv)",
)

MEMORY_DIFFERS = Rule(
    "clocks.memory_differs",
    "max memory clock differs from GPUs of the same model",
    remedy=(
        "If the VBIOS version differs too, the card is of another build; else look for clock offsets. "
        "The slowest GPU sets the pace of synchronous training: use GPUs with the same clocks."
    ),
    thresholds=(MEMORY_SHARE,),
)
CORE_DIFFERS = Rule(
    "clocks.core_differs",
    "max core clock differs from GPUs of the same model",
    remedy=(
        "If the VBIOS version differs too, the card is of another build; else look for clock offsets. "
        "The slowest GPU sets the pace of synchronous training: use GPUs with the same clocks."
    ),
    severities=("info",),
    thresholds=(CORE_SHARE,),
)
APPLICATION_DIFFERS = Rule(
    "clocks.application_differs",
    "application clock differs from GPUs of the same model",
    remedy="Reset the application clocks: sudo nvidia-smi -i GPU -rac.",
    thresholds=(MEMORY_SHARE,),
)
APPLICATION_BELOW_DEFAULT = Rule(
    "clocks.application_below_default",
    "application clock set below the default",
    remedy="If not wanted, reset it: sudo nvidia-smi -i GPU -rac. Look for a start-up script that sets it.",
    thresholds=(MEMORY_SHARE,),
)
CORE_BELOW_MAXIMUM = Rule(
    "clocks.core_below_maximum",
    "low core clock under load, no throttle reason reported",
    remedy=(
        "See nvidia-smi -q -d CLOCK,PERFORMANCE. Remove locked clocks with sudo nvidia-smi -i GPU -rgc, "
        "application clocks with sudo nvidia-smi -i GPU -rac."
    ),
    thresholds=(CORE_BUSY_FLOOR, CORE_MAXIMUM_FLOOR, BUSY_PERCENT),
)
MEMORY_BELOW_MAXIMUM = Rule(
    "clocks.memory_below_maximum",
    "low memory clock under load, no throttle reason reported",
    remedy=(
        "See nvidia-smi -q -d CLOCK,PERFORMANCE. Remove locked memory clocks with sudo nvidia-smi -i GPU "
        "-rmc."
    ),
    thresholds=(MEMORY_BUSY_FLOOR, BUSY_PERCENT),
)
CORE_SLOWER_THAN_PEERS = Rule(
    "clocks.core_slower_than_peers",
    "lower core clock under load than GPUs of the same model",
    remedy="Compare temperature, power draw and cooling with the GPUs of the same model under load.",
    thresholds=(CORE_BUSY_SHARE, MEAN_BELOW_SHARE, BUSY_PERCENT),
)
MEMORY_BELOW_MODEL = Rule(
    "clocks.memory_below_model",
    "max memory clock below that of the model",
    remedy=(
        "Look for a clock offset or another VBIOS (nvidia-smi -q | grep -i vbios): the card may be "
        "another build sold under this name."
    ),
    thresholds=(MODEL_SHARE,),
)


@check(CORE_BELOW_MAXIMUM, MEMORY_BELOW_MAXIMUM, CORE_SLOWER_THAN_PEERS)
def low(machine: Machine) -> Iterator[Fault]:
    """Find low clocks under load without a throttle reason."""
    loaded = [gpu for gpu in present(machine) if busy(gpu) and not explained(reasons_of(gpu.throttle))]
    core = [fault for gpu in loaded if (fault := _low_core(gpu))]
    yield from core
    yield from (fault for gpu in loaded if (fault := _low_memory(gpu)))
    known = {gpu for fault in core for gpu in fault.gpus}
    for group in by_model(machine):
        yield from _slower([gpu for gpu in group if gpu in loaded and gpu.index not in known])


def below_default(gpu: Gpu) -> Fault | None:
    """Return the fault of a GPU whose application clocks are set below the default, or None."""
    found, words = {}, []
    for domain in ("memory", "core"):
        set_, default = (_clock(gpu, domain, kind) for kind in ("application", "default_application"))
        if set_ and default and set_ < default * (1 - MEMORY_SHARE.value):
            found[domain] = {"application_mhz": set_, "default_mhz": default}
            words.append(f"{domain} {set_} MHz, default {default}")
    return (
        APPLICATION_BELOW_DEFAULT.fault(gpu, f"application clock: {'; '.join(words)}", found)
        if found
        else None
    )


def below_model(gpu: Gpu) -> Fault | None:
    """Return the fault of a GPU whose max memory clock is below the reference, or None."""
    row, top = expected_of(gpu), gpu.clocks_mhz.memory.max
    of_model = row.max_memory_mhz if row else None
    if row is None or not of_model or not top or top >= of_model * (1 - MODEL_SHARE.value):
        return None
    says = f"max memory clock {top} MHz, {of_model} MHz for {row.name}"
    evidence = {"max_mhz": top, "expected_mhz": of_model, "source": row.source}
    return MEMORY_BELOW_MODEL.fault(gpu, says, evidence)


def _clock(gpu: Gpu, domain: str, kind: str) -> int | None:
    """Return a clock of the memory or of the core: of the SMs, or where that is unknown of the graphics
    domain. Captures of nvidia-smi have clocks for applications of the graphics domain alone.
    """
    clocks = gpu.clocks_mhz
    domains = (clocks.sm, clocks.graphics) if domain == "core" else (clocks.memory,)
    return next((value for one in domains if (value := getattr(one, kind))), None)


def _low_core(gpu: Gpu) -> Fault | None:
    now, top, set_ = (_clock(gpu, "core", kind) for kind in ("now", "max", "application"))
    graphics = gpu.clocks_mhz.graphics
    if graphics.now and graphics.max == top:  # one clock, reported twice
        now = min(now or graphics.now, graphics.now)
    expected = expected_of(gpu)
    boost = expected.boost_mhz if expected else None
    known = [clock for clock in (top, set_, boost) if clock]
    if now is None or not known:
        return None
    floor = (CORE_BUSY_FLOOR if set_ or boost else CORE_MAXIMUM_FLOOR).value
    at_least = floor * min(known)
    if now >= at_least:
        return None
    says = f"{now} MHz under load, expected at least {at_least:.0f}; no throttle reason reported"
    clocks = {"now_mhz": now, "max_mhz": top, "application_mhz": set_, "boost_mhz": boost}
    return CORE_BELOW_MAXIMUM.fault(gpu, says, clocks | {"least_share": floor} | _load(gpu))


def _low_memory(gpu: Gpu) -> Fault | None:
    now, top, set_ = (_clock(gpu, "memory", kind) for kind in ("now", "max", "application"))
    known = [clock for clock in (top, set_) if clock]
    floor = MEMORY_BUSY_FLOOR.value
    if now is None or not known or now >= floor * min(known):
        return None
    return MEMORY_BELOW_MAXIMUM.fault(
        gpu,
        f"memory at {now} MHz under load, expected at least {floor * min(known):.0f}; no throttle reason "
        "reported",
        {"now_mhz": now, "max_mhz": top, "application_mhz": set_, "least_share": floor, "pstate": gpu.pstate},
    )


def _slower(group: Sequence[Gpu]) -> Iterator[Fault]:
    """Compare the share of its max or application clock that each GPU of a model reaches under load."""
    clocks = {
        gpu.index: [_clock(gpu, "core", kind) for kind in ("now", "max", "application")] for gpu in group
    }
    limits = {index: min(filter(None, of[1:]), default=None) for index, of in clocks.items()}
    shares = {index: of[0] / limit for index, of in clocks.items() if of[0] and (limit := limits[index])}
    for gpu in (gpu for gpu in group if gpu.index in shares and len(shares) > 1):
        share = shares[gpu.index]
        usual = median(other for index, other in shares.items() if index != gpu.index)
        if share < usual * (1 - CORE_BUSY_SHARE.value):
            now = clocks[gpu.index][0]
            says = f"{now} MHz under load, {share:.0%} of its limit; same-model GPUs reach {usual:.0%}"
            evidence = {"now_mhz": now, "share_of_due": round(share, 3), "peers_share": round(usual, 3)}
            yield CORE_SLOWER_THAN_PEERS.fault(gpu, says, evidence)


# Samples of one training differ by less.
SAME_LOAD_POINTS = Threshold("same load", history.SAME_LOAD_POINTS, "% points from the median utilization")
IDLE_PERCENT = Threshold(
    "idle",
    5,
    "% utilization or less",
    "not measured on hardware: a desktop on an idle GPU uses less",
)
PEERS = Threshold(
    "GPUs at the same load",
    3,
    "GPUs",
    "not measured on hardware: a median of fewer is not meaningful",
)
HOTTER_C = Threshold(
    "hotter than peers",
    25,
    "°C above the median of the peers",
    (
        "not measured on hardware: from the cool to the warm end of a chassis GPUs under load differ by "
        "up to 20 °C"
    ),
)
MEMORY_NOW_SHARE = Threshold(
    "memory clock in the same P-state",
    0.05,
    "of the most common clock",
    "A P-state has one memory clock",
)

HOTTER = Rule(
    "thermal.hotter_than_peers",
    "much hotter than GPUs of the same model at the same load",
    remedy="Check the fan, heat sink and thermal paste of this card, and what blocks its air flow.",
    thresholds=(HOTTER_C, SAME_LOAD_POINTS, PEERS),
    fits="cooling",
)
LOW_DRAW_SHARE = Threshold(
    "low power draw under load",
    0.6,
    "of the median of the peers",
    "not measured on hardware: GPUs of one training draw within a tenth of one another",
)
ALIKE_SHARE = Threshold("peers with the same power draw", 0.8, "of their median, or more")
LOW_DRAW = Rule(
    "power.below_peers",
    "much lower power draw than GPUs of the same model at the same load",
    remedy=(
        "Look whether its program waits or does less than on the other GPUs (NCCL_DEBUG=INFO, py-spy "
        "dump --pid PID), and compare clocks and limits (nvidia-smi -q -d CLOCK,POWER,PERFORMANCE)."
    ),
    thresholds=(LOW_DRAW_SHARE, ALIKE_SHARE, SAME_LOAD_POINTS, PEERS),
)
MEMORY_SLOWER = Rule(
    "clocks.memory_slower_than_peers",
    "lower memory clock than GPUs of the same model in the same P-state",
    remedy=(
        "Remove locked memory clocks with sudo nvidia-smi -i GPU -rmc, application clocks with sudo "
        "nvidia-smi -i GPU -rac."
    ),
    thresholds=(MEMORY_NOW_SHARE, PEERS),
)
LINK_SLOWER = Rule(
    "pcie.link_slower_than_peers",
    "PCIe link slower than those of the same model: under load, or idle in the same P-state",
    remedy=(
        "Compare under load (gputopo bandwidth): an idle link may save power. If it stays slow, reseat "
        "card and riser, and look for PCIe errors in sudo dmesg."
    ),
    severities=("info", "warning"),
    thresholds=(PEERS,),
    fits="slot",
)


@check(HOTTER, LOW_DRAW)
def beside_peers(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that are much hotter than their peers at the same load, but not near their limits, or
    that draw much less power under load.
    """
    covered = accused(machine, throttling.temperatures, throttling.slowdowns)
    slow = accused(machine, throttling.slowdowns, throttling.power_limits, low)
    for group in _same_load(machine):
        for name, sensor in (("gpu", ""), ("memory", "memory ")):
            for gpu, heat, others in _with_others(group, f"temperature_c.{name}"):
                usual = median(others)
                if heat >= usual + HOTTER_C.value and gpu.index not in covered:
                    says = f"{sensor}{heat} °C, {usual:.0f} °C on GPUs of this model at the same load"
                    yield HOTTER.fault(gpu, says, {f"{name}_c": heat, "peers_c": usual} | _load(gpu))
                    covered.add(gpu.index)
        for gpu, draw, others in _with_others(group, "power_w.draw"):
            usual = median(others)
            little = draw < LOW_DRAW_SHARE.value * usual and min(others) >= ALIKE_SHARE.value * usual
            if little and busy(gpu) and gpu.index not in slow:
                says = f"draws {draw:.0f} W under load, {usual:.0f} W on GPUs of this model at the same load"
                yield LOW_DRAW.fault(gpu, says, {"draw_w": draw, "peers_w": usual} | _load(gpu))


@check(MEMORY_SLOWER, LINK_SLOWER)
def below_peers(machine: Machine) -> Iterator[Fault]:
    """Find memory clocks, and links in a P-state for load, below those of most peers in the same P-state,
    where no other finding shows it.
    """
    slow, narrow = accused(machine, low), accused(machine, pcie.generations, pcie.slots)
    for group in _same_load(machine):
        unthrottled = [gpu for gpu in group if not throttling.explained(reasons_of(gpu.throttle))]
        for gpu, now, common in _odd(unthrottled, "clocks_mhz.memory.now", MEMORY_NOW_SHARE.value):
            limits = (gpu.clocks_mhz.memory.max, gpu.clocks_mhz.memory.application)
            lowered = min((one for one in limits if one), default=common) < common
            if now < common and not lowered and gpu.index not in slow:
                says = f"memory at {now} MHz in {gpu.pstate}, {common} MHz on GPUs of this model"
                yield MEMORY_SLOWER.fault(gpu, says, {"now_mhz": now, "peers_mhz": common} | _load(gpu))
        for gpu, now, common in _odd(group if group[0].pstate in LOAD_STATES else (), "pcie.gen_now"):
            slot = gpu.pcie.gen_max is not None and gpu.pcie.gen_max < common
            if now < common and not slot and gpu.index not in narrow:
                says = f"PCIe link at generation {now} in {gpu.pstate}, {common} on GPUs of this model"
                yield LINK_SLOWER.fault(gpu, says, {"gen_now": now, "peers_gen": common} | _load(gpu))


def _with_others(group: Sequence[Gpu], path: str) -> Iterator[tuple[Gpu, float, list[float]]]:
    """Yield the GPUs with their value of a fact and those of their peers, where there are enough."""
    values = known(group, path)
    for gpu in group:
        others = [value for index, value in values.items() if index != gpu.index]
        if gpu.index in values and len(others) >= PEERS.value - 1:
            yield gpu, values[gpu.index], others


def _odd(group: Sequence[Gpu], path: str, noise: float = 0.0) -> Iterator[tuple[Gpu, int, int]]:
    """Yield the GPUs that differ from most in a fact, with their value and the common one."""
    found = differences(group, path, noise)
    if found is not None and found.common is not None:
        yield from ((gpu, found.odd[gpu.index], found.common) for gpu in group if gpu.index in found.odd)


def _same_load(machine: Machine) -> list[list[Gpu]]:
    """Return the GPUs of one model in one P-state that are all idle, or all under about the same load."""
    groups = []
    for model in by_model(machine):
        used = {gpu.index: gpu.utilization_percent.gpu for gpu in model if gpu.pstate is not None}
        loads = {index: percent for index, percent in used.items() if percent is not None}
        loaded = {index: percent >= BUSY_PERCENT.value for index, percent in loads.items()}
        comparable = [
            gpu
            for gpu in model
            if gpu.index in loads
            and (loads[gpu.index] <= IDLE_PERCENT.value or loaded[gpu.index])
            and not (loaded[gpu.index] and IDLE in reasons_of(gpu.throttle))
        ]
        for group in grouped(((gpu.pstate, loaded[gpu.index]), gpu) for gpu in comparable).values():
            usual = median(loads[gpu.index] for gpu in group)
            groups.append([gpu for gpu in group if abs(loads[gpu.index] - usual) <= SAME_LOAD_POINTS.value])
    return [group for group in groups if len(group) >= PEERS.value]


def _load(gpu: Gpu) -> dict[str, object]:
    return {"utilization_percent": gpu.utilization_percent.gpu, "pstate": gpu.pstate}
