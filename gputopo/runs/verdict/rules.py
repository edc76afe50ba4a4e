"""The known causes: the facts that each needs, and the most of a gap that each can explain in each row.

A cost has the unit of the gap: the logarithm of the compute time relative to the peer, or, for the wait for
weights, the share of the busy time. It is the most that the fact can cost by physics. The actual cost is this
times a slope from 0 to 1, which a fit finds.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import msgspec

from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.words import COMPUTE, WEIGHTS

GPU, CPU = "gpu", "cpu"
_FULL = f"{100 * sampled.MEMORY_FULL_SHARE:.0f}%"
MIN_MHZ = 1.0  # a GPU at 0 MHz reports nothing
# Why a clock is reduced, in words. Of several reasons at once, the first one in this order is used.
REASONS = {
    sampled.THROTTLED_THERMAL: " (thermal slowdown)",
    sampled.THROTTLED_HARDWARE: " (hardware slowdown)",
    sampled.THROTTLED_POWER: " (power limit reached)",
}


ByRow = Callable[[str], list[float]]
"""Returns a fact by row, of a run's steps or of short runs; NaN: unknown."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A device and its peer in some rows."""

    device: ByRow  # facts of the device's GPU
    peer: ByRow  # facts of the peer's GPU
    host: ByRow  # facts of the device's host
    part: str
    gap: Sequence[float]  # by row
    waits: Sequence[float]  # waits for weights, as shares of the busy time

    def excess(self, fact: str) -> list[float]:
        """Return by how much a fact of the device exceeds the peer's, by row."""
        return excess(self.device(fact), self.peer(fact))


