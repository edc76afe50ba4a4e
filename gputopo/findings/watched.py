"""Findings over time: a History of samples in constant memory, and the checks over it.

An idle GPU lowers its link and clocks to save power, so only samples under load count for those.
"""

from collections.abc import Iterator

from gputopo.findings.driver import GPU_LOST, XID, xid_case
from gputopo.findings.load import BUSY_PERCENT
from gputopo.findings.pcie import (
    FLAPS,
    GENERATION_DEGRADED,
    LINK_FLAPPING,
    LOADED_SAMPLES,
    LOADED_SHARE,
    generation_fault,
)
from gputopo.findings.rule import Fault, Finding, Rule, Threshold, check, named, present, worst_first
from gputopo.findings.throttling import (
    THROTTLE,
    THROTTLE_UNKNOWN,
    explained,
    has_named_cause,
    in_rule_order,
    throttle_message,
    throttle_rule,
)
from gputopo.reference.clock_events import BITS, IDLE, decode
from gputopo.reference.expectations import expected_link
from gputopo.values.events import GpuSample, MachineSample, Xid
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

# The running mean of the clock follows a change within some ten samples.
MEAN_WEIGHT = 0.1
# A gap between two samples longer than this was not watched (suspend), in seconds.
MAX_GAP_S = 60.0
# Kinds of Xid events that are counted apart; a flood of others is counted together.
XID_KINDS = 64


class GpuHistory:
    """What was seen of one GPU so far: counts and running means, no samples."""

    def __init__(self) -> None:
        self.samples = 0
        self.silent = 0  # samples without any value
        self.loaded = 0
        self.streak = 0  # samples under load up to now without an idle one between
        self.watched_s = 0.0
        self.reason_s: dict[str, float] = {}
        self.reason_samples: dict[str, int] = {}
        self.link: tuple[int | None, int | None] = (None, None)
        self.link_changes = 0
        self.generations: dict[int, int] = {}
        self.widths: dict[int, int] = {}
        self.mean_mhz: float | None = None
        self.best_mean_mhz = 0.0
        self.clocked = 0

    def add(self, sample: GpuSample, seconds: float) -> None:
        """Add a sample; `seconds`: the time since the one before."""
        self.samples += 1
        self.silent += sample == GpuSample(gpu=sample.gpu)
        self.watched_s += seconds
        for name in decode(max(sample.throttle_mask or 0, 0)):
            self.reason_samples[name] = self.reason_samples.get(name, 0) + 1
            self.reason_s[name] = self.reason_s.get(name, 0.0) + seconds
        if not under_load(sample):
            self.streak = 0
            return
        self.loaded += 1
        self._add_link(sample)
        self._add_clock(sample)
        self.streak += 1

    def _add_link(self, sample: GpuSample) -> None:
        link = (sample.pcie_gen, sample.pcie_width)
        # The first sample under load may still show the link of the idle GPU.
        if self.streak > 1 and None not in link and None not in self.link and link != self.link:
            self.link_changes += 1
        self.link = link
        if sample.pcie_gen is not None:
            self.generations[sample.pcie_gen] = self.generations.get(sample.pcie_gen, 0) + 1
        if sample.pcie_width is not None:
            self.widths[sample.pcie_width] = self.widths.get(sample.pcie_width, 0) + 1

    def _add_clock(self, sample: GpuSample) -> None:
        if sample.graphics_mhz is None or self.streak == 0:
            return
        mean = sample.graphics_mhz if self.mean_mhz is None else self.mean_mhz
        self.mean_mhz = mean + MEAN_WEIGHT * (sample.graphics_mhz - mean)
        self.clocked += 1
        if self.clocked > 1 / MEAN_WEIGHT:
            self.best_mean_mhz = max(self.best_mean_mhz, self.mean_mhz)

    def share(self, reason: str) -> float:
        """Return the share of the watched time (of the samples, where none has passed) with a reason."""
        if self.watched_s > 0:
            return self.reason_s.get(reason, 0.0) / self.watched_s
        return self.reason_samples.get(reason, 0) / self.samples if self.samples else 0.0


class History:
    """All samples so far. It needs the same memory after an hour as after a minute."""

    def __init__(self) -> None:
        self.gpus: dict[int, GpuHistory] = {}
        self.xids: dict[Xid, int] = {}
        self.more_xids = 0
        self._last_s: float | None = None

    def add(self, sample: MachineSample) -> None:
        """Add the next sample of all GPUs. One with a time in the past counts as now."""
        passed = 0.0 if self._last_s is None else sample.time_s - self._last_s
        seconds = passed if 0.0 <= passed <= MAX_GAP_S else 0.0
        self._last_s = sample.time_s
        for one in sample.gpus:
            self.gpus.setdefault(one.gpu, GpuHistory()).add(one, seconds)
        for xid in sample.xids:
            if xid in self.xids or len(self.xids) < XID_KINDS:
                self.xids[xid] = self.xids.get(xid, 0) + 1
            else:
                self.more_xids += 1


def under_load(sample: GpuSample) -> bool:
    """Return whether a GPU computed for half of the time, and is not reported as idle."""
    used = sample.gpu_utilization_percent
    idle = (sample.throttle_mask or 0) & BITS[IDLE]
    return used is not None and used >= BUSY_PERCENT.value and not idle


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
    names = {name for seen in history.gpus.values() for name in seen.reason_samples}
    for name in in_rule_order(names):
        rule = throttle_rule(name)
        if rule is None:
            continue
        for gpu, seen in _watched(machine, history):
            if name in seen.reason_samples and not _has_named_cause(name, seen):
                yield rule.fault(
                    gpu,
                    f"{throttle_message(name)}, {seen.share(name):.0%} of the time",
                    {
                        "share": round(seen.share(name), 4),
                        "seconds": round(seen.reason_s[name], 1),
                        "reason": name,
                    },
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
        if seen.mean_mhz is None or seen.clocked < SAG_SAMPLES.value or explained(seen.reason_samples):
            continue
        if seen.mean_mhz < seen.best_mean_mhz * (1 - SAG_SHARE.value):
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


def _has_named_cause(name: str, seen: GpuHistory) -> bool:
    """Return whether another bit always named the cause of the general hardware slowdown."""
    causes = [other for other in seen.reason_samples if has_named_cause(name, (other,))]
    return bool(causes) and sum(seen.reason_samples[one] for one in causes) >= seen.reason_samples[name]


WATCH_CHECKS = (_xids, _silent, _slowdowns, _flapping, _generations, _sagging)
