"""What only shows over time: a History of moments in constant memory, and the findings that it bears.

An idle GPU lowers its link and its clocks to save power, so only moments at which it worked count. The ids
that a single reading can give too (`throttle.*`, `pcie.generation_degraded`) mean the same here.
"""

from collections.abc import Callable, Iterable, Iterator

from gputopo.findings.driver import LOST_REMEDY
from gputopo.findings.fault import Fault, findings_of, named, present
from gputopo.findings.finding import Finding, Severity, worst_first
from gputopo.findings.load import BUSY_PERCENT
from gputopo.findings.throttle_words import BY_NAME, EXPLAINING
from gputopo.reference.clock_events import BITS, decode
from gputopo.reference.expectations import expected_link
from gputopo.reference.xids import meaning
from gputopo.values.events import GpuSample, MachineSample, Xid
from gputopo.values.machine import Gpu, Machine

# A link trains anew once or twice when work begins or ends just then; more changes under load are a fault.
FLAPS = 3
# A degraded link is told only after this many working moments, which must be most of those watched. Ours.
WORKING_MOMENTS = 5
MOST = 0.5
# Clocks of a card under steady work drift some percent as it warms; more is sagging. Ours.
SAG_SHARE = 0.10
SAG_MOMENTS = 20
# The running mean of the clock follows a change within some ten moments.
MEAN_WEIGHT = 0.1
# A gap between two moments longer than this was not watched (the computer slept), in seconds.
LONGEST_GAP_S = 60.0
# Kinds of Xid events that are told apart; a flood of others is counted together.
XID_KINDS = 64

_IDLE_BIT = BITS["gpu_idle"]
_HARDWARE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


class GpuHistory:
    """What was seen of one GPU so far: counts and running means, no samples."""

    def __init__(self) -> None:
        self.moments = 0
        self.silent = 0  # moments at which it told nothing at all
        self.working = 0
        self.streak = 0  # working moments up to now without an idle one between
        self.watched_s = 0.0
        self.working_s = 0.0
        self.reason_s: dict[str, float] = {}
        self.reason_moments: dict[str, int] = {}
        self.link: tuple[int | None, int | None] = (None, None)
        self.link_changes = 0
        self.generations: dict[int, int] = {}
        self.widths: dict[int, int] = {}
        self.mean_mhz: float | None = None
        self.best_mean_mhz = 0.0
        self.clocked = 0

    def add(self, sample: GpuSample, seconds: float) -> None:
        """Take in what was seen at the end of so many seconds."""
        self.moments += 1
        self.silent += sample == GpuSample(gpu=sample.gpu)
        self.watched_s += seconds
        for name in decode(max(sample.throttle_mask or 0, 0)):
            self.reason_moments[name] = self.reason_moments.get(name, 0) + 1
            self.reason_s[name] = self.reason_s.get(name, 0.0) + seconds
        if not works(sample):
            self.streak = 0
            return
        self.working += 1
        self.working_s += seconds
        self._add_link(sample)
        self._add_clock(sample)
        self.streak += 1

    def _add_link(self, sample: GpuSample) -> None:
        link = (sample.pcie_gen, sample.pcie_width)
        # The first working moment may still show the link of the idle card.
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
        """Give the share of the watched time (or of the moments, where none has passed) with a reason."""
        if self.watched_s > 0:
            return self.reason_s.get(reason, 0.0) / self.watched_s
        return self.reason_moments.get(reason, 0) / self.moments if self.moments else 0.0


class History:
    """All moments so far. It needs the same memory after an hour as after a minute."""

    def __init__(self) -> None:
        self.gpus: dict[int, GpuHistory] = {}
        self.xids: dict[Xid, int] = {}
        self.more_xids = 0
        self.moments = 0
        self._last_s: float | None = None

    def add(self, moment: MachineSample) -> None:
        """Take in the next moment. Moments come in the order of time; one from the past counts as now."""
        passed = 0.0 if self._last_s is None else moment.time_s - self._last_s
        seconds = passed if 0.0 <= passed <= LONGEST_GAP_S else 0.0
        self._last_s = moment.time_s
        self.moments += 1
        for sample in moment.gpus:
            self.gpus.setdefault(sample.gpu, GpuHistory()).add(sample, seconds)
        for xid in moment.xids:
            if xid in self.xids or len(self.xids) < XID_KINDS:
                self.xids[xid] = self.xids.get(xid, 0) + 1
            else:
                self.more_xids += 1


def works(sample: GpuSample) -> bool:
    """Tell whether a GPU was at work: it computed for half of the time, and is not reported as idle."""
    used = sample.gpu_utilization_percent
    return used is not None and used >= BUSY_PERCENT and not (sample.throttle_mask or 0) & _IDLE_BIT


def find_watched(machine: Machine, history: History) -> tuple[Finding, ...]:
    """Give what the moments so far show, errors first. `machine` is the one that is watched."""
    rules: tuple[Callable[[Machine, History], Iterable[Finding]], ...] = (
        _xids,
        _silent,
        _slowdowns,
        _flapping,
        _generations,
        _sagging,
    )
    return worst_first(finding for rule in rules for finding in rule(machine, history))


def _watched(machine: Machine, history: History) -> Iterator[tuple[Gpu, GpuHistory]]:
    for gpu in present(machine):
        if gpu.index in history.gpus:
            yield gpu, history.gpus[gpu.index]


def _silent(machine: Machine, history: History) -> Iterator[Finding]:
    """Find GPUs that told nothing, from the first moment on or later."""
    faults = [
        Fault(
            gpu,
            f"it did not answer at {seen.silent} of {seen.moments} moments",
            {"silent_moments": seen.silent, "moments": seen.moments},
            "error",
        )
        for gpu in machine.gpus
        if (seen := history.gpus.get(gpu.index)) is not None and seen.silent
    ]
    yield from findings_of("gpu.lost", faults, LOST_REMEDY, machine)


