"""The network between hosts, measured in pairs: failed transfers, slow hosts, directions, pairs, all.

A transfer is slow if it is slower than the fast ones of its measurement; where rates vary, in all of its
intervals. The slow ones are explained by as few hosts as can be: a host of whose transfers in a direction
nearly all are slow, worst first; what is left is of pairs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Literal, NamedTuple

from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of
from gputopo.values.bandwidth import NETWORK, Bandwidth, Sample, host_of
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE

SLOW = Threshold(
    "rate between two hosts, of the fast ones of all pairs",
    0.8,
    "of them",
    (
        "not measured on hardware: repeats on an idle network differ by some percent; of the 4,032 rates "
        "of 64 hosts with a noise of 3% none is so low"
    ),
)
MOST = Threshold(
    "transfers of a host in one direction that are slow",
    0.75,
    "of them",
    "not measured on hardware: all where there are up to four hosts",
)
OF_CARD = Threshold(
    "rate between hosts, of the payload at the card's rate",
    0.8,
    "of it",
    (
        "not measured on hardware: TCP reaches 94 to 99% of the rate as payload on an idle network; the "
        "rest is for its ramp-up"
    ),
)
AT_ONCE = Threshold(
    "rate of a host while all send at once, of its rate in pairs",
    0.7,
    "of it",
    "not measured on hardware: a network without oversubscription carries all at once",
)
UNSTEADY = Threshold(
    "spread of the intervals of a transfer, median of all pairs",
    40.0,
    "% of the median",
    (
        "not measured on hardware: with it the median of a transfer may be off by a fifth, the "
        "difference that counts as slow"
    ),
)
_FAST = 0.9  # quantile of all rates that counts as fast: with a slow host most of a few may be slow

FAILED = Rule(
    "network.failed",
    "a transfer between hosts failed",
    remedy=(
        "See whether the other host is up, runs the same program and can be reached at that port: host "
        "name, interface, firewall (ping, ss -tln); for RDMA see ibstat and gputopo inspect."
    ),
    severities=("error",),
)
HOST_SLOW = Rule(
    "network.host_slow",
    "a host sends or receives more slowly than the others",
    remedy=(
        "Compare its card with those of the other hosts: rate, MTU, errors, PCIe width (gputopo inspect "
        "--fleet), then its cable, transceiver and switch port; see whether other programs use its "
        "network or CPU. Slow in one direction only: errors of the port, pause frames (ethtool -S)."
    ),
    thresholds=(SLOW, MOST),
)
PAIR_SLOW = Rule(
    "network.pair_slow",
    "single pairs of hosts are slow, which are fast with others",
    remedy=(
        "Look for the path that only they share: a link between two switches, one of several equal paths "
        "(ECMP, adaptive routing), a route over another interface (ip route get). Measure again: where "
        "other pairs are slow then, it is load of others."
    ),
    thresholds=(SLOW,),
)
ALL_SLOW = Rule(
    "network.all_slow",
    "all hosts transfer less than their cards allow",
    remedy=(
        "Look for what all share: switch, MTU, the interface that the addresses are of (--hosts with "
        "addresses of the fast network), load of other jobs; CPU frequency, and interrupts on one core."
    ),
    thresholds=(OF_CARD,),
)
UNATTRIBUTED = Rule(
    "network.unattributed",
    "two hosts transfer slowly; which of them is the cause cannot be told",
    remedy="Measure with a third host: the one that is slow with both of the others is named.",
    thresholds=(SLOW, OF_CARD),
)
OVERSUBSCRIBED = Rule(
    "network.oversubscribed",
    "all hosts at once are slower than in pairs",
    remedy=(
        "The switches between them carry less than all cards together, or other jobs use them. Take "
        "hosts of one switch (srun --switches=1), or expect reductions over all hosts at this rate."
    ),
    thresholds=(AT_ONCE,),
)

UNSTEADY_RATES = Rule(
    "network.unsteady",
    "rates between hosts vary so much that a slow host may not be found",
    remedy=(
        "End what else uses the network and the CPUs of the hosts (other jobs, copies, backups), and "
        "measure again; --effort full measures longer."
    ),
    thresholds=(UNSTEADY,),
)

_MAX_NAMED = 4
Direction = Literal["sends", "receives"]
Pair = tuple[str, str]


class SlowHost(NamedTuple):
    """A host that is slow in one direction, with the median share of the fast rate that it reaches."""

    host: str
    direction: Direction
    share: float


class NetworkVerdict(NamedTuple):
    """Why transfers are slow: hosts, and pairs that no slow host explains, with their shares."""

    fast_gb_per_s: float
    hosts: tuple[SlowHost, ...]
    pairs: Mapping[Pair, float]


def verdict(rates: Mapping[Pair, float], best: Mapping[Pair, float] | None = None) -> NetworkVerdict:
    """Return what explains the slow ones of GB/s from host to host.

    `best`: the rates that are compared with the fast one of `rates`, if they are others.
    """
    ordered = sorted(rates.values())
    fast = ordered[ceil(_FAST * (len(ordered) - 1))]
    left = {pair: rate / fast for pair, rate in (best or rates).items()}
    hosts: list[SlowHost] = []
    while (worst := _worst(left)) is not None:
        hosts.append(worst)
        end = 0 if worst.direction == "sends" else 1
        left = {pair: share for pair, share in left.items() if pair[end] != worst.host}
    return NetworkVerdict(fast, tuple(hosts), {p: share for p, share in left.items() if share < SLOW.value})


def _worst(shares: Mapping[Pair, float]) -> SlowHost | None:
    """Return the host and direction with the largest part of slow transfers, and of these the slowest."""
    found: list[tuple[float, float, str, Direction]] = []
    directions: tuple[Direction, Direction] = ("sends", "receives")
    for end, direction in enumerate(directions):
        for host, own in grouped((pair[end], share) for pair, share in shares.items()).items():
            part = sum(share < SLOW.value for share in own) / len(own)
            if len(own) > 1 and part >= MOST.value:
                found.append((-part, median(own), host, direction))
    if not found:
        return None
    _, share, host, direction = min(found)
    return SlowHost(host, direction, share)


@check(FAILED)
def failed(machine: Machine) -> Iterator[Fault]:
    """Find transfers between hosts that failed, one finding for each reason."""
    by_words = grouped(
        (failure.says, (_name(failure.source), _name(failure.destination)))
        for failure in copies_of(machine).failures
        if failure.kind in NETWORK
    )
    for says, pairs in by_words.items():
        whole = list(dict.fromkeys(pairs))
        yield FAILED.fault(MACHINE, f"{_named(whole)}: {says}", {"transfers": whole, "says": says})


@check(HOST_SLOW, PAIR_SLOW, ALL_SLOW, UNATTRIBUTED)
def slow(machine: Machine) -> Iterator[Fault]:
    """Find what is slow in a measurement of all pairs of hosts; there is none of two programs' outputs."""
    samples = _of_pairs(copies_of(machine))
    is_steady = _spread(samples) <= UNSTEADY.value
    rates, best = _by_pair(samples), _by_pair(samples, at_best=not is_steady)
    if len(rates) < 2:
        return
    hosts = sorted({host for pair in rates for host in pair})
    are_two = len(hosts) == 2  # none of which is compared with others
    found = verdict(rates, best)
    yield from _of_hosts(found)
    if found.pairs:
        why = "the sender or the receiver" if are_two else "both ends are fast with others"
        yield _of_single_pairs(UNATTRIBUTED if are_two else PAIR_SLOW, found, why)
    rates_of_cards = ((sample.median_gb_per_s, sample.expected_gb_per_s) for sample in samples)
    of_cards = [rate / allowed for rate, allowed in rates_of_cards if rate and allowed]
    if of_cards and is_steady and median(of_cards) < OF_CARD.value and not (are_two and found.pairs):
        who = " and ".join(hosts) if are_two else f"{len(hosts)} hosts"
        yield _below_cards(UNATTRIBUTED if are_two else ALL_SLOW, samples, median(of_cards), who)


