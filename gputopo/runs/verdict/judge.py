"""The verdict on each device of a run, and on the run as a whole. Pure."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Self

import msgspec

from gputopo.runs.devices import is_cpu, short_name_of
from gputopo.runs.verdict import words
from gputopo.runs.verdict.bounds import interval
from gputopo.runs.verdict.causes import explained, run_explained
from gputopo.runs.verdict.changes import parts
from gputopo.runs.verdict.cost import ALONE, cost, without_share
from gputopo.runs.verdict.hosts import SENDS, SlowNetwork, named_by_host
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.peers import Difference, answer, differences, steps_needed, unknown
from gputopo.runs.verdict.words import CONFIDENCE, EVEN_PERCENT, FALSE_ALARM, SLOW_PERCENT
from gputopo.values.run.events import NETWORK, Anomaly, Device, Step
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW, Cost, Expected, HostSummary, Verdict


def against_expected(paces: Paces, expected: Expected) -> Verdict:
    """Return whether a run is as fast as expected; the range of the expectation widens what is even."""
    found = interval(paces.run(), FALSE_ALARM)
    if found is None:
        return Verdict(
            word=CANNOT_TELL,
            says=f"All devices: cannot tell against {expected.source}: too few steps",
            why="too few steps",
            against="expected",
            steps=paces.steps,
        )
    speed, slowest, fastest = (math.exp(-x) for x in (found.middle, found.high, found.low))
    verdict = Verdict(
        word=CANNOT_TELL,
        says="",
        against="expected",
        percent_under=100 * (1 - speed / expected.images_per_sec),
        percent_under_low=100 * (1 - fastest / expected.low),
        percent_under_high=100 * (1 - slowest / expected.high),
        resolution_percent=SLOW_PERCENT + 100 * (1 - expected.low / expected.high * slowest / fastest) / 2,
        steps=paces.steps,
        effective_steps=found.effective * paces.blocks.size,
    )
    return words.against_expected(verdict, _word(verdict), speed, expected)


def against_past(paces: Paces) -> Verdict | None:
    """Return that a run became slower, None where it did not: all devices alike."""
    run = paces.run()
    found = parts(run, paces.blocks.size)
    if len(found) < 2:
        return None
    bounds = [interval(run[begin:end], FALSE_ALARM / 2) for begin, end in found]
    known = [(part, bound) for part, bound in zip(found, bounds, strict=True) if bound is not None]
    if len(known) < 2:
        return None
    (begin, _), last = known[-1]
    # What came first may be a warm-up, and slower: the run is compared with the fastest part before.
    best = min((bound for _, bound in known[:-1]), key=lambda bound: bound.middle, default=last)
    low = 100 * (1 - math.exp(-(last.low - best.high)))
    if low <= SLOW_PERCENT:
        return None
    verdict = Verdict(
        word=SLOW,
        says="",
        against="past",
        percent_under=100 * (1 - math.exp(-(last.middle - best.middle))),
        percent_under_low=low,
        percent_under_high=100 * (1 - math.exp(-(last.high - best.low))),
        steps=paces.steps,
        from_step=paces.blocks.first_steps[begin],
    )
    return words.slower_than_before(verdict)


def _word(verdict: Verdict) -> str:
    if (verdict.percent_under_low or 0.0) > SLOW_PERCENT:
        return SLOW
    return EVEN if (verdict.percent_under_high or 0.0) <= EVEN_PERCENT else CANNOT_TELL


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of a run: one for each device, in their order, and the load of the host beside them.

    `run`: on the run as a whole (all devices alike), None where nothing is known against which to compare.
    `cost`: of all slow devices together. `on`: the devices. `host`: of several, that of the first that
    is too busy, else of rank 0.
    """

    devices: tuple[Verdict, ...]
    on: tuple[Device, ...] = ()
    run: Verdict | None = None
    host: HostSummary | None = None
    cost: Cost | None = None

    @property
    def slow(self) -> tuple[Verdict, ...]:
        """The verdicts on slow devices."""
        return tuple(verdict for verdict in self.devices if verdict.word == SLOW)

    @property
    def ranks(self) -> dict[int, int]:
        """The rank of each tower's host."""
        return {device.tower: device.rank for device in self.on}

    def name_of(self, verdict: Verdict) -> str:
        """Return the short name of the device that a verdict is on."""
        names = (short_name_of(device) for device in self.on if device.tower == verdict.tower)
        return next(names, f"tower {verdict.tower}")


