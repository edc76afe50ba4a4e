"""Throttling: the clock event reasons of the driver, power limits, and temperatures near slowdown."""

from collections.abc import Iterable, Iterator, Mapping

from gputopo.findings.rule import Case, Fault, Rule, Threshold, check, each_gpu, present
from gputopo.reference import CLOCK_EVENTS, LOAD_STATES, clock_event_words, throttle_reasons
from gputopo.values.finding import Severity
from gputopo.values.history import BUSY_PERCENT
from gputopo.values.machine import Gpu, Machine

LOW_DRAW_SHARE = Threshold(
    "low power draw at a power cap",
    0.8,
    "of the enforced limit",
    (
        "not measured on hardware: a GPU at its own power limit draws about that much; well below it, "
        "another limit applies, of slot, cables or several GPUs together"
    ),
)
LIMIT_SHARE = Threshold(
    "lowered power limit",
    0.02,
    "below the other limit",
    (
        "not measured on hardware: limits are set in whole watts and reported in milliwatts; less than "
        "this is rounding"
    ),
)
NEAR_C = Threshold(
    "near slowdown",
    5,
    "°C",
    "not measured on hardware: GeForce cards target 83 or 84 °C and slow down at 95",
)
MAX_THRESHOLD_C = Threshold(
    "highest valid temperature threshold",
    120,
    "°C",
    "Some drivers report 127 for every unknown threshold (NVIDIA/nvidia-settings issue 34)",
)
COOL_C = Threshold(
    "temperature below which margins are not used",
    65,
    "°C",
    (
        "Some H100 report a margin of 0 or less while cool (GPUd has its check off by default for that); "
        "thresholds are 82 to 101 °C (gpus.csv)"
    ),
)


LIMIT_CAN_RISE = Case(
    "limit can rise",
    "",
    severity="info",
    remedy=(
        "None needed under full load; better cooling or a higher limit (sudo nvidia-smi -i GPU -pl "
        "MAX_WATTS) allows higher clocks. At low power draw check the power cables of the card and "
        "limits for several GPUs (nvidia-smi -q -d POWER)."
    ),
)
# By clock event reason. The severities follow NVIDIA/DCGM and GPUd: hardware slowdowns make a node unhealthy,
# software slowdowns do not.
THROTTLE: Mapping[str, Rule] = {
    "sw_power_cap": Rule(
        "throttle.sw_power_cap",
        CLOCK_EVENTS["sw_power_cap"].effect,
        remedy=(
            "None needed under full load; better cooling allows higher clocks. At low power draw check the "
            "power cables of the card and limits for several GPUs (nvidia-smi -q -d POWER)."
        ),
        severities=("info", "warning"),
        thresholds=(LOW_DRAW_SHARE,),
        cases=(LIMIT_CAN_RISE,),
    ),
    "hw_slowdown": Rule(
        "throttle.hw_slowdown",
        CLOCK_EVENTS["hw_slowdown"].effect,
        remedy=(
            "See nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER for the cause. Check fans, dust, power "
            "cables and power supply."
        ),
        severities=("error",),
    ),
    "sync_boost": Rule(
        "throttle.sync_boost",
        CLOCK_EVENTS["sync_boost"].effect,
        remedy="If this is not intended, remove the group with the tool that created it (dcgmi config "
        "--syncboost 0).",
        severities=("info",),
    ),
    "sw_thermal_slowdown": Rule(
        "throttle.sw_thermal_slowdown",
        CLOCK_EVENTS["sw_thermal_slowdown"].effect,
        remedy=(
            "Improve the air flow (fans, dust, space between cards, air temperature), or lower the power "
            "limit."
        ),
        fits="cooling",
    ),
    "hw_thermal_slowdown": Rule(
        "throttle.hw_thermal_slowdown",
        CLOCK_EVENTS["hw_thermal_slowdown"].effect,
        remedy=(
            "Stop the load and improve the cooling: fans, dust, heat sink and thermal paste, space between "
            "cards."
        ),
        severities=("error",),
        fits="cooling",
    ),
    "hw_power_brake_slowdown": Rule(
        "throttle.hw_power_brake_slowdown",
        CLOCK_EVENTS["hw_power_brake_slowdown"].effect,
        remedy=(
            "Check the power cables of the card, the power supply and its load. Servers brake their GPUs "
            "when a supply fails or the chassis exceeds its power budget."
        ),
        severities=("error",),
        fits="power",
    ),
    "display_clock_setting": Rule(
        "throttle.display_clock_setting",
        CLOCK_EVENTS["display_clock_setting"].effect,
        remedy="Detach displays from GPUs that compute, or lower the refresh rate.",
        severities=("info",),
    ),
    "board_limit": Rule(
        "throttle.board_limit",
        CLOCK_EVENTS["board_limit"].effect,
        remedy="Check that every power socket of the card has its own cable.",
        fits="power",
    ),
    "reliability": Rule(
        "throttle.reliability",
        CLOCK_EVENTS["reliability"].effect,
        remedy="None needed: the GPU runs as fast as its manufacturer allows.",
        severities=("info",),
    ),
}
THROTTLE_UNKNOWN = Rule(
    "throttle.unknown",
    "throttled, unknown reason bit",
    remedy="Look the bit up in nvml.h of the driver (nvmlClocksEventReason...), and report it to gputopo.",
    severities=("info",),
)
HW_THERMAL_S = Threshold(
    "time in HW thermal slowdown",
    600,
    "s since the driver was loaded",
    (
        "not measured on hardware: the hardware acts where the driver's own slowdown was not enough: "
        "minutes are not usual"
    ),
)
POWER_BRAKE_S = Threshold(
    "time in HW power brake slowdown",
    600,
    "s since the driver was loaded",
    (
        "not measured on hardware: power supplies brake for seconds when one fails; minutes mean too "
        "little power"
    ),
)
SW_THERMAL_S = Threshold(
    "time in SW thermal slowdown",
    3600,
    "s since the driver was loaded",
    "not measured on hardware: minutes add up in warm rooms over weeks; an hour means too little cooling",
)
TIMES = Rule(
    "throttle.time",
    "throttled for long since the driver was loaded",
    remedy=(
        "If it is heat, check fans, dust, space between cards and air temperature. If it is the power "
        "brake, check cables, power supplies and the chassis' power budget. See whether the time grows: "
        "nvidia-smi -q -d PERFORMANCE."
    ),
    thresholds=(HW_THERMAL_S, POWER_BRAKE_S, SW_THERMAL_S),
)
# By the names of nvidia-smi's counters and of NVML's violation times.
_LONG = {
    "hw_thermal_slowdown": ("HW thermal slowdown", HW_THERMAL_S),
    "hw_power_brake_slowdown": ("HW power brake slowdown", POWER_BRAKE_S),
    "sw_thermal_slowdown": ("SW thermal slowdown", SW_THERMAL_S),
    "thermal": ("thermal slowdown", SW_THERMAL_S),
}
_THERMAL = ("sw_thermal_slowdown", "hw_thermal_slowdown")
_HARDWARE_CAUSES = ("hw_thermal_slowdown", "hw_power_brake_slowdown")

