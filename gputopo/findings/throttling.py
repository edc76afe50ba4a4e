"""Throttling: the clock event reasons of the driver, power limits, and temperatures near slowdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from gputopo.findings.rule import Fault, Rule, by_model, check, each_gpu, present, rule_of, threshold
from gputopo.reference.clock_events import CLOCK_EVENTS, UNTHROTTLED, idle, reasons_of, unnamed
from gputopo.values.finding import Severity
from gputopo.values.machine import Gpu, Machine

LOW_DRAW_SHARE = threshold("throttling.LOW_DRAW_SHARE")
LIMIT_SHARE = threshold("throttling.LIMIT_SHARE")
NEAR_C = threshold("throttling.NEAR_C")
MAX_THRESHOLD_C = threshold("throttling.MAX_THRESHOLD_C")
COOL_C = threshold("throttling.COOL_C")


# By clock event reason. The severities follow NVIDIA/DCGM and GPUd: hardware slowdowns make a node unhealthy,
# software slowdowns do not.
_REASONS = (
    *("sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown"),
    *("hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"),
)
THROTTLE: Mapping[str, Rule] = {
    reason: rule_of(
        f"throttle.{reason}",
        *((LOW_DRAW_SHARE,) if reason == "sw_power_cap" else ()),
        title=CLOCK_EVENTS[reason].effect,
    )
    for reason in _REASONS
}
THROTTLE_UNKNOWN = rule_of("throttle.unknown")
HW_THERMAL_S = threshold("throttling.HW_THERMAL_S")
POWER_BRAKE_S = threshold("throttling.POWER_BRAKE_S")
SW_THERMAL_S = threshold("throttling.SW_THERMAL_S")
ODD_TIME_S = threshold("throttling.ODD_TIME_S")
ODD_TIME_TIMES = threshold("throttling.ODD_TIME_TIMES")
TIMES = rule_of("throttle.time", HW_THERMAL_S, POWER_BRAKE_S, SW_THERMAL_S, ODD_TIME_S, ODD_TIME_TIMES)
# By the names of nvidia-smi's counters and of NVML's violation times.
_LONG = {
    "hw_thermal_slowdown": ("HW thermal slowdown", HW_THERMAL_S),
    "hw_power_brake_slowdown": ("HW power brake slowdown", POWER_BRAKE_S),
    "sw_thermal_slowdown": ("SW thermal slowdown", SW_THERMAL_S),
    "thermal": ("thermal slowdown", SW_THERMAL_S),
}
FAN_STOPPED_C = threshold("throttling.FAN_STOPPED_C")
FAN_COOL_C = threshold("throttling.FAN_COOL_C")
FAN_STOPPED = rule_of("thermal.fan_stopped", FAN_STOPPED_C, FAN_COOL_C)
_THERMAL = ("sw_thermal_slowdown", "hw_thermal_slowdown")
_HARDWARE_CAUSES = ("hw_thermal_slowdown", "hw_power_brake_slowdown")

LIMIT_BELOW_DEFAULT = rule_of("power.limit_below_default", LIMIT_SHARE)
LIMIT_OVERRULED = rule_of("power.limit_overruled", LIMIT_SHARE)
NEAR_SLOWDOWN = rule_of("thermal.near_slowdown", NEAR_C, MAX_THRESHOLD_C, COOL_C)
MEMORY_HOT = rule_of("thermal.memory_hot", MAX_THRESHOLD_C)


def throttle_rule(reason: str) -> Rule | None:
    """Return the rule of a clock event reason; None if it is no throttling."""
    return None if reason in UNTHROTTLED else THROTTLE.get(reason, THROTTLE_UNKNOWN)


def throttle_message(reason: str) -> str:
    """Return the message for a clock event reason that has a rule."""
    return THROTTLE[reason].title if reason in THROTTLE else f"{THROTTLE_UNKNOWN.title} {unnamed(reason)}"


def explained(reasons: Iterable[str]) -> bool:
    """Return whether a known throttle reason is among these: then a low clock is no further finding."""
    return any(reason in THROTTLE for reason in reasons)


def has_named_cause(reason: str, others: Iterable[str]) -> bool:
    """Return whether this is the general HW slowdown, reported beside the bit that names its cause."""
    return reason == "hw_slowdown" and any(one in _HARDWARE_CAUSES for one in others)


def in_rule_order(reasons: Iterable[str]) -> list[str]:
    """Return clock event reasons in the order of `THROTTLE`, unknown ones last by name."""
    order = list(THROTTLE)
    return sorted(reasons, key=lambda name: (order.index(name) if name in order else len(order), name))


@check(*THROTTLE.values(), THROTTLE_UNKNOWN)
def slowdowns(machine: Machine) -> Iterator[Fault]:
    """Find the reasons for which GPUs are throttled."""
    gpus = present(machine)
    for reason, rule in THROTTLE.items():
        for gpu in gpus:
            reasons = reasons_of(gpu.throttle)
            if reason in reasons and not has_named_cause(reason, reasons):
                if reason != "sw_power_cap":
                    yield rule.fault(gpu, rule.title, _throttle_evidence(gpu))
                elif (fault := _power_cap(gpu, rule)) is not None:
                    yield fault
    for gpu in gpus:
        unknown = [name for name in reasons_of(gpu.throttle) if throttle_rule(name) is THROTTLE_UNKNOWN]
        if unknown:
            says = f"{THROTTLE_UNKNOWN.title} {', '.join(map(unnamed, unknown))}"
            yield THROTTLE_UNKNOWN.fault(gpu, says, _throttle_evidence(gpu))


@each_gpu(LIMIT_BELOW_DEFAULT, LIMIT_OVERRULED)
def power_limits(gpu: Gpu) -> Iterator[Fault]:
    """Find lowered limits, and lower ones enforced than were set."""
    power = gpu.power_w
    names = ("limit", "default_limit", "enforced_limit", "draw")
    evidence = {f"{name}_w": getattr(power, name) for name in names}
    if _is_limited(gpu):
        says = f"power limit {power.limit:.0f} W, default {power.default_limit:.0f} W"
        yield LIMIT_BELOW_DEFAULT.fault(gpu, says, evidence)
    if _is_below(power.enforced_limit, power.limit):
        says = f"enforced power limit {power.enforced_limit:.0f} W, set {power.limit:.0f} W"
        yield LIMIT_OVERRULED.fault(gpu, says, evidence)


@check(TIMES)
def times(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that were throttled by heat or a power brake, for long or far longer than their peers.

    Those that are throttled at present have a finding already.
    """
    for gpu in present(machine):
        if {*_THERMAL, "hw_power_brake_slowdown"} & {*reasons_of(gpu.throttle)}:
            continue
        spent = {name: (gpu.violation_ns or {}).get(name, 0) / 1e9 for name in _LONG}
        long = [name for name, seconds in spent.items() if seconds >= _LONG[name][1].value]
        odd = [name for name, seconds in spent.items() if _is_odd_time(name, seconds, _peers(machine, gpu))]
        if long or odd:
            words = (f"{_LONG[name][0]} for {_duration(spent[name])}" for name in long or odd)
            beside = "" if long else ", far longer than GPUs of this model"
            says = f"{', '.join(words)} since the driver was loaded{beside}"
            evidence = {f"{name}_s": round(spent[name]) for name in long or odd}
            yield TIMES.fault(gpu, says, evidence, "warning" if long else "info")


