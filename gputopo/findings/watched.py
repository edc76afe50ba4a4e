"""Rules over a History: what was seen of the GPUs and the host in the samples of a watch, a log or a run."""

import math
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from statistics import median
from typing import NamedTuple

from gputopo.findings import network, rising
from gputopo.findings.clocks import CORE_SLOWER_THAN_PEERS, MEAN_BELOW_SHARE
from gputopo.findings.driver import GPU_LOST
from gputopo.findings.kernel_log import OFF_THE_BUS
from gputopo.findings.pcie import (
    FLAPS,
    GENERATION_DEGRADED,
    LINK_FLAPPING,
    LOADED_SAMPLES,
    LOADED_SHARE,
    WIDTH_DEGRADED,
    generation_fault,
)
from gputopo.findings.rule import Check, Fault, Rule, Threshold, check, named, present, worst_first
from gputopo.findings.throttling import (
    THROTTLE,
    THROTTLE_UNKNOWN,
    explained,
    has_named_cause,
    in_rule_order,
    throttle_message,
    throttle_rule,
)
from gputopo.findings.usage import BUSY_PERCENT, GPU_BUSY
from gputopo.findings.xids import XID, xid_case
from gputopo.reference import decode_clock_events, expected_link
from gputopo.values.finding import SEVERITIES, Finding
from gputopo.values.history import GpuHistory, History
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.verdict import HardwareFault
from gputopo.values.subject import DRIVER, MACHINE, Subject

SAG_SHARE = Threshold(
    "sagging core clock",
    0.1,
    "below the highest mean",
    "not measured on hardware: clocks of a GPU under steady load drift some percent as it warms up",
)
MIN_LOADED = Threshold("samples under load before clocks and links are judged", 20, "samples")
SHORT_SHARE = Threshold("throttled so briefly that it explains no low clock", 0.05, "of the time")
MIN_HOST_SAMPLES = Threshold("samples of the host before its load is judged", 10, "samples")

LINK_SLOWER = Rule(
    "pcie.link_slower_than_peers",
    "PCIe link slower under load than on GPUs of the same model",
    remedy=(
        "Compare with gputopo bandwidth. If it is still slow, reseat card and riser, and look for PCIe "
        "errors in sudo dmesg."
    ),
    thresholds=(MIN_LOADED,),
    fits="slot",
)
CLOCKS_SAGGING = Rule(
    "clocks.sagging",
    "core clock sagging under load",
    remedy=(
        "Watch temperature and power (gputopo inspect --watch); check cooling, power supply and clock locks."
    ),
    thresholds=(SAG_SHARE, MIN_LOADED, SHORT_SHARE, BUSY_PERCENT),
)
HOST_BUSY = Rule(
    "host.busy",
    "other programs take the CPU, the host swaps, or has no memory left",
    remedy="See top and free -m. Stop other programs, or use less host memory (fewer examples prefetched).",
    thresholds=(MIN_HOST_SAMPLES,),
)


def find_watched(machine: Machine, history: History) -> tuple[Finding, ...]:
    """Return the findings for the samples so far, errors first. `machine` is the one that is watched."""
    return worst_first(finding for watch in WATCHES for finding in watch.check(machine, history))


def find_after_watch(
    machine: Machine, history: History, later: Machine, minutes: float
) -> tuple[Finding, ...]:
    """Return the findings of a watch, errors first: of its samples, and of the errors counted meanwhile.

    `machine`: as read before; `later`: with the network ports as they are `minutes` later.
    """
    counted = network.rising(later, machine.nics, minutes) + rising.watched(machine, history)
    return worst_first([*find_watched(machine, history), *counted])


class RunFaults(NamedTuple):
    """What the samples of a program's run show of its GPUs and of the host."""

    faults: tuple[HardwareFault, ...]  # errors first
    loaded: Mapping[int, int]  # samples under load, by GPU that has enough of them
    not_checked: Mapping[str, str | None]  # for each id of `WATCHES`, why it was not checked; None: it was


