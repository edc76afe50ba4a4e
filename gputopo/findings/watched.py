"""Findings over time: the checks over a History, of a watch or of a log."""

from collections.abc import Iterator, Mapping
from math import isfinite

from gputopo.findings.driver import GPU_LOST, XID, xid_case
from gputopo.findings.pcie import (
    FLAPS,
    GENERATION_DEGRADED,
    LINK_FLAPPING,
    LOADED_SAMPLES,
    LOADED_SHARE,
    generation_fault,
)
from gputopo.findings.rule import (
    Fault,
    Finding,
    Rule,
    Threshold,
    check,
    named,
    present,
    worst_first,
)
from gputopo.findings.throttling import (
    THROTTLE,
    THROTTLE_UNKNOWN,
    explained,
    has_named_cause,
    in_rule_order,
    throttle_message,
    throttle_rule,
)
from gputopo.findings.usage import BUSY_PERCENT
from gputopo.reference.clock_events import decode
from gputopo.reference.expectations import expected_link
from gputopo.values.history import GpuHistory, History
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import DRIVER, Subject

SAG_SHARE = Threshold(
    "sagging core clock",
    0.10,
    "below the highest mean",
    "Clocks of a GPU under steady load drift some percent as it warms up. Ours",
)
SAG_SAMPLES = Threshold("samples under load before sagging is reported", 20, "samples", "Ours")

CLOCKS_SAGGING = Rule(
    "clocks.sagging",
    title="core clock sagging under load",
    remedy="Watch temperature and power (gputopo inspect --watch); check cooling, power supply and clock "
    "locks.",
    thresholds=(SAG_SHARE, SAG_SAMPLES, BUSY_PERCENT),
)


def find_watched(machine: Machine, history: History) -> tuple[Finding, ...]:
    """Return the findings for the samples so far, errors first. `machine` is the one that is watched."""
    return worst_first(finding for one in WATCH_CHECKS for finding in one(machine, history))


def _watched(machine: Machine, history: History) -> Iterator[tuple[Gpu, GpuHistory]]:
    for gpu in present(machine):
        if gpu.index in history.gpus:
            yield gpu, history.gpus[gpu.index]


@check(XID)
def _xids(machine: Machine, history: History) -> Iterator[Finding]:
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    for xid, count in history.xids.items():
        case = xid_case(xid.code)
        where = named(gpus[xid.gpu]) if xid.gpu in gpus else "unknown GPU"
        times = "once" if count == 1 else f"{count} times"
        yield XID.finding(
            DRIVER if xid.gpu is None else Subject.of_gpus([xid.gpu]),
            f"{where}: Xid {xid.code} reported {times}: {case.says}",
            {"xid": xid.code, "count": count},
            case.severity,
            remedy=case.remedy,
        )
    if history.more_xids:
        yield XID.finding(
            DRIVER,
            f"{history.more_xids} further Xid events of other kinds reported",
            {"count": history.more_xids},
        )


@check(GPU_LOST)
def _silent(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu in machine.gpus:
        seen = history.gpus.get(gpu.index)
        if seen is not None and seen.silent:
            yield GPU_LOST.fault(
                gpu,
                f"no answer in {seen.silent} of {seen.samples} samples",
                {"silent_moments": seen.silent, "moments": seen.samples},
            )


@check(*THROTTLE.values(), THROTTLE_UNKNOWN)
def _slowdowns(machine: Machine, history: History) -> Iterator[Fault]:
    reasons = {gpu: _reasons(seen) for gpu, seen in history.gpus.items()}
    for name in in_rule_order({name for each in reasons.values() for name in each}):
        rule = throttle_rule(name)
        if rule is None:
            continue
        for gpu, seen in _watched(machine, history):
            mine = reasons[gpu.index]
            if name in mine and not _has_named_cause(name, mine):
                samples, seconds = mine[name]
                share = seconds / seen.watched_s if seen.watched_s > 0 else samples / max(seen.samples, 1)
                yield rule.fault(
                    gpu,
                    f"{throttle_message(name)}, {_percent(share)} of the time",
                    {"share": round(share, 4), "seconds": round(seconds, 1), "reason": name},
                    part=name,
                )


@check(LINK_FLAPPING)
def _flapping(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu, seen in _watched(machine, history):
        if seen.link_changes >= FLAPS.value:
            yield LINK_FLAPPING.fault(
                gpu,
                f"PCIe link changed {seen.link_changes} times under load ({_tally(seen)})",
                {
                    "changes": seen.link_changes,
                    "working_moments": seen.loaded,
                    "generations": {str(one): count for one, count in sorted(seen.generations.items())},
                    "widths": {str(one): count for one, count in sorted(seen.widths.items())},
                },
            )


@check(GENERATION_DEGRADED)
def _generations(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu, seen in _watched(machine, history):
        enough = seen.loaded >= LOADED_SAMPLES.value and seen.loaded > LOADED_SHARE.value * seen.samples
        if not enough or not seen.generations:
            continue
        best, top = max(seen.generations), gpu.pcie.gen_max
        evidence: dict[str, object] = {"best": best, "due": top, "working_moments": seen.loaded}
        rates = [expected_link(generation, gpu.pcie.width_now) for generation in (best, top)]
        if rates[0] and rates[1]:
            evidence["copy_gb_per_s"] = [rate.copy_to_device_gb_per_s for rate in rates if rate]
        fault = generation_fault(gpu, best, f"at most, in {seen.loaded} samples under load", evidence)
        if fault is not None:
            yield fault


@check(CLOCKS_SAGGING)
def _sagging(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu, seen in _watched(machine, history):
        if seen.mean_mhz is None or seen.clocked < SAG_SAMPLES.value or explained(_reasons(seen)):
            continue
        if seen.mean_mhz < seen.best_mean_mhz * (1 - SAG_SHARE.value) and isfinite(seen.best_mean_mhz):
            yield CLOCKS_SAGGING.fault(
                gpu,
                f"core clock fell from {seen.best_mean_mhz:.0f} to {seen.mean_mhz:.0f} MHz under load; no "
                "throttle reason reported",
                {"mhz": round(seen.mean_mhz), "before_mhz": round(seen.best_mean_mhz)},
            )


def _tally(seen: GpuHistory) -> str:
    generations = ", ".join(f"generation {one}: {count}" for one, count in sorted(seen.generations.items()))
    widths = ", ".join(f"x{one}: {count}" for one, count in sorted(seen.widths.items()))
    return f"{generations or 'generation unknown'}; {widths or 'width unknown'}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "under 1%"


def _reasons(seen: GpuHistory) -> dict[str, tuple[int, float]]:
    """Return the samples and the seconds with each throttle reason."""
    found: dict[str, tuple[int, float]] = {}
    for mask, count in seen.masks.items():
        for name in decode(mask):
            samples, seconds = found.get(name, (0, 0.0))
            found[name] = samples + count, seconds + seen.mask_s.get(mask, 0.0)
    return found


def _has_named_cause(name: str, reasons: Mapping[str, tuple[int, float]]) -> bool:
    """Return whether another bit always named the cause of the general hardware slowdown."""
    causes = [other for other in reasons if has_named_cause(name, (other,))]
    return bool(causes) and sum(reasons[one][0] for one in causes) >= reasons[name][0]


WATCH_CHECKS = (_xids, _silent, _slowdowns, _flapping, _generations, _sagging)