LIMIT_BELOW_DEFAULT = Rule(
    "power.limit_below_default",
    "power limit set below the default",
    remedy=(
        "If this is not intended, restore it with sudo nvidia-smi -i GPU -pl DEFAULT_WATTS (until "
        "reboot), and look for a boot script that lowers it."
    ),
    thresholds=(LIMIT_SHARE,),
)
LIMIT_OVERRULED = Rule(
    "power.limit_overruled",
    "enforced power limit below the configured one",
    remedy=(
        "Look for another limit: the server's management (BMC, power budget), or a limit for a module of "
        "several GPUs (nvidia-smi -q -d POWER)."
    ),
    thresholds=(LIMIT_SHARE,),
)
NEAR_SLOWDOWN = Rule(
    "thermal.near_slowdown",
    "temperature near or above the slowdown temperature",
    remedy="Improve the air flow before long runs: fans, dust, space between cards, air temperature.",
    severities=("warning", "error"),
    thresholds=(NEAR_C, MAX_THRESHOLD_C, COOL_C),
    fits="cooling",
)
MEMORY_HOT = Rule(
    "thermal.memory_hot",
    "memory at its max operating temperature",
    remedy=(
        "Improve the air flow at the back plate, replace the memory's thermal pads, or lower the power limit."
    ),
    thresholds=(MAX_THRESHOLD_C,),
    fits="cooling",
)


def throttle_rule(reason: str) -> Rule | None:
    """Return the rule of a clock event reason; None if it is no throttling."""
    event = CLOCK_EVENTS.get(reason)
    return THROTTLE.get(reason, THROTTLE_UNKNOWN) if event is None or event.effect else None


def throttle_message(reason: str) -> str:
    """Return the message for a clock event reason that has a rule."""
    return THROTTLE[reason].title if reason in THROTTLE else _unknown_message([reason])