def faults_of_run(machine: Machine, history: History) -> RunFaults:
    """Return the faults during a run, but for throttling that is too brief to explain a low clock."""
    loaded = {index: seen.loaded for index, seen in history.gpus.items() if is_loaded(seen)}
    not_checked = {watch.id: watch.not_checked(history) for watch in WATCHES}
    faults = []
    for watch in (watch for watch in WATCHES if not_checked[watch.id] is None):
        for fault in watch.check.function(machine, history):
            gpu = fault.gpus[0] if fault.gpus else None
            throttled_briefly = fault.evidence.get("share", 1.0) < SHORT_SHARE.value
            if throttled_briefly or (watch.under_load and gpu not in loaded):
                continue
            name = f"GPU {fault.about.index}: " if isinstance(fault.about, Gpu) else ""
            says = f"{name}{fault.says}"
            faults.append(HardwareFault(id=fault.rule.id, severity=fault.severity, says=says, gpu=gpu))
    order: tuple[str, ...] = SEVERITIES
    faults.sort(key=lambda fault: -order.index(fault.severity))
    return RunFaults(tuple(faults), loaded, not_checked)


def is_loaded(seen: GpuHistory) -> bool:
    """Return whether a GPU was under load in enough samples to judge its clocks and links."""
    return seen.loaded >= MIN_LOADED.value


def _watched(machine: Machine, history: History) -> Iterator[tuple[Gpu, GpuHistory]]:
    for gpu in present(machine):
        if gpu.index in history.gpus:
            yield gpu, history.gpus[gpu.index]


@check(XID)
def _xids(machine: Machine, history: History) -> Iterator[Fault]:
    gpus = machine.by_index
    silent = history.lost | {index for index, seen in history.gpus.items() if seen.silent}
    for xid, count in history.xids.items():
        if xid.code == OFF_THE_BUS and xid.gpu in silent:
            continue  # it is lost: `_silent`
        case = xid_case(xid.code, gpu=gpus.get(-1 if xid.gpu is None else xid.gpu))
        where = named(gpus[xid.gpu]) if xid.gpu in gpus else "unknown GPU"
        times = "once" if count == 1 else f"{count} times"
        yield XID.fault(
            DRIVER if xid.gpu is None else Subject.of_gpus([xid.gpu]),
            f"{where}: Xid {xid.code} reported {times}: {case.says}",
            {"xid": xid.code, "count": count},
            case=case,
        )
    if history.more_xids:
        yield XID.fault(
            DRIVER,
            f"{history.more_xids} further Xid events of other kinds reported",
            {"count": history.more_xids},
        )