def judge(
    paces: Paces,
    *,
    mode: str | None = None,
    expected: Expected | None = None,
    unexpected: str | None = None,
) -> Judgement:
    """Return the verdicts of a run so far.

    `mode`: its `variable_update`. `expected`: its speed; `unexpected`: why that is not known.
    """
    hosts = _host_loads(paces)
    host = next((one for one in hosts.values() if one.busy is not None), hosts.get(0))
    found = differences(paces)
    verdicts = {
        device.tower: _on_device(
            paces, device, [one for one in found if one.device == device], hosts.get(device.rank)
        )
        for device in paces.devices
    }
    slow = {
        (one.device.tower, one.part): one.peer
        for one in found
        if (own := verdicts[one.device.tower]).word == SLOW and own.part in (one.part, None)
    }

    def cost_of(peers: Mapping[tuple[int, str], int]) -> Cost | None:
        return cost(paces.kept.items, peers, paces.allowance, alone=mode in ALONE) if peers else None

    together = _slow_together(verdicts := named_by_host(paces.devices, verdicts))
    costing = {
        tower: msgspec.structs.replace(
            verdict, cost=cost_of({key: peer for key, peer in slow.items() if key[0] in together[tower]})
        )
        for tower, verdict in verdicts.items()
    }
    networks = [one for one in paces.exchange.slow() if not _is_busy(hosts.get(one.rank))]
    costing |= _with_slow_networks(paces, costing, networks)
    return Judgement(
        on=paces.devices,
        devices=tuple(costing.values()),
        run=_on_run(paces, expected, host, {verdict.from_step for verdict in verdicts.values()})
        or (None if unexpected is None else words.not_expected(unexpected)),
        host=host,
        cost=cost_of(slow) or next((one.cost for one in costing.values() if one.part == NETWORK), None),
    )


def _is_busy(host: HostSummary | None) -> bool:
    return host is not None and host.busy is not None


def _with_slow_networks(
    paces: Paces, verdicts: Mapping[int, Verdict], networks: Sequence[SlowNetwork]
) -> dict[int, Verdict]:
    """Return the verdicts on the devices of hosts whose network is slow, but for those slow by themselves."""
    found = {}
    for one in networks:
        for device in paces.devices:
            if device.rank == one.rank and verdicts[device.tower].word != SLOW:
                found[device.tower] = _on_network(paces, device, one)
    return found


def _on_network(paces: Paces, device: Device, slow: SlowNetwork) -> Verdict:
    verdict = Verdict(
        word=SLOW,
        says="",
        tower=device.tower,
        gpu=None if is_cpu(device) else device.gpu,
        against="peers",
        part=NETWORK,
        percent_under=slow.percent.middle,
        percent_under_low=slow.percent.low,
        percent_under_high=slow.percent.high,
        steps=slow.steps,
        effective_steps=slow.percent.effective,
        cost=without_share(paces.kept.items, slow.percent.middle / 100),
    )
    host = device.host or f"rank {device.rank}"
    says = words.slow_network(
        host, verdict, slow.ms, sends=slow.column == SENDS, why=paces.networks.get(device.rank)
    )
    return msgspec.structs.replace(verdict, says=says)


def _host_loads(paces: Paces) -> dict[int, HostSummary]:
    """Return the load of each host that was sampled, by rank; of several, `busy` names the host."""
    on_cpu = bool(paces.devices) and all(is_cpu(device) for device in paces.devices)
    found = {}
    for rank, record in paces.hosts.items():
        own = [device for device in paces.devices if device.rank == rank]
        load = record.summary(cpu_devices=len(own) if on_cpu else 0)
        if load is not None and load.busy is not None and own and own[0].host is not None:
            load = msgspec.structs.replace(load, busy=f"on {own[0].host} {load.busy}")
        if load is not None:
            found[rank] = load
    return found


def _slow_together(verdicts: Mapping[int, Verdict]) -> dict[int, set[int]]:
    """Return by tower those that its verdict is about: itself, or all with the sentence of its host."""
    slow = {tower: found.says for tower, found in verdicts.items() if found.word == SLOW}
    return {
        tower: {other for other, says in slow.items() if says == slow.get(tower)} or {tower}
        for tower in verdicts
    }


def _on_run(
    paces: Paces, expected: Expected | None, host: HostSummary | None, changes: Set[int | None]
) -> Verdict | None:
    """Return the verdict on all devices alike. `changes`: steps from which single devices were slow."""
    found = None if changes - {None} else against_past(paces)
    if found is None and expected is not None:
        found = against_expected(paces, expected)
    if found is not None and found.word == SLOW and host is not None and host.busy is not None:
        return msgspec.structs.replace(
            found, word=CANNOT_TELL, why=host.busy, says=words.busy(found.says, host.busy)
        )
    if found is None or found.word != SLOW or found.against != "past":
        return found
    causes = run_explained(paces.facts, found, paces.devices)
    if causes is None:
        return found
    return msgspec.structs.replace(found, causes=causes, says=f"{found.says}. {causes.says}")