def _flapping(machine: Machine, history: History) -> Iterator[Finding]:
    faults = [
        Fault(
            gpu,
            f"its link changed {seen.link_changes} times while it worked ({_tally(seen)})",
            {
                "changes": seen.link_changes,
                "working_moments": seen.working,
                "generations": {str(one): count for one, count in sorted(seen.generations.items())},
                "widths": {str(one): count for one, count in sorted(seen.widths.items())},
            },
            "warning",
        )
        for gpu, seen in _watched(machine, history)
        if seen.link_changes >= FLAPS
    ]
    yield from findings_of(
        "pcie.link_flapping",
        faults,
        "the contact is bad or the riser is poor: seat both again, use a shorter riser, or set the slot to "
        "an earlier generation in the BIOS, which then holds",
        machine,
    )


def _tally(seen: GpuHistory) -> str:
    generations = ", ".join(f"generation {one}: {count}" for one, count in sorted(seen.generations.items()))
    widths = ", ".join(f"x{one}: {count}" for one, count in sorted(seen.widths.items()))
    return f"{generations or 'generation unknown'}; {widths or 'width unknown'}"


def _generations(machine: Machine, history: History) -> Iterator[Finding]:
    faults = []
    for gpu, seen in _watched(machine, history):
        due = gpu.pcie.gen_max
        enough = seen.working >= WORKING_MOMENTS and seen.working > MOST * seen.moments
        if due is None or not seen.generations or not enough or max(seen.generations) >= due:
            continue
        best = max(seen.generations)
        evidence: dict[str, object] = {"best": best, "due": due, "working_moments": seen.working}
        rates = [expected_link(generation, gpu.pcie.width_now) for generation in (best, due)]
        if rates[0] and rates[1]:
            evidence["copy_gb_per_s"] = [rate.copy_to_device_gb_per_s for rate in rates if rate]
        says = f"its link never came above generation {best} of {due} in {seen.working} working moments"
        faults.append(Fault(gpu, says, evidence, "warning"))
    yield from findings_of(
        "pcie.generation_degraded",
        faults,
        "seat card and riser again or try without the riser, look for PCIe errors in sudo dmesg, and set the "
        "slot's generation in the BIOS by hand",
        machine,
    )


def _slowdowns(machine: Machine, history: History) -> Iterator[Finding]:
    names = {name for seen in history.gpus.values() for name in seen.reason_moments}
    for name in sorted(
        names, key=lambda name: list(BY_NAME).index(name) if name in BY_NAME else len(BY_NAME)
    ):
        reason = BY_NAME.get(name)
        severity: Severity | None = reason.severity if reason else "info"
        if severity is None:
            continue
        faults = [
            Fault(
                gpu,
                f"{_reason_words(name)} ({seen.share(name):.0%} of the time watched)",
                {
                    "share": round(seen.share(name), 4),
                    "seconds": round(seen.reason_s[name], 1),
                    "reason": name,
                },
                severity,
            )
            for gpu, seen in _watched(machine, history)
            if name in seen.reason_moments and not _named_better(name, seen)
        ]
        remedy = (
            reason.remedy if reason else "look the bit up in nvml.h of the driver, and report it to gputopo"
        )
        yield from findings_of(f"throttle.{name if reason else 'unknown'}", faults, remedy, machine)


def _reason_words(name: str) -> str:
    return (
        BY_NAME[name].says if name in BY_NAME else f"clocks are held down for a reason without a name: {name}"
    )


def _named_better(name: str, seen: GpuHistory) -> bool:
    """Tell whether another bit always named the cause of the general hardware slowdown."""
    count = seen.reason_moments[name]
    return name == "hw_slowdown" and sum(seen.reason_moments.get(one, 0) for one in _HARDWARE[1:]) >= count


def _sagging(machine: Machine, history: History) -> Iterator[Finding]:
    faults = []
    for gpu, seen in _watched(machine, history):
        if seen.mean_mhz is None or seen.clocked < SAG_MOMENTS:
            continue
        if any(name in EXPLAINING for name in seen.reason_moments):
            continue  # a reason was told, and is a finding
        if seen.mean_mhz < seen.best_mean_mhz * (1 - SAG_SHARE):
            evidence = {"mhz": round(seen.mean_mhz), "before_mhz": round(seen.best_mean_mhz)}
            says = f"its core clock sank from {seen.best_mean_mhz:.0f} to {seen.mean_mhz:.0f} MHz under work"
            faults.append(Fault(gpu, says, evidence, "warning"))
    yield from findings_of(
        "clocks.sagging",
        faults,
        "watch temperature and power beside it (gputopo inspect --watch): cooling, supply or a clock lock",
        machine,
    )


def _xids(machine: Machine, history: History) -> Iterator[Finding]:
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    for xid, count in history.xids.items():
        known = meaning(xid.code)
        where = named(gpus[xid.gpu]) if xid.gpu in gpus else "a GPU that was not named"
        times = "once" if count == 1 else f"{count} times"
        yield Finding(
            id="driver.xid",
            severity=known.severity,
            subject="driver" if xid.gpu is None else f"gpu:{xid.gpu}",
            says=f"{where}: the kernel module reported Xid {xid.code} {times}: {known.says}",
            evidence={"xid": xid.code, "count": count},
            remedy=known.remedy,
        )
    if history.more_xids:
        yield Finding(
            id="driver.xid",
            severity="warning",
            subject="driver",
            says=f"{history.more_xids} further Xid events of other kinds were reported",
            evidence={"count": history.more_xids},
            remedy="sudo dmesg | grep -i xid lists all of them",
        )