def _unknown_message(reasons: Iterable[str]) -> str:
    return f"{THROTTLE_UNKNOWN.title} {', '.join(clock_event_words(reasons, short=True))}"


def explained(reasons: Iterable[str]) -> bool:
    """Return whether a known throttle reason is among these: then a low clock is no further finding."""
    return any(reason in THROTTLE for reason in reasons)


def has_named_cause(reason: str, others: Iterable[str]) -> bool:
    """Return whether this is the general HW slowdown, reported beside the bit that names its cause."""
    return reason == "hw_slowdown" and any(other in _HARDWARE_CAUSES for other in others)


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
            reasons = throttle_reasons(gpu.throttle)
            if reason in reasons and not has_named_cause(reason, reasons):
                if reason != "sw_power_cap":
                    yield rule.fault(gpu, rule.title, _throttle_evidence(gpu))
                elif (fault := _power_cap(gpu, rule)) is not None:
                    yield fault
    for gpu in gpus:
        unknown = [name for name in throttle_reasons(gpu.throttle) if throttle_rule(name) is THROTTLE_UNKNOWN]
        if unknown:
            yield THROTTLE_UNKNOWN.fault(gpu, _unknown_message(unknown), _throttle_evidence(gpu))


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


@each_gpu(TIMES)
def times(gpu: Gpu) -> Iterator[Fault]:
    """Find GPUs that were throttled for long by heat or a power brake.

    Those that are throttled at present have a finding already.
    """
    if {*_THERMAL, "hw_power_brake_slowdown"} & {*throttle_reasons(gpu.throttle)}:
        return
    spent = {name: (gpu.violation_ns or {}).get(name, 0) / 1e9 for name in _LONG}
    long = [name for name, seconds in spent.items() if seconds >= _LONG[name][1].value]
    if long:
        words = (
            f"{_LONG[name][0]} for "
            + (f"{spent[name] / 3600:.1f} h" if spent[name] >= 3600 else f"{spent[name] / 60:.0f} min")
            for name in long
        )
        says = f"{', '.join(words)} since the driver was loaded"
        yield TIMES.fault(gpu, says, {f"{name}_s": round(spent[name]) for name in long})


@each_gpu(NEAR_SLOWDOWN, MEMORY_HOT)
def temperatures(gpu: Gpu) -> Iterator[Fault | None]:
    """Compare with the GPU's own thresholds. One in thermal slowdown has a finding already."""
    if not {*_THERMAL} & {*throttle_reasons(gpu.throttle)}:
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


def _power_cap(gpu: Gpu, rule: Rule) -> Fault | None:
    """Return the fault of a GPU at its power limit, or below it; a lowered limit has its own finding.

    Some GPUs report a power cap while idle (A10, A40, RTX A6000 and RTX 5090 in P8 at 0 %, in published
    captures): no fault.
    """
    if _is_limited(gpu) or is_idle(gpu):
        return None
    draw, limit = gpu.power_w.draw, gpu.power_w.enforced_limit or gpu.power_w.limit
    if draw is not None and limit and draw < LOW_DRAW_SHARE.value * limit:
        says = f"SW power cap at a power draw of only {draw:.0f} of {limit:.0f} W"
        return rule.fault(gpu, says, _throttle_evidence(gpu), "warning")
    can_rise = limit is not None and (gpu.power_w.max or 0) > limit
    return rule.fault(gpu, rule.title, _throttle_evidence(gpu), case=LIMIT_CAN_RISE if can_rise else None)


def _is_limited(gpu: Gpu) -> bool:
    return _is_below(gpu.power_w.limit, gpu.power_w.default_limit)


def _is_below(limit_w: float | None, other_w: float | None) -> bool:
    return limit_w is not None and other_w is not None and limit_w < other_w * (1 - LIMIT_SHARE.value)


def _throttle_evidence(gpu: Gpu) -> dict[str, object]:
    return {
        "mask": None if gpu.throttle.mask is None else f"{gpu.throttle.mask:#x}",
        "reasons": list(throttle_reasons(gpu.throttle)),
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


def is_idle(gpu: Gpu) -> bool:
    """Return whether the GPU is known to have been idle, or little used in a power-saving P-state.

    This is not the opposite of `under_load`: if nothing is known, both are False. A GPU that is used and
    stays in such a state is throttled, not idle.
    """
    used = gpu.utilization_percent.gpu
    if "gpu_idle" in throttle_reasons(gpu.throttle) or used == 0:
        return True
    saving = gpu.pstate is not None and gpu.pstate not in LOAD_STATES
    return saving and (used is None or used < BUSY_PERCENT)