@check(FAN_STOPPED)
def fans(machine: Machine) -> Iterator[Fault]:
    """Find fans that stand still on a warm GPU, or on a cool one where those of all peers run."""
    for gpu in present(machine):
        heat = gpu.temperature_c.gpu
        if gpu.fan_percent != 0 or heat is None:
            continue
        peers = _peers(machine, gpu)
        others = len(peers) > 1 and all(
            one.fan_percent and (one.temperature_c.gpu or FAN_COOL_C.value) < FAN_COOL_C.value
            for one in peers
        )
        if heat >= FAN_STOPPED_C.value or others:
            evidence = {"fan_percent": 0, "temperature_c": heat}
            yield FAN_STOPPED.fault(gpu, f"fan at 0% at {heat} °C", evidence)


@each_gpu(NEAR_SLOWDOWN, MEMORY_HOT)
def temperatures(gpu: Gpu) -> Iterator[Fault | None]:
    """Compare with the GPU's own thresholds. One in thermal slowdown has a finding already."""
    if not {*_THERMAL} & {*reasons_of(gpu.throttle)}:
        yield from (_near_slowdown(gpu), _hot_memory(gpu))


def degrees_left(gpu: Gpu) -> int | None:
    """Return the degrees Celsius until thermal slowdown, 0 or less during it; None if unknown.

    From the margin (T.Limit) where the GPU reports one, with the margin at which it slows down (0 or less);
    else from the absolute threshold.
    """
    now = gpu.temperature_c
    if now.margin is not None:
        if now.gpu is not None and now.gpu < COOL_C.value:
            return None
        return now.margin - min(now.margin_slowdown or 0, 0)
    return None if now.gpu is None or not _is_threshold(now.slowdown) else (now.slowdown or 0) - now.gpu