def _of_hosts(found: NetworkVerdict) -> Iterator[Fault]:
    for host, ways in grouped((way.host, way) for way in found.hosts).items():
        words = "sends and receives" if len(ways) > 1 else ways[0].direction
        other = "" if len(ways) > 1 else "; the other direction is not slow"
        share, fast = min(way.share for way in ways), found.fast_gb_per_s
        rates = f"{share:.0%} of what the fast pairs reach ({share * fast:.3g} of {fast:.3g} GB/s)"
        evidence = {"host": host, "directions": {way.direction: way.share for way in ways}}
        says = f"host {host} {words} at {rates} with nearly all others{other}"
        yield HOST_SLOW.fault(MACHINE, says, evidence | {"fast_gb_per_s": fast})


def _of_single_pairs(rule: Rule, found: NetworkVerdict, why: str) -> Fault:
    worst, fast = min(found.pairs.values()), found.fast_gb_per_s
    down = f"{_named(sorted(found.pairs))}: down to {worst:.0%} of what the fast pairs reach"
    pairs = [[*pair, share] for pair, share in sorted(found.pairs.items())]
    says = f"{down} ({fast:.3g} GB/s); {why}"
    return rule.fault(MACHINE, says, {"pairs": pairs, "fast_gb_per_s": fast})