def _on_device(
    paces: Paces, device: Device, found: Sequence[Difference], host: HostSummary | None
) -> Verdict:
    if not found or not paces.steps:
        return unknown(device, _why_not_compared(paces, device))
    if paces.gone(device.tower):
        place = (device.rank, device.gpu)
        lost = not is_cpu(device) and place in paces.facts.lost
        xid = None if is_cpu(device) or device.gpu is None else paces.facts.xids.get(place)
        return unknown(device, words.gone(paces.last_seen[device.tower], lost=lost, xid=xid))
    by_part = [answer(paces, one) for one in found]
    slow = [verdict for verdict in by_part if verdict.word == SLOW]
    if slow and host is not None and host.busy is not None:
        worst = max(slow, key=_percent)
        if _exceeds(worst, host):
            return _with_causes(
                paces, msgspec.structs.replace(worst, says=words.beside(worst.says, host)), found
            )
        # What the run resolves, it would resolve on an idle host.
        return unknown(device, host.busy, msgspec.structs.replace(worst, resolution_percent=None))
    if slow:
        return _with_causes(paces, max(slow, key=_percent), found)
    if unclear := [verdict for verdict in by_part if verdict.word == CANNOT_TELL]:
        return max(unclear, key=_percent)
    widest = max(by_part, key=lambda verdict: verdict.percent_under_high or 0.0)
    return next((verdict for verdict in by_part if verdict.share_of_steps is not None), widest)


def _exceeds(slow: Verdict, host: HostSummary) -> bool:
    """Whether a device is slower than the load of the host could make it."""
    in_a_part = (slow.from_step, slow.to_step, slow.share_of_steps) != (None, None, None)
    if host.may_cost_percent is None or slow.percent_under_low is None or in_a_part:
        return False  # the load may have been higher in that part
    left = 1 - host.may_cost_percent / 100
    return left > 0 and 100 * (1 - (1 - slow.percent_under_low / 100) / left) > SLOW_PERCENT


def _with_causes(paces: Paces, verdict: Verdict, found: Sequence[Difference]) -> Verdict:
    """Return the verdict on a slow device with its causes; a CPU device has few that are sampled."""
    (difference,) = (one for one in found if one.part == verdict.part)
    causes = explained(paces.facts, paces, difference, verdict)
    if is_cpu(difference.device) and not causes.found:
        return verdict
    return msgspec.structs.replace(verdict, causes=causes, says=f"{verdict.says}. {causes.says}")


def _why_not_compared(paces: Paces, device: Device) -> str:
    if len(paces.devices) < 2:
        return "one device has no peer"
    if not paces.steps:
        return f"too few steps ({steps_needed(paces)} needed, 0 counted)"
    if not any(device in group for group in paces.kinds):
        return "no peer of its kind"
    return "no time marks"


def _percent(verdict: Verdict) -> float:
    return verdict.percent_under or 0.0


class AnomalyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether devices were compared at all, with the verdicts.

    `not_made`: why they were not, None if they were. `left_out`: devices that were not, and why.
    """

    judgement: Judgement = Judgement(devices=())
    not_made: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def anomalies(self) -> tuple[Verdict, ...]:
        """The verdicts on slow devices."""
        return self.judgement.slow

    @property
    def made(self) -> bool:
        """Whether devices were compared."""
        return self.not_made is None

    @property
    def verdict(self) -> str:
        """The check in words, as in `gputopo.result/1`: "made", "made, but not for ...", "not made: ..."."""
        if self.not_made is not None:
            return f"not made: {self.not_made}"
        return "made" + (f", but not for {'; nor for '.join(self.left_out)}" if self.left_out else "")

    @classmethod
    def of(cls, judgement: Judgement) -> Self:
        """Return the check that verdicts make: not made where no device could be compared."""
        left_out = [verdict for verdict in judgement.devices if verdict.percent_under_low is None]
        if len(left_out) == len(judgement.devices):
            whys = dict.fromkeys(verdict.why or "" for verdict in left_out)
            return cls(judgement=judgement, not_made="; ".join(whys) or "no devices are known")
        return cls(judgement=judgement, left_out=tuple(verdict.says for verdict in left_out))


def event_of(verdict: Verdict, time_s: float, rank: int = 0) -> Anomaly:
    """Return the event for a slow device; `time_s` in seconds since the epoch."""
    return Anomaly(
        time_s=time_s,
        rank=rank,
        tower=0 if verdict.tower is None else verdict.tower,
        part=verdict.part or "compute",
        percent_under=verdict.percent_under or 0.0,
        percent_under_low=verdict.percent_under_low or 0.0,
        confidence=CONFIDENCE,
        says=verdict.says,
        gpu=verdict.gpu,
        causes=verdict.causes,
    )


def find_anomalies(
    devices: Sequence[Device], steps: Sequence[Step], batches: Sequence[int] = ()
) -> AnomalyCheck:
    """Return the check of all steps of a run. `batches`: examples of each device; none: equal ones."""
    paces = Paces(devices, batches=batches)
    for step in steps:
        paces.add(step)
    return AnomalyCheck.of(judge(paces))