def _peers(machine: Machine, gpu: Gpu) -> list[Gpu]:
    return [one for group in by_model(machine) for one in group if gpu in group and one is not gpu]


def _is_odd_time(name: str, seconds: float, peers: Sequence[Gpu]) -> bool:
    if len(peers) < 2 or seconds < ODD_TIME_S.value:
        return False
    usual = median((one.violation_ns or {}).get(name, 0) / 1e9 for one in peers)
    return seconds >= ODD_TIME_TIMES.value * usual


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _power_cap(gpu: Gpu, rule: Rule) -> Fault | None:
    """Return the fault of a GPU at its power limit, or below it; a lowered limit has its own finding.

    Some GPUs report a power cap while idle (A10, A40, RTX A6000 and RTX 5090 in P8 at 0 %, in published
    captures): no fault.
    """
    if _is_limited(gpu) or idle(gpu):
        return None
    draw, limit = gpu.power_w.draw, gpu.power_w.enforced_limit or gpu.power_w.limit
    if draw is not None and limit and draw < LOW_DRAW_SHARE.value * limit:
        says = f"SW power cap at a power draw of only {draw:.0f} of {limit:.0f} W"
        return rule.fault(gpu, says, _throttle_evidence(gpu), "warning")
    can_rise = limit is not None and (gpu.power_w.max or 0) > limit
    return rule.fault(gpu, rule.title, _throttle_evidence(gpu), case="limit can rise" if can_rise else None)


def _is_limited(gpu: Gpu) -> bool:
    return _is_below(gpu.power_w.limit, gpu.power_w.default_limit)


def _is_below(limit_w: float | None, other_w: float | None) -> bool:
    return limit_w is not None and other_w is not None and limit_w < other_w * (1 - LIMIT_SHARE.value)


def _throttle_evidence(gpu: Gpu) -> dict[str, object]:
    return {
        "mask": None if gpu.throttle.mask is None else f"{gpu.throttle.mask:#x}",
        "reasons": list(reasons_of(gpu.throttle)),
        "core_mhz": gpu.clocks_mhz.sm.now or gpu.clocks_mhz.graphics.now,
        "power_w": gpu.power_w.draw,
        "temperature_c": gpu.temperature_c.gpu,
    }


def _near_slowdown(gpu: Gpu) -> Fault | None:
    now = gpu.temperature_c
    left = degrees_left(gpu)
    too_warm = (
        now.gpu is not None and _is_threshold(now.max_operating) and now.gpu >= (now.max_operating or 0)
    )
    near = left is not None and left <= NEAR_C.value
    if not too_warm and not near:
        return None
    facts = {name: getattr(now, name) for name in now.__struct_fields__}
    evidence = {name: value for name, value in facts.items() if value is not None} | {"degrees_left": left}
    words = [f"{now.gpu} °C"] if now.gpu is not None else []
    if left is not None and near:
        words.append(f"{left} °C below slowdown" if left > 0 else "at or above the slowdown temperature")
    if too_warm:
        words.append(f"max operating temperature {now.max_operating} °C")
    severity: Severity = "error" if left is not None and left <= 0 else "warning"
    return NEAR_SLOWDOWN.fault(gpu, ", ".join(words), evidence, severity)


def _hot_memory(gpu: Gpu) -> Fault | None:
    now, limit = gpu.temperature_c.memory, gpu.temperature_c.memory_max_operating
    if now is None or limit is None or not _is_threshold(limit) or now < limit:
        return None
    evidence = {"memory": now, "memory_max_operating": limit}
    return MEMORY_HOT.fault(gpu, f"memory at {now} °C, max operating temperature {limit} °C", evidence)


def _is_threshold(value: int | None) -> bool:
    return value is not None and 0 < value <= MAX_THRESHOLD_C.value