@check(GPU_LOST)
def _silent(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu in machine.gpus:
        seen = history.gpus.get(gpu.index)
        if seen is not None and (seen.silent or gpu.index in history.lost):
            says = f"no answer in {seen.silent} of {seen.samples} samples"
            if gpu.index in history.lost:
                says = "lost, as NVML reports" + (f"; {says}" if seen.silent else "")
            yield GPU_LOST.fault(gpu, says, {"silent_moments": seen.silent, "moments": seen.samples})


@check(*THROTTLE.values(), THROTTLE_UNKNOWN)
def _slowdowns(machine: Machine, history: History) -> Iterator[Fault]:
    shares = {gpu: _throttled(seen) for gpu, seen in history.gpus.items()}
    for name in in_rule_order({name for by_reason in shares.values() for name in by_reason}):
        rule = throttle_rule(name)
        if rule is None:
            continue
        for gpu, _ in _watched(machine, history):
            if name in shares[gpu.index]:
                share, seconds = shares[gpu.index][name]
                percent = f"{share:.0%}" if share >= 0.005 else "under 1%"
                yield rule.fault(
                    gpu,
                    f"{throttle_message(name)}, {percent} of the time",
                    {"share": round(share, 4), "seconds": round(seconds, 1), "reason": name},
                    part=name,
                )


@check(CORE_SLOWER_THAN_PEERS)
def _slower(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu, _ in _watched(machine, history):
        peers = history.peers.get(gpu.index)
        if peers is not None and peers.samples >= MIN_LOADED.value:
            share = peers.shares / peers.samples
            if 1 - share >= MEAN_BELOW_SHARE.value:
                yield CORE_SLOWER_THAN_PEERS.fault(
                    gpu,
                    f"core clock {1 - share:.0%} below GPUs of its model at the same load, mean of "
                    f"{peers.samples} samples",
                    {"peers_share": round(share, 3), "samples": peers.samples},
                )


@check(CLOCKS_SAGGING)
def _sagging(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu, seen in _watched(machine, history):
        if seen.mean_mhz is None or seen.clocked < MIN_LOADED.value:
            continue
        throttled = explained(
            name for name, (share, _) in _throttled(seen).items() if share >= SHORT_SHARE.value
        )
        low = seen.mean_mhz < seen.best_mean_mhz * (1 - SAG_SHARE.value) and isfinite(seen.best_mean_mhz)
        if low and not throttled:
            yield CLOCKS_SAGGING.fault(
                gpu,
                f"core clock fell from {seen.best_mean_mhz:.0f} to {seen.mean_mhz:.0f} MHz under load; no "
                "throttle reason reported",
                {"mhz": round(seen.mean_mhz), "before_mhz": round(seen.best_mean_mhz)},
            )


@check(LINK_FLAPPING, GENERATION_DEGRADED, WIDTH_DEGRADED, LINK_SLOWER)
def _links(machine: Machine, history: History) -> Iterator[Fault]:
    """Find links that change repeatedly; else that fell, are below card and slot, or below the peers'."""
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    for gpu, seen in _watched(machine, history):
        if seen.link_changes >= FLAPS.value:
            yield LINK_FLAPPING.fault(
                gpu,
                f"PCIe link changed {seen.link_changes} times under load ({_tally(seen)})",
                {
                    "changes": seen.link_changes,
                    "working_moments": seen.loaded,
                    "generations": {
                        str(generation): count for generation, count in sorted(seen.generations.items())
                    },
                    "widths": {str(width): count for width, count in sorted(seen.widths.items())},
                },
            )
        elif fault := _fell(gpu, seen) or _below_slot(gpu, seen) or _below_peers(gpu, history, names):
            yield fault


@check(GPU_BUSY)
def _others(machine: Machine, history: History) -> Iterator[Fault]:
    for gpu, _ in _watched(machine, history):
        others = history.others.get(gpu.index)
        if others is None or not others.max:
            continue
        evidence = {"other_processes": others.max, "at_first": others.first}
        more = others.max - others.first
        if more:
            came = "another process started" if more == 1 else f"{more} other processes started"
            yield GPU_BUSY.fault(gpu, f"{came} during the run", evidence)
        else:
            there = "another process" if others.first == 1 else f"{others.first} other processes"
            yield GPU_BUSY.fault(gpu, f"{there} used it from the start", evidence, "info")


@check(HOST_BUSY)
def _host(machine: Machine, history: History) -> Iterator[Fault]:
    host = history.host
    if host is not None and host.busy is not None and host.samples >= MIN_HOST_SAMPLES.value:
        share = host.other_cpu_share
        yield HOST_BUSY.fault(MACHINE, f"host: {host.busy}", {"other_cpu_share": share})


def _fell(gpu: Gpu, seen: GpuHistory) -> Fault | None:
    """Return the fault of a link that fell for good: seen last, and for longer than load takes to begin."""
    for rule, kinds, before, now in (
        (WIDTH_DEGRADED, seen.widths, "x", seen.link[1]),
        (GENERATION_DEGRADED, seen.generations, "generation ", seen.link[0]),
    ):
        if now is not None and kinds and now < max(kinds) and kinds.get(now, 0) >= MIN_LOADED.value:
            says = f"PCIe link fell from {before}{max(kinds)} to {before}{now} under load"
            return rule.fault(gpu, says, {"before": max(kinds), "now": now, "samples": kinds[now]})
    return None


def _below_slot(gpu: Gpu, seen: GpuHistory) -> Fault | None:
    enough = seen.loaded >= LOADED_SAMPLES.value and seen.loaded > LOADED_SHARE.value * seen.samples
    if not enough or not seen.generations:
        return None
    best, top = max(seen.generations), gpu.pcie.gen_max
    evidence: dict[str, object] = {"best": best, "due": top, "working_moments": seen.loaded}
    rates = [expected_link(generation, gpu.pcie.width_now) for generation in (best, top)]
    if rates[0] and rates[1]:
        evidence["copy_gb_per_s"] = [rate.copy_to_device_gb_per_s for rate in rates if rate]
    return generation_fault(gpu, best, f"at most, in {seen.loaded} samples under load", evidence)


def _below_peers(gpu: Gpu, history: History, names: Mapping[int, str | None]) -> Fault | None:
    """Return the fault of a link of half the lanes, or a generation less, than the median of its model's.

    The median includes the GPU: if half of the GPUs have such a link, their slots may be so.
    """
    # Generation and lanes that were seen most often under load.
    links = {
        index: (
            max(seen.generations, key=seen.generations.__getitem__),
            max(seen.widths, key=seen.widths.__getitem__),
        )
        for index, seen in history.gpus.items()
        if gpu.name and names.get(index) == gpu.name and is_loaded(seen) and seen.generations and seen.widths
    }
    # Logarithms of the rates: a recording may report any generation.
    log2_rates = {
        index: generation + math.log2(max(1, width)) for index, (generation, width) in links.items()
    }
    if gpu.index not in links or median(log2_rates.values()) < 1 + log2_rates[gpu.index]:
        return None
    generation, width = links[gpu.index]
    link = f"PCIe link generation {generation} x{width} under load"
    says = f"{link}, at least twice as fast on others of its model"
    return LINK_SLOWER.fault(gpu, says, {"generation": generation, "width": width})


def _tally(seen: GpuHistory) -> str:
    generations = ", ".join(
        f"generation {generation}: {count}" for generation, count in sorted(seen.generations.items())
    )
    widths = ", ".join(f"x{width}: {count}" for width, count in sorted(seen.widths.items()))
    return f"{generations or 'generation unknown'}; {widths or 'width unknown'}"


def _throttled(seen: GpuHistory) -> dict[str, tuple[float, float]]:
    """Return the share of the time and the seconds with each throttle reason.

    The general hardware slowdown counts where no other bit names its cause.
    """
    samples: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for mask, count in seen.masks.items():
        for name in (names := decode_clock_events(mask)):
            if not has_named_cause(name, names):
                samples[name] = samples.get(name, 0) + count
                seconds[name] = seconds.get(name, 0.0) + seen.mask_s.get(mask, 0.0)
    shares = (
        {name: passed / seen.watched_s for name, passed in seconds.items()}
        if seen.watched_s > 0
        else {name: count / max(seen.samples, 1) for name, count in samples.items()}
    )
    return {name: (share, seconds[name]) for name, share in shares.items()}


class Watch(NamedTuple):
    """A check over a history."""

    id: str  # its rule, or the group of its rules
    title: str
    needs: tuple[str, ...]  # fields of the samples
    check: Check[[History]]
    shown: Callable[[History], bool] = lambda history: True  # whether a history has them
    reason: str = ""
    under_load: bool = True  # what it finds on a GPU is judged from `MIN_LOADED` samples under load on

    def not_checked(self, history: History) -> str | None:
        """Return why a history does not show what the check looks for; None: it does."""
        if self.needs != ("host",) and not history.samples:
            return "no GPU was sampled"
        if self.under_load and not any(map(is_loaded, history.gpus.values())):
            return "no GPU was under load long enough"
        return None if self.shown(history) else self.reason


_LOAD = ("graphics_mhz", "gpu_utilization_percent")
WATCHES = (
    Watch(XID.id, "Xid errors of the driver", ("xids",), _xids, under_load=False),
    Watch(
        GPU_LOST.id, "a GPU that fell off the bus, or does not answer", ("lost",), _silent, under_load=False
    ),
    Watch(
        "throttle.*",
        "throttle reasons under load. Throttling by the power limit has severity info",
        ("throttle_mask",),
        _slowdowns,
        lambda history: bool(history.reasons_known),
        "throttle reasons are not reported",
    ),
    Watch(
        CORE_SLOWER_THAN_PEERS.id,
        "core clock below the other GPUs of the same model at the same load",
        _LOAD,
        _slower,
        lambda history: bool(history.peers),
        "no two GPUs of the same model were under the same load",
    ),
    Watch(CLOCKS_SAGGING.id, "core clock fell under load", _LOAD, _sagging),
    Watch(
        "pcie.*",
        "PCIe link fell or changes repeatedly under load, or is half as fast as on GPUs of the same model",
        ("pcie_gen", "pcie_width"),
        _links,
        lambda history: any(seen.generations for seen in history.gpus.values() if is_loaded(seen)),
        "the link is not reported",
    ),
    Watch(
        GPU_BUSY.id,
        "processes of others on the GPUs",
        ("other_processes",),
        _others,
        lambda history: bool(history.others),
        "NVML does not list the processes",
        under_load=False,
    ),
    Watch(
        HOST_BUSY.id,
        HOST_BUSY.title,
        ("host",),
        _host,
        lambda history: history.host is not None and history.host.samples >= MIN_HOST_SAMPLES.value,
        f"fewer than {MIN_HOST_SAMPLES.value} samples of the host",
        under_load=False,
    ),
)
