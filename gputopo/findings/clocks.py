"""Clocks: different from GPUs of the same model, or low under load."""

from collections.abc import Iterator, Sequence
from statistics import median

from gputopo.findings import pcie, throttling
from gputopo.findings.compare import differences, known
from gputopo.findings.rule import Fault, Threshold, accused, by_model, check, present, rule_of, threshold
from gputopo.findings.throttling import explained
from gputopo.findings.usage import BUSY_PERCENT, busy
from gputopo.reference.clock_events import IDLE, LOAD_STATES, reasons_of
from gputopo.reference.expectations import expected_of
from gputopo.values import history
from gputopo.values.grouping import grouped
from gputopo.values.machine import Gpu, Machine

MEMORY_SHARE = threshold("clocks.MEMORY_SHARE")
CORE_SHARE = threshold("clocks.CORE_SHARE")
CORE_BUSY_SHARE = threshold("clocks.CORE_BUSY_SHARE")
MEMORY_BUSY_FLOOR = threshold("clocks.MEMORY_BUSY_FLOOR")
MEAN_BELOW_SHARE = threshold("clocks.MEAN_BELOW_SHARE")
CORE_BUSY_FLOOR = threshold("clocks.CORE_BUSY_FLOOR")
CORE_MAXIMUM_FLOOR = threshold("clocks.CORE_MAXIMUM_FLOOR")
MODEL_SHARE = threshold("clocks.MODEL_SHARE")

MEMORY_DIFFERS = rule_of("clocks.memory_differs", MEMORY_SHARE)
CORE_DIFFERS = rule_of("clocks.core_differs", CORE_SHARE)
APPLICATION_DIFFERS = rule_of("clocks.application_differs", MEMORY_SHARE)
APPLICATION_BELOW_DEFAULT = rule_of("clocks.application_below_default", MEMORY_SHARE)
CORE_BELOW_MAXIMUM = rule_of("clocks.core_below_maximum", CORE_BUSY_FLOOR, CORE_MAXIMUM_FLOOR, BUSY_PERCENT)
MEMORY_BELOW_MAXIMUM = rule_of("clocks.memory_below_maximum", MEMORY_BUSY_FLOOR, BUSY_PERCENT)
CORE_SLOWER_THAN_PEERS = rule_of(
    "clocks.core_slower_than_peers", CORE_BUSY_SHARE, MEAN_BELOW_SHARE, BUSY_PERCENT
)
MEMORY_BELOW_MODEL = rule_of("clocks.memory_below_model", MODEL_SHARE)


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
IDLE_PERCENT = threshold("clocks.IDLE_PERCENT")
PEERS = threshold("clocks.PEERS")
HOTTER_C = threshold("clocks.HOTTER_C")
MEMORY_NOW_SHARE = threshold("clocks.MEMORY_NOW_SHARE")

HOTTER = rule_of("thermal.hotter_than_peers", HOTTER_C, SAME_LOAD_POINTS, PEERS)
LOW_DRAW_SHARE = threshold("clocks.LOW_DRAW_SHARE")
ALIKE_SHARE = threshold("clocks.ALIKE_SHARE")
LOW_DRAW = rule_of("power.below_peers", LOW_DRAW_SHARE, ALIKE_SHARE, SAME_LOAD_POINTS, PEERS)
MEMORY_SLOWER = rule_of("clocks.memory_slower_than_peers", MEMORY_NOW_SHARE, PEERS)
LINK_SLOWER = rule_of("pcie.link_slower_than_peers", PEERS)


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
