"""Thresholds and sentences of verdicts. Pure."""

import math

import msgspec

from gputopo.runs.devices import name_of
from gputopo.values.run.events import NETWORK, Device
from gputopo.values.run.verdict import CANNOT_TELL, COMPUTE, EVEN, SLOW, Cost, Expected, HostSummary, Verdict

# Chance that a window of an even run names any device, for all comparisons together.
FALSE_ALARM = 0.001
CONFIDENCE = 1 - FALSE_ALARM
# Half of the chance is for the run as a whole, half for its parts.
WHOLE_SHARE = 0.5
# Slow: at least so much is proven. GPUs of one model differ by one or two percent as they come from the
# factory: in the 7gforce table of six GTX 1070 one at 98.83 % of the reference counts as even, one at 94.54 %
# as slow. Ours, between the two.
SLOW_PERCENT = 3.0
# Even: more than so much is excluded.
EVEN_PERCENT = 5.0
# A difference of the resolution is named with this chance.
POWER = 0.95
# Towers that do the same work on idle CPU devices read steadily up to 0.14 ms apart: the clock is read where
# tower 0 computes, and threads of other towers must be scheduled in between.
MARKS_OFFSET_S = 0.15e-3
# Under load it is more. So in steps of a few milliseconds 5 % is thread scheduling.
MARKS_RESOLUTION_S = 0.5e-3
# A part at the begin that is slower, and not longer than this share of what comes after, is a warm-up of
# the device: clocks rise, caches fill. Ours.
WARMUP_SHARE = 0.25


def slow(device: Device, found: Verdict, *, by: str | None = None, throughout: bool = True) -> str:
    """Return how much slower a device is, and at least, and in which part of the run.

    `by`: where the speeds are from by which it is compared with other models. `throughout`: from its begin to
    its end, without fast parts in between.
    """
    shown, low = percent(found.percent_under or 0.0), at_least(found.percent_under_low or 0.0)
    if by is not None:
        than = f"than it should beside devices of another model ({by})"
        slower = f"computes {shown} % slower {than}{_when(found, throughout)}"
        return f"{name_of(device)} {slower}, at least {low} %"
    what = (
        f"computes {shown} % slower than its peers"
        if found.part == COMPUTE
        else f"is {shown} % slower than its peers as it waits longer for its weights{_over(device)}"
    )
    sure = f"at least {low} %, {100 * CONFIDENCE:g} % confidence"
    return f"{name_of(device)} {what}{_when(found, throughout)} ({sure})"


def slow_host(name: str, device: Device, found: Verdict) -> str:
    """Return how much slower the devices of a host are, `device` one of them; `found`: of all together."""
    shown, low = percent(found.percent_under or 0.0), at_least(found.percent_under_low or 0.0)
    than = f"{shown} % slower than those of other hosts"
    what = (
        f"compute {than}"
        if found.part == COMPUTE
        else f"are {than} as they wait longer for their weights{_over(device)}"
    )
    average = "" if found.share_of_steps is None else " on average, not in all steps"
    return f"{name} {what}{average}{_when(found, True)} (at least {low} %, {100 * CONFIDENCE:g} % confidence)"


def slow_network(host: str, found: Verdict, ms: float, *, sends: bool, why: str | None) -> str:
    """Return by how much later a host sends or receives gradients than the others do.

    `why`: what is known to be wrong with its network ports.
    """
    what = (
        "its gradients arrive at the other hosts"
        if sends
        else "the gradients of the other hosts arrive there"
    )
    shown, low = percent(found.percent_under or 0.0), at_least(found.percent_under_low or 0.0)
    later = f"{ms:.1f} ms later than between the others, {shown} % of the step"
    sure = f"at least {low} %, {100 * CONFIDENCE:g} % confidence"
    return f"host {host}: {what} {later} ({sure}): {why or 'look at its network card, link and switch port'}"


def _over(device: Device) -> str:
    return " over the network" if device.hop_to_variables == NETWORK else ""


def slow_steps(device: Device, found: Verdict, away: float) -> str:
    """Return how much slower a device is in single steps all over the run. `away`: percent in these."""
    shown, low = percent(found.percent_under or 0.0), at_least(found.percent_under_low or 0.0)
    share = percent(100 * (found.share_of_steps or 0.0))
    return (
        f"{name_of(device)} computes {percent(away)} % slower than its peers in {share} % of the steps, "
        f"{shown} % on average (at least {low} %)"
    )


def slow_on_average(device: Device, found: Verdict) -> str:
    """Return how much slower a device is on average, where most steps are not."""
    shown, low = percent(found.percent_under or 0.0), at_least(found.percent_under_low or 0.0)
    return (
        f"{name_of(device)} computes {shown} % slower than its peers on average, but not in most steps "
        f"(at least {low} %)"
    )


def _when(found: Verdict, throughout: bool) -> str:
    if found.from_step is not None and found.to_step is not None:
        where = "from about step" if throughout else "in parts of steps"
        return f" {where} {found.from_step:,} to {found.to_step:,}"
    if not throughout:
        return " in parts of the run"
    if found.from_step is not None:
        return f" since about step {found.from_step:,}"
    return "" if found.to_step is None else f" until about step {found.to_step:,}"


def even(device: Device, found: Verdict) -> str:
    """Return to within what a device is even."""
    return f"{name_of(device)} is even with its peers to within {at_most(found.percent_under_high or 0.0)} %"


