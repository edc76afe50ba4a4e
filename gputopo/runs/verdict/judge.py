"""The verdict on each device of a run, and on the run as a whole."""

import math
from collections.abc import Mapping, Sequence, Set

import msgspec

from gputopo.runs.verdict.bounds import level_bounds, min_values, part_bounds
from gputopo.runs.verdict.causes import explained, run_explained
from gputopo.runs.verdict.changes import PLACES, parts
from gputopo.runs.verdict.cost import ALONE, cost, without_share
from gputopo.runs.verdict.hosts import SlowNetwork, named_by_host
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.peers import Answer, PeerDifference, differences, gpu_of, percent_of, unknown
from gputopo.runs.verdict.sampled import HOST_CPU, HOST_TAKEN
from gputopo.runs.verdict.words import COMPUTE, at_least
from gputopo.values.grouping import grouped
from gputopo.values.run.events import NETWORK, Anomaly, Device
from gputopo.values.run.verdict import (
    CANNOT_TELL,
    CONFIDENCE,
    EVEN,
    EVEN_PERCENT,
    FALSE_ALARM,
    SLOW,
    SLOW_PERCENT,
    Cost,
    Expected,
    HostSummary,
    Verdict,
)
from gputopo.values.words import at_most, percent, speed

_replace = msgspec.structs.replace


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of a run: one for each device, in their order, and the load of the host."""

    devices: tuple[Verdict, ...] = ()
    on: tuple[Device, ...] = ()  # the devices
    run: Verdict | None = None  # on all devices together; None: nothing to compare with is known
    host: HostSummary | None = None  # with several hosts, the first host that is too busy, else rank 0
    cost: Cost | None = None  # of all slow devices together
    without_devices: str | None = None  # why there is no device to compare

    @property
    def slow(self) -> tuple[Verdict, ...]:
        """The verdicts on slow devices."""
        return tuple(verdict for verdict in self.devices if verdict.word == SLOW)

    @property
    def not_made(self) -> str | None:
        """Why no device could be compared; None if one was."""
        if any(verdict.percent_under_low is not None for verdict in self.devices):
            return None
        whys = dict.fromkeys(verdict.why or "" for verdict in self.devices)
        return self.without_devices or "; ".join(whys) or "no devices are known"

    @property
    def check(self) -> str:
        """The check as `gputopo.result/1` has it: "made", "made, but not for ...", "not made: ..."."""
        if self.not_made is not None:
            return f"not made: {self.not_made}"
        left_out = [verdict.says for verdict in self.devices if verdict.percent_under_low is None]
        return "made" + (f", but not for {'; nor for '.join(left_out)}" if left_out else "")

    def device_of(self, verdict: Verdict) -> Device | None:
        """Return the device of a verdict."""
        return next((device for device in self.on if device.tower == verdict.tower), None)

    def anomaly(self, slow: Verdict, time_s: float) -> Anomaly:
        """Return the event for a slow device; `time_s` in seconds since the epoch."""
        device = self.device_of(slow)
        return Anomaly(
            time_s=time_s,
            rank=0 if device is None else device.rank,
            tower=slow.tower or 0,
            part=slow.part or "compute",
            percent_under=slow.percent_under or 0.0,
            percent_under_low=slow.percent_under_low or 0.0,
            confidence=CONFIDENCE,
            says=slow.says,
            gpu=slow.gpu,
            causes=slow.causes,
        )


def judge(
    paces: Paces,
    *,
    mode: str | None = None,
    expected: Expected | None = None,
    unexpected: str | None = None,
) -> Judgement:
    """Return the verdicts of a run so far.

    `mode`: its `variable_update`. `expected`: its expected speed; `unexpected`: why that is unknown.
    """
    hosts = paces.hosts.summaries(paces.devices)
    host = next((load for load in hosts.values() if load.busy is not None), hosts.get(0))
    among = differences(paces)
    by_tower = grouped((difference.device.tower, difference) for difference in among)
    verdicts = {
        device.tower: _on_device(paces, device, by_tower.get(device.tower, ()), among, hosts.get(device.rank))
        for device in paces.devices
    }
    slow = {
        (difference.device.tower, difference.part): difference.peer
        for difference in among
        if (verdict := verdicts[difference.device.tower]).word == SLOW
        if verdict.part in (difference.part, None)
    }

    def cost_of(peers: Mapping[tuple[int, str], int]) -> Cost | None:
        return cost(paces.kept.items, peers, paces.allowance, alone=mode in ALONE) if peers else None

    verdicts = named_by_host(paces.devices, verdicts)
    costing = {}
    for tower, verdict in verdicts.items():
        # The devices that share a host's sentence have one common cost.
        same_words = {other for other in verdicts if verdicts[other].says == verdict.says}
        towers = same_words if verdict.word == SLOW else {tower}
        peers = {key: peer for key, peer in slow.items() if key[0] in towers}
        costing[tower] = _replace(verdict, cost=cost_of(peers))
    for network in paces.exchange.slow():
        load = hosts.get(network.rank)
        for device in paces.devices:
            if device.rank == network.rank and verdicts[device.tower].word != SLOW:
                busy = None if load is None else load.busy
                costing[device.tower] = _on_network(paces, device, network, busy)
    network_cost = next((verdict.cost for verdict in costing.values() if verdict.part == NETWORK), None)
    return Judgement(
        on=paces.devices,
        devices=tuple(costing.values()),
        run=_on_run(paces, expected, unexpected, host, {verdict.from_step for verdict in verdicts.values()}),
        host=host,
        cost=cost_of(slow) or network_cost,
    )


def _on_network(paces: Paces, device: Device, slow: SlowNetwork, busy: str | None) -> Verdict:
    """Return the verdict on a device of a host with a slow network. `busy`: another possible cause."""
    what, than = (
        ("its gradients arrive", "those of the other hosts")
        if slow.sends
        else ("the gradients of the other hosts arrive there", "on the other hosts")
    )
    sure = (
        f"{percent(slow.percent.middle)}% of the step; at least {at_least(slow.percent.low)}%, "
        f"{100 * CONFIDENCE:g}% confidence"
    )
    why = paces.networks.get(device.rank) or "check its network card, link and switch port"
    why += f"; or its load: {busy}" if busy is not None else ""
    host = f"host {device.host or f'rank {device.rank}'}"
    return Verdict(
        word=SLOW,
        says=f"{host}: {what} {slow.ms:.1f} ms later than {than} ({sure}): {why}",
        tower=device.tower,
        gpu=gpu_of(device),
        against="peers",
        part=NETWORK,
        percent_under=slow.percent.middle,
        percent_under_low=slow.percent.low,
        percent_under_high=slow.percent.high,
        steps=slow.steps,
        effective_steps=slow.percent.effective,
        cost=without_share(paces.kept.items, slow.percent.middle / 100),
    )


def _on_device(
    paces: Paces,
    device: Device,
    of_device: Sequence[PeerDifference],
    among: Sequence[PeerDifference],
    host: HostSummary | None,
) -> Verdict:
    if not of_device or not paces.steps:
        return unknown(device, _why_not_compared(paces, device))
    if paces.gone(device.tower):
        why = f"no time marks after step {paces.last_seen[device.tower]}"
        if (gpu := gpu_of(device)) is not None:
            why += "; NVML reported that the GPU is lost" if (device.rank, gpu) in paces.facts.lost else ""
            xid = paces.facts.xids.get((device.rank, gpu))
            why += "" if xid is None else f"; Xid {xid}"
        return unknown(device, why)
    by_part = [Answer(paces, difference, among).verdict() for difference in of_device]
    slow = [verdict for verdict in by_part if verdict.word == SLOW]
    if slow:
        worst = max(slow, key=lambda verdict: verdict.percent_under or 0.0)
        if host is None or host.busy is None:
            return _with_causes(paces, worst, of_device)
        if _exceeds(worst, host):
            share, most = 100 * (host.other_cpu_share or 0.0), at_most(host.may_cost_percent or 0.0)
            beside = f"other programs took {share:.0f}% of the CPU, which explains at most {most}%"
            return _with_causes(paces, _replace(worst, says=f"{worst.says}; {beside}"), of_device)
        if (idle := _while_idle(paces, worst, of_device, among, host.samples)) is not None:
            return idle
        # The resolution would be true only on an idle host.
        return unknown(device, host.busy, _replace(worst, resolution_percent=None))
    widest = max(by_part, key=lambda verdict: verdict.percent_under_high or 0.0)
    if widest.word != EVEN:
        return widest
    return next((verdict for verdict in by_part if verdict.share_of_steps is not None), widest)


def _while_idle(
    paces: Paces,
    slow: Verdict,
    of_device: Sequence[PeerDifference],
    among: Sequence[PeerDifference],
    samples: int,
) -> Verdict | None:
    """Return the verdict on a device that is slow even in steps without other programs on the CPU; else None.

    Slowness caused by the load does not occur in these steps. A sample covers the time before it, so the next
    sample counts too.
    """
    (whole,) = (difference for difference in of_device if difference.part == slow.part)
    taken = paces.facts.of_host(whole.device.tower, HOST_TAKEN if whole.device.is_cpu else HOST_CPU)
    later = math.ceil(len(taken) / max(samples, 1))
    idle = [
        place
        for place, row in enumerate(whole.rows)
        if row + later < len(taken) and not any(taken[row : row + later + 1])
    ]
    if len(idle) < 2:
        return None
    part = _replace(
        whole,
        values=[whole.values[place] for place in idle],
        lost=[whole.lost[place] for place in idle],
        rows=[whole.rows[place] for place in idle],
    )
    verdict = Answer(paces, part, among).verdict()
    if verdict.word != SLOW:
        return None
    says = f"{verdict.says}, in the {verdict.steps:,} steps in which no other program used the CPU"
    return _with_causes(paces, _replace(verdict, says=says), [part])


def _exceeds(slow: Verdict, host: HostSummary) -> bool:
    """Return whether a device is slower than the load of the host can explain."""
    in_a_part = (slow.from_step, slow.to_step, slow.share_of_steps) != (None, None, None)
    if host.may_cost_percent is None or slow.percent_under_low is None or in_a_part:
        return False  # the load may have been higher in that part
    left = 1 - host.may_cost_percent / 100
    return left > 0 and 100 * (1 - (1 - slow.percent_under_low / 100) / left) > SLOW_PERCENT


def _with_causes(paces: Paces, verdict: Verdict, of_device: Sequence[PeerDifference]) -> Verdict:
    """Return the verdict on a slow device with its causes. Few causes are sampled for a CPU device."""
    (difference,) = (of_part for of_part in of_device if of_part.part == verdict.part)
    causes = explained(paces.facts, paces, difference, verdict)
    if difference.device.is_cpu and not causes.found:
        return verdict
    return _replace(verdict, causes=causes, says=f"{verdict.says}. {causes.says}")


def _why_not_compared(paces: Paces, device: Device) -> str:
    if len(paces.devices) < 2:
        return "one device has no peer"
    if not paces.steps:
        return "no step was counted"
    if not any(device in group for group in paces.kinds):
        return "no peer of its kind"
    return "no time marks"


def _on_run(
    paces: Paces,
    expected: Expected | None,
    unexpected: str | None,
    host: HostSummary | None,
    changes: Set[int | None],
) -> Verdict | None:
    """Return the verdict on all devices together. `changes`: steps from which single devices were slow."""
    verdict = None if changes - {None} else against_past(paces)
    if verdict is None and expected is not None:
        verdict = against_expected(paces, expected)
    if verdict is None and unexpected is not None:
        says = f"Not compared with what this run should reach: {unexpected}"
        return Verdict(word=CANNOT_TELL, says=says, why=unexpected, against="expected")
    if verdict is None or verdict.word != SLOW:
        return verdict
    if host is not None and host.busy is not None:
        says = f"Cannot tell: {host.busy} ({verdict.says[0].lower()}{verdict.says[1:]})"
        return _replace(verdict, word=CANNOT_TELL, why=host.busy, says=says)
    causes = run_explained(paces.facts, verdict, paces.devices) if verdict.against == "past" else None
    return (
        verdict if causes is None else _replace(verdict, causes=causes, says=f"{verdict.says}. {causes.says}")
    )


def against_expected(paces: Paces, expected: Expected) -> Verdict:
    """Return whether a run is as fast as expected. The range of the expectation widens "even"."""
    bounds = level_bounds(paces.run(), FALSE_ALARM)
    if bounds is None:
        return Verdict(
            word=CANNOT_TELL,
            says=f"All devices: cannot be compared with {expected.source}: too few steps",
            why="too few steps",
            against="expected",
            steps=paces.steps,
        )
    middle, slowest, fastest = (math.exp(-x) for x in (bounds.middle, bounds.high, bounds.low))
    under = 100 * (1 - middle / expected.images_per_sec)
    low, high = 100 * (1 - fastest / expected.low), 100 * (1 - slowest / expected.high)
    resolution = SLOW_PERCENT + 100 * (1 - expected.low / expected.high * slowest / fastest) / 2
    figures = f"{speed(middle)} images/sec, {expected.source} {speed(expected.images_per_sec)}"
    why = None
    if low > SLOW_PERCENT:
        word, says = SLOW, f"The run is {percent(under)}% slower than expected (at least {at_least(low)}%)"
    elif high <= EVEN_PERCENT:
        word, says = EVEN, f"The run is as fast as expected, within {at_most(max(high, 0.1))}%"
    else:
        why = f"differences below {at_most(resolution)}% cannot be seen"
        word, says = CANNOT_TELL, f"Cannot tell whether the run is as fast as expected: {why}"
    return Verdict(
        word=word,
        says=f"{says}: {figures}",
        why=why,
        against="expected",
        percent_under=under,
        percent_under_low=low,
        percent_under_high=high,
        resolution_percent=resolution,
        steps=paces.steps,
        effective_steps=bounds.effective * paces.blocks.size,
    )


def against_past(paces: Paces) -> Verdict | None:
    """Return that all devices of a run became slower together; None if they did not."""
    run = paces.run()
    spans = parts(run, paces.blocks.size)
    if len(spans) < 2:
        return None
    chance = FALSE_ALARM / 2 / PLACES
    bounds = [(part, part_bounds(run[slice(*part)], chance)) for part in spans]
    known = [(part, bound) for part, bound in bounds if bound.effective >= min_values(chance)]
    if len(known) < 2:
        return None
    (begin, _), last = known[-1]
    # The first part may be a slower warm-up, so the run is compared with the fastest earlier part.
    best = min((bound for _, bound in known[:-1]), key=lambda bound: bound.middle)
    slower = percent_of(COMPUTE)
    low, under = slower(last.low - best.high), slower(last.middle - best.middle)
    if low <= SLOW_PERCENT:
        return None
    since = paces.blocks.first_steps[begin]
    became = f"The run became {percent(under)}% slower (at least {at_least(low)}%) at about step {since:,}"
    return Verdict(
        word=SLOW,
        says=became,
        against="past",
        percent_under=under,
        percent_under_low=low,
        percent_under_high=slower(last.high - best.low),
        steps=paces.steps,
        from_step=since,
    )
