"""Clocks and power under load that are low, or differ between GPUs of the same model."""

from collections.abc import Iterator, Sequence

from gputopo.findings import throttling
from gputopo.findings.compare import known
from gputopo.findings.rule import Fault, Rule, Threshold, accused, by_model, check, present
from gputopo.findings.throttling import explained
from gputopo.findings.usage import BUSY_PERCENT, busy
from gputopo.reference import expected_of, throttle_reasons
from gputopo.values import history
from gputopo.values.grouping import grouped, medians_of_others
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
    "core clock under load, if only NVML's maximum is known",
    0.65,
    "of the maximum clock",
    "Rated boost clocks are at least 0.68 of NVML's maximum (gpus.csv)",
)

MEMORY_DIFFERS = Rule(
    "clocks.memory_differs",
    "max memory clock differs from GPUs of the same model",
    remedy=(
        "If the VBIOS version differs too, the card is a different build; otherwise look for clock "
        "offsets. The slowest GPU limits synchronous training: use GPUs with the same clocks."
    ),
    thresholds=(MEMORY_SHARE,),
)
CORE_DIFFERS = Rule(
    "clocks.core_differs",
    "max core clock differs from GPUs of the same model",
    remedy=(
        "If the VBIOS version differs too, the card is a different build; otherwise look for clock "
        "offsets. The slowest GPU limits synchronous training: use GPUs with the same clocks."
    ),
    severities=("info",),
    thresholds=(CORE_SHARE,),
)
APPLICATION_BELOW_DEFAULT = Rule(
    "clocks.application_below_default",
    "application clock set below the default",
    remedy="If this is not intended, reset it with sudo nvidia-smi -i GPU -rac, and look for a boot "
    "script that sets it.",
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
# Samples of one training job differ by less.
SAME_LOAD_POINTS = Threshold("same load", history.SAME_LOAD_POINTS, "% points from the median utilization")
PEERS = Threshold(
    "GPUs at the same load",
    3,
    "GPUs",
    "not measured on hardware: a median of fewer is not meaningful",
)

LOW_DRAW_SHARE = Threshold(
    "low power draw under load",
    0.6,
    "of the median of the peers",
    "not measured on hardware: GPUs of one training draw within a tenth of each other",
)
ALIKE_SHARE = Threshold("peers with the same power draw", 0.8, "of their median, or more")
LOW_DRAW = Rule(
    "power.below_peers",
    "much lower power draw than GPUs of the same model under the same load",
    remedy=(
        "Check whether its program waits or does less than on the other GPUs (NCCL_DEBUG=INFO, py-spy "
        "dump --pid PID), and compare clocks and limits (nvidia-smi -q -d CLOCK,POWER,PERFORMANCE)."
    ),
    thresholds=(LOW_DRAW_SHARE, ALIKE_SHARE, SAME_LOAD_POINTS, PEERS),
)


@check(CORE_BELOW_MAXIMUM, MEMORY_BELOW_MAXIMUM, CORE_SLOWER_THAN_PEERS)
def check_low_clocks(machine: Machine) -> Iterator[Fault]:
    """Find low clocks under load without a throttle reason."""
    loaded = [gpu for gpu in present(machine) if busy(gpu) and not explained(throttle_reasons(gpu.throttle))]
    core = [fault for gpu in loaded if (fault := _low_core(gpu))]
    yield from core
    yield from (fault for gpu in loaded if (fault := _low_memory(gpu)))
    known = {gpu for fault in core for gpu in fault.gpus}
    for group in by_model(machine):
        yield from _slower([gpu for gpu in group if gpu in loaded and gpu.index not in known])


def below_default(gpu: Gpu) -> Fault | None:
    """Return the fault of a GPU whose application clocks are set below the default, or None."""
    lowered, words = {}, []
    for domain in ("memory", "core"):
        set_, default = (_clock(gpu, domain, kind) for kind in ("application", "default_application"))
        if set_ and default and set_ < default * (1 - MEMORY_SHARE.value):
            lowered[domain] = {"application_mhz": set_, "default_mhz": default}
            words.append(f"{domain} {set_} MHz, default {default}")
    return (
        APPLICATION_BELOW_DEFAULT.fault(gpu, f"application clock: {'; '.join(words)}", lowered)
        if lowered
        else None
    )


def _clock(gpu: Gpu, domain: str, kind: str) -> int | None:
    """Return a memory or core clock. The core clock is the SM clock, or else the graphics clock.

    Captures of nvidia-smi have application clocks only for the graphics domain.
    """
    clocks = gpu.clocks_mhz
    domains = (clocks.sm, clocks.graphics) if domain == "core" else (clocks.memory,)
    return next((value for of_domain in domains if (value := getattr(of_domain, kind))), None)


def _low_core(gpu: Gpu) -> Fault | None:
    now, top, set_ = (_clock(gpu, "core", kind) for kind in ("now", "max", "application"))
    graphics = gpu.clocks_mhz.graphics
    if graphics.now and graphics.max == top:  # the same clock, reported twice
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
    """Find GPUs that reach a lower share of their max or application clock than their peers under load."""
    clocks = {
        gpu.index: [_clock(gpu, "core", kind) for kind in ("now", "max", "application")] for gpu in group
    }
    limits = {
        index: min(filter(None, now_and_limits[1:]), default=None) for index, now_and_limits in clocks.items()
    }
    shares = {
        index: now_and_limits[0] / limit
        for index, now_and_limits in clocks.items()
        if now_and_limits[0] and (limit := limits[index])
    }
    usual = medians_of_others(shares)
    for gpu in (gpu for gpu in group if gpu.index in usual):
        share, of_peers = shares[gpu.index], usual[gpu.index]
        if share < of_peers * (1 - CORE_BUSY_SHARE.value):
            now = clocks[gpu.index][0]
            says = f"{now} MHz under load, {share:.0%} of its limit; same-model GPUs reach {of_peers:.0%}"
            evidence = {"now_mhz": now, "share_of_due": round(share, 3), "peers_share": round(of_peers, 3)}
            yield CORE_SLOWER_THAN_PEERS.fault(gpu, says, evidence)


@check(LOW_DRAW)
def check_against_peers(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that draw much less power than their peers at the same load: they wait, or do less work."""
    slow = accused(machine, throttling.slowdowns, throttling.power_limits, check_low_clocks)
    by_state = (grouped((gpu.pstate, gpu) for gpu in model if busy(gpu)) for model in by_model(machine))
    for gpus in (gpus for states in by_state for gpus in states.values()):
        like = history.at_the_usual_load({gpu.index: gpu.utilization_percent.gpu or 0 for gpu in gpus})
        group = [gpu for gpu in gpus if gpu.index in like]
        draws = known(group, "power_w.draw")
        usual = medians_of_others(draws) if len(draws) >= PEERS.value else {}
        for gpu in (gpu for gpu in group if gpu.index in usual and gpu.index not in slow):
            draw, of_peers = draws[gpu.index], usual[gpu.index]
            alike = all(
                watts >= ALIKE_SHARE.value * of_peers for at, watts in draws.items() if at != gpu.index
            )
            if alike and draw < LOW_DRAW_SHARE.value * of_peers:
                says = (
                    f"draws {draw:.0f} W under load, {of_peers:.0f} W on GPUs of this model at the same load"
                )
                yield LOW_DRAW.fault(gpu, says, {"draw_w": draw, "peers_w": of_peers} | _load(gpu))


def _load(gpu: Gpu) -> dict[str, object]:
    return {"utilization_percent": gpu.utilization_percent.gpu, "pstate": gpu.pstate}