def excess(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return by how much each value is above the other one, at least 0; NaN if one is unknown."""
    above = [value - other for value, other in zip(values, others, strict=True)]
    return [value if math.isnan(value) else max(0.0, value) for value in above]


Cost = Callable[[View], list[float]]
Describe = Callable[[View, Sequence[int]], str]


class CauseRule(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a cause. Its id keeps its meaning across versions."""

    id: str
    title: str
    needs: tuple[str, ...]  # fields of the samples
    explains: str  # the upper bound, in words
    parts: tuple[str, ...]  # the parts of a step that it slows
    cost: Cost
    describe: Describe  # returns what was seen, in the rows of the view at these places
    family: str = ""  # causes with the same effect, fitted with one slope; empty: its own family
    within: str = ""  # causes that together explain at most as much as the largest of them
    devices: tuple[str, ...] = (GPU,)  # kinds of devices that can have it

    @property
    def fitted_as(self) -> str:
        """The name of its family."""
        return self.family or self.id


def _shortfall(fact: str, view: View) -> list[float]:
    """Return the logarithm of the peer's clock over the device's own, if the peer's is higher, else 0."""
    return [
        max(0.0, math.log(peer / value)) if value >= MIN_MHZ and peer >= MIN_MHZ else math.nan
        for value, peer in zip(view.device(fact), view.peer(fact), strict=True)
    ]


def _core_by(reason: str | None, view: View) -> list[float]:
    """Return the part of the core clock's shortfall that has this reason; None: that has none of them."""
    flags = zip(*(view.device(throttled) for throttled in REASONS), strict=True)
    return [
        short * _share(row, reason) for short, row in zip(_shortfall(sampled.CORE, view), flags, strict=True)
    ]


def _share(flags: Sequence[float], reason: str | None) -> float:
    left = 1.0
    for throttled, flag in zip(REASONS, flags, strict=True):
        if math.isnan(flag):
            return math.nan if reason is not None else 1.0
        if throttled == reason:
            return min(flag, left)
        left = max(0.0, left - flag)
    return left


def _link(view: View) -> list[float]:
    rates = zip(view.device(sampled.LINK), view.peer(sampled.LINK), view.waits, strict=True)
    return [
        wait * max(0.0, 1 - rate / peer) if rate > 0 and peer > 0 else math.nan for rate, peer, wait in rates
    ]


def _shared(view: View) -> list[float]:
    return [wait * more for wait, more in zip(view.waits, view.excess(sampled.SHARED), strict=True)]


def _all_of_the_gap(view: View, flags: Sequence[float]) -> list[float]:
    """Return the maximum cost of a fact that only the gap itself bounds, in the rows with the fact.

    All rows have one level, because the gap itself would always fit itself.
    """
    gaps = [gap for flag, gap in zip(flags, view.gap, strict=True) if flag > 0]
    level = max(0.0, median(gaps)) if gaps else 0.0
    return [flag * level for flag in flags]


def _cpu_taken(fact: str, view: View) -> list[float]:
    """Return the logarithm of the time with other programs over the time without them."""
    return [-math.log(1 - min(share, 0.99)) for share in view.host(fact)]


def _others(view: View) -> list[float]:
    # One more process than on the peer takes at most half of the time, two take at most two thirds.
    more = view.excess(sampled.OTHERS)
    if view.part == COMPUTE:
        return [math.log(1 + processes) for processes in more]
    return [wait * processes / (1 + processes) for wait, processes in zip(view.waits, more, strict=True)]


def _clock_words(fact: str, name: str, why: str, view: View, places: Sequence[int]) -> str:
    device, peer = _at(view.device(fact), places), _at(view.peer(fact), places)
    return f"{name} {device:,.0f} MHz, {100 * (1 - device / peer):.1f}% below its peers{why}"


def _link_words(view: View, places: Sequence[int]) -> str:
    device, peer = _at(view.device(sampled.LINK), places), _at(view.peer(sampled.LINK), places)
    return f"a PCIe link of {device:.1f} GB/s, its peers' {peer:.1f} GB/s"


def _shared_words(view: View, places: Sequence[int]) -> str:
    share = f"({100 * _at(view.device(sampled.SHARED), places):.0f}% of its rate)"
    return f"a link to the host that other GPUs copied over at the same time {share}"


def _others_words(view: View, places: Sequence[int]) -> str:
    device, peer = _at(view.device(sampled.OTHERS), places), _at(view.peer(sampled.OTHERS), places)
    count = max(1, round(device - peer))
    return "another process on the GPU" if count == 1 else f"{count} other processes on the GPU"


def _host_words(view: View, places: Sequence[int]) -> str:
    shares = view.host(sampled.HOST_CPU)
    share = max(shares[place] for place in places if not math.isnan(shares[place]))
    return f"other programs took up to {100 * share:.0f}% of the CPU"


def _taken_words(view: View, places: Sequence[int]) -> str:
    share = _at(view.host(sampled.HOST_TAKEN), places)
    return f"cores that other programs took, up to {100 * share:.0f}% of one device's"


def _at(values: Sequence[float], places: Sequence[int]) -> float:
    known = sorted(values[place] for place in places if not math.isnan(values[place]))
    return known[len(known) // 2] if known else math.nan


_COMPUTES = "the share of compute time that is proportional to the clock: a 5% lower clock explains 0 to 5%"


def _core_clock(name: str, title: str, reason: str | None) -> CauseRule:
    """Return the declaration of a core clock below the peers'. `reason`: what throttles it, or None."""
    return CauseRule(
        id=name,
        title=f"core clock below its peers {title}",
        needs=("graphics_mhz",) if reason is None else ("graphics_mhz", "throttle_mask"),
        explains=_COMPUTES,
        parts=(COMPUTE,),
        family="core clock",
        within="clocks",
        cost=partial(_core_by, reason),
        describe=partial(_clock_words, sampled.CORE, "core clock", REASONS.get(reason or "", "")),
    )


CAUSES: tuple[CauseRule, ...] = (
    _core_clock("thermal", "while the GPU is too warm", sampled.THROTTLED_THERMAL),
    _core_clock(
        "hardware-slowdown",
        "because the hardware lowers it: power brake, supply, board limit, sync boost",
        sampled.THROTTLED_HARDWARE,
    ),
    _core_clock("power-cap", "while the power limit is reached", sampled.THROTTLED_POWER),
    _core_clock("core-clock", "for none of the reasons above", None),
    CauseRule(
        id="memory-clock",
        title="memory clock below its peers",
        needs=("memory_mhz",),
        explains=_COMPUTES,
        parts=(COMPUTE,),
        within="clocks",
        cost=partial(_shortfall, sampled.MEMORY),
        describe=partial(_clock_words, sampled.MEMORY, "memory clock", ""),
    ),
    CauseRule(
        id="pcie-link",
        title="PCIe link with a lower generation or width than its peers' links",
        needs=("pcie_gen", "pcie_width"),
        explains="the wait for weights, minus the wait at the rate of the peers",
        parts=(WEIGHTS,),
        cost=_link,
        describe=_link_words,
    ),
    CauseRule(
        id="pcie-shared",
        title="PCIe link to the host shared with other GPUs of the run that copy at the same time",
        needs=("marks.start_s",),
        explains="the wait for weights while other GPUs use the link, in proportion to their number",
        parts=(WEIGHTS,),
        cost=_shared,
        describe=_shared_words,
    ),
    CauseRule(
        id="memory-full",
        title=f"more than {_FULL} of the GPU's memory used, less on its peers",
        needs=("memory_used_mib",),
        explains="the whole slowdown while memory is full: faster kernels cannot allocate their workspace",
        parts=(COMPUTE,),
        cost=lambda view: _all_of_the_gap(view, view.excess(sampled.FULL)),
        describe=lambda view, places: f"GPU memory more than {_FULL} full, its peers' not",
    ),
    CauseRule(
        id="other-process",
        title="another process on the GPU",
        needs=("other_processes",),
        explains="half of the compute time with one process more than its peers, two thirds with two more",
        parts=(COMPUTE, WEIGHTS),
        cost=_others,
        describe=_others_words,
    ),
    CauseRule(
        id="host-busy",
        title="in some steps, other programs leave no free core on the host",
        needs=("host.other_cpu_share",),
        explains="the share of the CPU that other programs used",
        parts=(COMPUTE, WEIGHTS),
        cost=partial(_cpu_taken, sampled.HOST_CPU),
        describe=_host_words,
    ),
    CauseRule(
        id="host-swapping",
        title="in some steps, the host swaps because memory is low",
        needs=("host.swap_in_bytes_per_s", "host.swap_out_bytes_per_s"),
        explains="the whole slowdown in these steps",
        parts=(COMPUTE, WEIGHTS),
        # The wait of a thread for its pages has no bound.
        cost=lambda view: _all_of_the_gap(view, view.host(sampled.HOST_SWAP)),
        describe=lambda view, places: "the host swapped",
        devices=(GPU, CPU),
    ),
    CauseRule(
        id="cores-taken",
        title="other programs used cores of the CPU device",
        needs=("host.other_cpu_share", "host.cores"),
        explains="the CPU time of other programs, as if all of it delayed this device",
        parts=(COMPUTE, WEIGHTS),
        cost=partial(_cpu_taken, sampled.HOST_TAKEN),
        describe=_taken_words,
        devices=(CPU,),
    ),
)
