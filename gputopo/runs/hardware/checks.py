"""The checks of the hardware of a run by its samples alone: each of facts of one kind. Pure.

None says anything of the program's speed, which nobody measured here.
"""

from collections.abc import Callable, Iterator
from statistics import median

import msgspec

from gputopo.findings.driver import xid_case
from gputopo.findings.pcie import FLAPS
from gputopo.findings.throttling import has_named_cause, in_rule_order, throttle_rule
from gputopo.findings.watched import SAG_SAMPLES, SAG_SHARE
from gputopo.reference.clock_events import decode, in_words
from gputopo.runs.hardware.record import HardwareRecord
from gputopo.values.history import GpuHistory
from gputopo.values.run.verdict import HardwareFault

# Samples under load of a GPU, at least, for what is compared or counted: ten seconds with several GPUs. Ours.
MIN_LOADED = 20
# Of the host, which is sampled every second or two: a program of some seconds says nothing of it. Ours.
MIN_HOST_SAMPLES = 10
# What lasted shorter is no state of the hardware. Ours.
MIN_SHARE = 0.05
# Boost clocks of GPUs of one model differ by some percent with their chips and temperatures. Ours.
CLOCK_BELOW_SHARE = 0.05

Faults = Iterator[HardwareFault]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a check. `missing`: why it cannot be made, None if it can."""

    id: str
    title: str
    needs: tuple[str, ...]
    find: Callable[[HardwareRecord], Faults]
    missing: Callable[[HardwareRecord], str | None]


def loaded(record: HardwareRecord) -> Iterator[GpuHistory]:
    """Return what was seen of the GPUs that were under load long enough."""
    for gpu in sorted(record.names):
        seen = record.history.gpus.get(gpu)
        if seen is not None and seen.loaded >= MIN_LOADED:
            yield seen


def _xids(record: HardwareRecord) -> Faults:
    for xid, count in record.history.xids.items():
        case = xid_case(xid.code)
        where = "unknown GPU" if xid.gpu is None else f"GPU {xid.gpu}"
        times = "" if count == 1 else f" {count} times"
        says = f"{where}: Xid {xid.code}{times}: {case.says}"
        yield HardwareFault(id="xid", severity=case.severity, says=says, gpu=xid.gpu)


def _lost(record: HardwareRecord) -> Faults:
    for gpu in sorted(record.lost):
        says = f"GPU {gpu}: NVML reported that it is lost"
        yield HardwareFault(id="lost", severity="error", says=says, gpu=gpu)


def _throttled(record: HardwareRecord) -> Faults:
    for seen in loaded(record):
        counts: dict[str, int] = {}
        for mask, count in seen.masks.items():
            names = decode(mask)
            for name in names:
                if not has_named_cause(name, names):
                    counts[name] = counts.get(name, 0) + count
        for name in in_rule_order(counts):
            rule, share = throttle_rule(name), counts[name] / seen.samples
            if rule is not None and share >= MIN_SHARE:
                words = ", ".join(in_words((name,)))
                says = f"GPU {seen.gpu}: throttled in {share:.0%} of the samples: {words}"
                yield HardwareFault(id="throttled", severity=rule.severities[0], says=says, gpu=seen.gpu)


def _clocks(record: HardwareRecord) -> Faults:
    for seen in loaded(record):
        ratios = record.ratios.get(seen.gpu)
        if ratios is not None and ratios.seen >= MIN_LOADED:
            below = 1 - median(ratios.items)
            if below >= CLOCK_BELOW_SHARE:
                says = f"GPU {seen.gpu}: core clock {below:.0%} below GPUs of its model at the same load"
                yield HardwareFault(id="clock-below-peers", severity="warning", says=says, gpu=seen.gpu)


def _sagging(record: HardwareRecord) -> Faults:
    for seen in loaded(record):
        if seen.mean_mhz is None or seen.clocked < SAG_SAMPLES.value or not seen.best_mean_mhz:
            continue
        throttled = any(fault.gpu == seen.gpu for fault in _throttled(record))  # which explains it
        if not throttled and seen.mean_mhz < seen.best_mean_mhz * (1 - SAG_SHARE.value):
            says = f"GPU {seen.gpu}: core clock fell from {seen.best_mean_mhz:.0f} to {seen.mean_mhz:.0f} MHz"
            yield HardwareFault(id="clock-fell", severity="warning", says=says, gpu=seen.gpu)


def _links(record: HardwareRecord) -> Faults:
    bests = {seen.gpu: _usual_link(seen) for seen in loaded(record)}
    for seen in loaded(record):
        where, fell = f"GPU {seen.gpu}: PCIe link", _fallen(seen)
        if seen.link_changes >= FLAPS.value:
            says = f"{where} changed {seen.link_changes} times under load"
            yield HardwareFault(id="pcie-link", severity="warning", says=says, gpu=seen.gpu)
        elif fell is not None:
            yield HardwareFault(id="pcie-link", severity="warning", says=f"{where} {fell}", gpu=seen.gpu)
        else:
            peers = [
                link for gpu, link in bests.items() if record.names[gpu] == record.names[seen.gpu] if link
            ]
            usual, own = (median(peers) if peers else 0.0), bests[seen.gpu]
            if own and usual >= 2 * own:  # a generation, or half of the lanes
                says = f"{where} {_link_words(seen)} under load, twice as fast or more on others of its model"
                yield HardwareFault(id="pcie-link", severity="warning", says=says, gpu=seen.gpu)


def _usual_link(seen: GpuHistory) -> float:
    """Return lanes times speed of the link that was seen most often, in those of generation 1; 0: unknown."""
    if not seen.generations or not seen.widths:
        return 0.0
    generation, width = (max(kinds, key=lambda one: kinds[one]) for kinds in (seen.generations, seen.widths))
    return float(width * 2 ** (generation - 1))


def _link_words(seen: GpuHistory) -> str:
    generation, width = (max(kinds, key=lambda one: kinds[one]) for kinds in (seen.generations, seen.widths))
    return f"generation {generation} x{width}"


def _fallen(seen: GpuHistory) -> str | None:
    """Return from what to what a link fell for good: seen last, and for longer than load takes to begin."""
    for kinds, before, now in (
        (seen.widths, "x", seen.link[1]),
        (seen.generations, "generation ", seen.link[0]),
    ):
        if now is not None and kinds and now < max(kinds) and kinds.get(now, 0) >= MIN_LOADED:
            return f"fell from {before}{max(kinds)} to {before}{now} under load"
    return None


def _others(record: HardwareRecord) -> Faults:
    for gpu, others in sorted(record.others.items()):
        if others.most > others.first:
            more = others.most - others.first
            came = "another process came" if more == 1 else f"{more} other processes came"
            says = f"GPU {gpu}: {came} during the run"
            yield HardwareFault(id="other-process", severity="warning", says=says, gpu=gpu)
        elif others.first:
            there = "another process" if others.first == 1 else f"{others.first} other processes"
            says = f"GPU {gpu}: {there} used it from the start"
            yield HardwareFault(id="other-process", severity="info", says=says, gpu=gpu)


def _host(record: HardwareRecord) -> Faults:
    found = record.host.summary(cpu_devices=0)
    if found is not None and found.busy is not None:
        yield HardwareFault(id="host", severity="warning", says=f"host: {found.busy}")


def _without_load(record: HardwareRecord) -> str | None:
    return None if any(loaded(record)) else "no GPU was under load long enough"


def _without_reasons(record: HardwareRecord) -> str | None:
    return _without_load(record) or (None if record.with_reasons else "throttle reasons are not reported")


def _without_peers(record: HardwareRecord) -> str | None:
    return _without_load(record) or (
        None if record.ratios else "no two GPUs of one model were under the same load"
    )


def _without_links(record: HardwareRecord) -> str | None:
    known = any(seen.generations for seen in loaded(record))
    return _without_load(record) or (None if known else "the link is not reported")


def _without_gpus(record: HardwareRecord) -> str | None:
    return None if record.samples else "no GPU was sampled"


def _without_processes(record: HardwareRecord) -> str | None:
    return None if record.others else "NVML does not list the processes"


def _without_host(record: HardwareRecord) -> str | None:
    found = record.host.summary(cpu_devices=0)
    enough = found is not None and found.samples >= MIN_HOST_SAMPLES
    return None if enough else f"fewer than {MIN_HOST_SAMPLES} samples of the host"


CHECKS: tuple[Check, ...] = (
    Check(id="xid", title="Xid errors of the driver", needs=("xids",), find=_xids, missing=_without_gpus),
    Check(id="lost", title="a GPU that fell off the bus", needs=("lost",), find=_lost, missing=_without_gpus),
    Check(
        id="throttled",
        title="throttle reasons under load; the power limit is for information",
        needs=("throttle_mask",),
        find=_throttled,
        missing=_without_reasons,
    ),
    Check(
        id="clock-below-peers",
        title="core clock below the other GPUs of the same model at the same load",
        needs=("graphics_mhz", "gpu_utilization_percent"),
        find=_clocks,
        missing=_without_peers,
    ),
    Check(
        id="clock-fell",
        title="core clock fell under load",
        needs=("graphics_mhz", "gpu_utilization_percent"),
        find=_sagging,
        missing=_without_load,
    ),
    Check(
        id="pcie-link",
        title="PCIe link fell or flaps under load, or is half as fast as those of the same model",
        needs=("pcie_gen", "pcie_width"),
        find=_links,
        missing=_without_links,
    ),
    Check(
        id="other-process",
        title="processes of others on the GPUs",
        needs=("other_processes",),
        find=_others,
        missing=_without_processes,
    ),
    Check(
        id="host",
        title="other programs take the CPU, the host swaps, or has no memory left",
        needs=("host",),
        find=_host,
        missing=_without_host,
    ),
)