def _below_cards(rule: Rule, samples: Iterable[Sample], share: float, who: str) -> Fault:
    sample = next(sample for sample in samples if sample.expected_gb_per_s)
    allowed = f"{sample.expected_gb_per_s:.3g} GB/s: {sample.expected_source}"
    evidence = {
        "share": share,
        "expected_gb_per_s": sample.expected_gb_per_s,
        "source": sample.expected_source,
    }
    return rule.fault(MACHINE, f"{who}: {share:.0%} of what the cards allow ({allowed})", evidence)


@check(UNSTEADY_RATES)
def unsteady(machine: Machine) -> Iterator[Fault]:
    """Find measurements in which the rate of each transfer varies too much for a verdict."""
    spread = _spread(_of_pairs(copies_of(machine)))
    if spread > UNSTEADY.value:
        says = f"the rate of one transfer varies by {spread:.0f}% within its measurement (median of all)"
        called = "only what is slow in all its intervals is called slow"
        yield UNSTEADY_RATES.fault(MACHINE, f"{says}: {called}", {"varies": says})


def _spread(samples: Sequence[Sample]) -> float:
    """Return by how many percent the rate of a transfer varies: the median of all."""
    return median([sample.spread_percent or 0.0 for sample in samples] or [0.0])


@check(OVERSUBSCRIBED)
def oversubscribed(machine: Machine) -> Iterator[Fault]:
    """Find rates that fall while all hosts send at once."""
    samples = _of_pairs(copies_of(machine))
    alone = _by_pair(samples)
    together = [sample for sample in _rates(copies_of(machine)) if sample.group is not None]
    pairs = [(_pair(sample), sample.median_gb_per_s) for sample in together]
    shares = [rate / before for pair, rate in pairs if rate and (before := alone.get(pair))]
    if len(shares) > 2 and median(shares) < AT_ONCE.value and _spread(samples) <= UNSTEADY.value:
        total, share = sum(rate or 0.0 for _, rate in pairs), median(shares)
        reach = f"{len(pairs)} hosts at once reach {share:.0%} of their rate in pairs"
        evidence = {"share": share, "together_gb_per_s": total}
        yield OVERSUBSCRIBED.fault(MACHINE, f"{reach}, {total:.3g} GB/s together", evidence)


def _rates(bandwidth: Bandwidth) -> list[Sample]:
    if bandwidth.source != "live":
        return []
    return [sample for sample in bandwidth.samples if sample.kind == "network" and sample.median_gb_per_s]


def _of_pairs(bandwidth: Bandwidth) -> list[Sample]:
    """Return the transfers of pairs in one direction; of a tool that always uses both, in both at once."""
    found = [sample for sample in _rates(bandwidth) if sample.group is None]
    return [sample for sample in found if not sample.with_reverse] or found


def _by_pair(samples: Iterable[Sample], *, at_best: bool = False) -> dict[Pair, float]:
    """Return the GB/s of each pair; `at_best`: in its fastest interval."""
    return {
        _pair(sample): max((sample.median_gb_per_s or 0.0, *(sample.repeats_gb_per_s if at_best else ())))
        for sample in samples
    }


def _pair(sample: Sample) -> Pair:
    return _name(sample.source), _name(sample.destination)


def _name(place: str) -> str:
    return host_of(place) or place


def _named(pairs: Iterable[Pair]) -> str:
    words = [f"{a} to {b}" for a, b in pairs]
    more = f" and {len(words) - _MAX_NAMED} more" if len(words) > _MAX_NAMED else ""
    return f"{', '.join(words[:_MAX_NAMED])}{more}"