def but_for_steps(found: Verdict, away: float) -> str:
    """Return the sentence on an even device with the steps in which it is slow. `away`: percent in these."""
    share = percent(100 * (found.share_of_steps or 0.0))
    return f"{found.says} on average; in {share} % of the steps it is {percent(away)} % slower"


def cannot_tell(device: Device, found: Verdict, why: str) -> str:
    """Return that and why a run cannot tell, and what it looks like."""
    return f"{name_of(device)}: cannot tell{looks(found)}: {why}"


def looks(found: Verdict) -> str:
    """Return what a device looks like where that is not proven; empty if it looks even."""
    under = found.percent_under
    return "" if under is None or under < 1 else f" (looks {percent(under)} % slower)"


def resolves(found: Verdict, short_ms: float | None) -> str:
    """Return what a run can resolve, and what would resolve more. `short_ms`: steps too short for marks."""
    resolved = f"this run resolves differences above {at_most(found.resolution_percent or 0.0)} %"
    if short_ms is not None:
        return f"{resolved}; threads decide steps of {short_ms:.1f} ms, a larger batch resolves more"
    if found.more_steps:
        return f"{resolved}; about {rounded(found.more_steps)} more steps would resolve 5 %"
    return resolved


def busy(says: str, why: str) -> str:
    """Return why a slow run is not named beside a busy host."""
    return f"Cannot tell: {why} ({says[0].lower()}{says[1:]})"


def beside(says: str, host: HostSummary) -> str:
    """Return the sentence on a slow CPU device with what other programs could have cost it at most."""
    share, most = 100 * (host.other_cpu_share or 0.0), at_most(host.may_cost_percent or 0.0)
    return f"{says}; other programs took {share:.0f} % of the CPU, which explains {most} % at most"


def against_expected(found: Verdict, word: str, speed: float, expected: Expected) -> Verdict:
    """Return the verdict with its word and sentence. `speed`: the median, images/sec."""
    figures = f"{_speed(speed)} images/sec, {expected.source} {_speed(expected.images_per_sec)}"
    under = found.percent_under or 0.0
    if word == SLOW:
        low = at_least(found.percent_under_low or 0.0)
        slower = f"{percent(under)} % slower than expected (at least {low} %)"
        return _said(found, word, f"The run is {slower}: {figures}")
    if word == EVEN:
        high = at_most(max(found.percent_under_high or 0.0, 0.1))
        return _said(found, word, f"The run is as fast as expected to within {high} %: {figures}")
    resolved = at_most(found.resolution_percent or 0.0)
    why = f"the expectation resolves differences above {resolved} %"
    found = msgspec.structs.replace(found, why=why)
    return _said(found, word, f"Cannot tell whether the run is as fast as expected: {why}: {figures}")


def not_expected(why: str) -> Verdict:
    """Return that a run is compared with no expected speed."""
    says = f"Not compared with what this run should reach: {why}"
    return Verdict(word=CANNOT_TELL, says=says, why=why, against="expected")


def slower_than_before(found: Verdict) -> Verdict:
    """Return the verdict with its sentence."""
    under, low = percent(found.percent_under or 0.0), at_least(found.percent_under_low or 0.0)
    return _said(
        found,
        found.word,
        f"The run became {under} % slower (at least {low} %) at about step {found.from_step:,}",
    )


def _said(found: Verdict, word: str, says: str) -> Verdict:
    return msgspec.structs.replace(found, word=word, says=says)


def too_few(needed: int, counted: int) -> str:
    """Return that there are too few steps."""
    return f"too few steps ({needed} needed, {counted} counted)"


def too_correlated(steps: int, more: int) -> str:
    """Return that the noise is too correlated. `more`: steps that are enough of such noise; 0: not known."""
    few = f"the pace drifts over many steps, {steps:,} steps are too few to know by how much"
    return f"{few}; about {rounded(more)} more are enough if it continues like this" if more else few


def gone(last_step: int, *, lost: bool, xid: int | None = None) -> str:
    """Return that a device has no marks any more. `lost`: NVML reported so of its GPU, with an `xid`."""
    reported = "; NVML reported that the GPU is lost" if lost else ""
    return f"no time marks after step {last_step}{reported}{'' if xid is None else f'; Xid {xid}'}"


def costs(name: str, found: Cost) -> str:
    """Return what a slow device costs: "GPU 1 costs 11 % of this run: 2,140 instead of 1,905 images/sec"."""
    would, did = _speed(found.without), _speed(found.images_per_sec)
    return f"{name} costs {percent(found.percent)} % of this run: {would} instead of {did} images/sec"


def percent(value: float) -> str:
    """Write a percentage: with a decimal below 10."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def at_least(value: float) -> str:
    """Write a lower bound, rounded down."""
    return f"{math.floor(value)}" if value >= 10 else f"{math.floor(value * 10) / 10:.1f}"


def at_most(value: float) -> str:
    """Write an upper bound, rounded up."""
    return f"{math.ceil(value)}" if value >= 10 else f"{math.ceil(value * 10) / 10:.1f}"


def rounded(count: int) -> str:
    """Write a number of steps with two digits that count, rounded up."""
    scale = 10 ** max(0, len(str(count)) - 2)
    return f"{math.ceil(count / scale) * scale:,}"


def _speed(images_per_sec: float) -> str:
    return f"{images_per_sec:,.0f}" if images_per_sec >= 100 else f"{images_per_sec:.1f}"
