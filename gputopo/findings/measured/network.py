"""The network between hosts, measured in pairs: failed transfers, slow hosts, directions, pairs, all.

A transfer is slow if it is slower than the fast ones of its measurement; where rates vary, in all of its
intervals. The slow ones are explained by as few hosts as can be: a host of whose transfers in a direction
nearly all are slow, worst first; what is left is of pairs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Literal, NamedTuple

from gputopo.findings.measured.faults import named_paths
from gputopo.findings.rule import Fault, Rule, check, copies_of, rule_of, threshold
from gputopo.values.bandwidth import NETWORK, Bandwidth, Sample
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE

SLOW = threshold("measured.network.SLOW")
MOST = threshold("measured.network.MOST")
OF_CARD = threshold("measured.network.OF_CARD")
AT_ONCE = threshold("measured.network.AT_ONCE")
UNSTEADY = threshold("measured.network.UNSTEADY")
_FAST = 0.9  # quantile of all rates that counts as fast: with a slow host most of a few may be slow

FAILED = rule_of("network.failed")
HOST_SLOW = rule_of("network.host_slow", SLOW, MOST)
PAIR_SLOW = rule_of("network.pair_slow", SLOW)
ALL_SLOW = rule_of("network.all_slow", OF_CARD)
UNATTRIBUTED = rule_of("network.unattributed", SLOW, OF_CARD)
OVERSUBSCRIBED = rule_of("network.oversubscribed", AT_ONCE)

UNSTEADY_RATES = rule_of("network.unsteady", UNSTEADY)

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
    by_words = grouped((one.says, one.names) for one in copies_of(machine).failures if one.kind in NETWORK)
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
    of_cards = _shares_of_cards(samples)
    if of_cards and is_steady and median(of_cards) < OF_CARD.value and not (are_two and found.pairs):
        who = " and ".join(hosts) if are_two else f"{len(hosts)} hosts"
        yield _below_cards(UNATTRIBUTED if are_two else ALL_SLOW, samples, median(of_cards), who)


def _of_hosts(found: NetworkVerdict) -> Iterator[Fault]:
    for host, ways in grouped((one.host, one) for one in found.hosts).items():
        words = "sends and receives" if len(ways) > 1 else ways[0].direction
        other = "" if len(ways) > 1 else "; the other direction is not slow"
        share, fast = min(one.share for one in ways), found.fast_gb_per_s
        rates = f"{share:.0%} of what the fast pairs reach ({share * fast:.3g} of {fast:.3g} GB/s)"
        evidence = {"host": host, "directions": {one.direction: one.share for one in ways}}
        says = f"host {host} {words} at {rates} with nearly all others{other}"
        yield HOST_SLOW.fault(MACHINE, says, evidence | {"fast_gb_per_s": fast})


def _of_single_pairs(rule: Rule, found: NetworkVerdict, why: str) -> Fault:
    worst, fast = min(found.pairs.values()), found.fast_gb_per_s
    down = f"{_named(sorted(found.pairs))}: down to {worst:.0%} of what the fast pairs reach"
    pairs = [[*pair, share] for pair, share in sorted(found.pairs.items())]
    says = f"{down} ({fast:.3g} GB/s); {why}"
    return rule.fault(MACHINE, says, {"pairs": pairs, "fast_gb_per_s": fast})


def _below_cards(rule: Rule, samples: Iterable[Sample], share: float, who: str) -> Fault:
    one = next(one for one in samples if one.expected_gb_per_s)
    allowed = f"{one.expected_gb_per_s:.3g} GB/s: {one.expected_source}"
    evidence = {"share": share, "expected_gb_per_s": one.expected_gb_per_s, "source": one.expected_source}
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
    return median([one.spread_percent or 0.0 for one in samples] or [0.0])


@check(OVERSUBSCRIBED)
def oversubscribed(machine: Machine) -> Iterator[Fault]:
    """Find rates that fall while all hosts send at once."""
    samples = _of_pairs(copies_of(machine))
    alone = _by_pair(samples)
    together = [one for one in _rates(copies_of(machine)) if one.group is not None]
    pairs = [(one.names, one.median_gb_per_s) for one in together]
    shares = [rate / before for pair, rate in pairs if rate and (before := alone.get(pair))]
    if len(shares) > 2 and median(shares) < AT_ONCE.value and _spread(samples) <= UNSTEADY.value:
        total, share = sum(rate or 0.0 for _, rate in pairs), median(shares)
        reach = f"{len(pairs)} hosts at once reach {share:.0%} of their rate in pairs"
        evidence = {"share": share, "together_gb_per_s": total}
        yield OVERSUBSCRIBED.fault(MACHINE, f"{reach}, {total:.3g} GB/s together", evidence)


def _rates(bandwidth: Bandwidth) -> list[Sample]:
    if bandwidth.source != "live":
        return []
    return [one for one in bandwidth.samples if one.kind == "network" and one.median_gb_per_s]


def _of_pairs(bandwidth: Bandwidth) -> list[Sample]:
    """Return the transfers of pairs in one direction; of a tool that always uses both, in both at once."""
    found = [one for one in _rates(bandwidth) if one.group is None]
    return [one for one in found if not one.with_reverse] or found


def _by_pair(samples: Iterable[Sample], *, at_best: bool = False) -> dict[Pair, float]:
    """Return the GB/s of each pair; `at_best`: in its fastest interval."""
    return {one.names: max((one.rate, *(one.repeats_gb_per_s if at_best else ()))) for one in samples}


def _shares_of_cards(samples: Iterable[Sample]) -> list[float]:
    rates = [(one.median_gb_per_s, one.expected_gb_per_s) for one in samples]
    return [rate / allowed for rate, allowed in rates if rate and allowed]


def _named(pairs: Iterable[Pair]) -> str:
    return named_paths(f"{a} to {b}" for a, b in pairs)
