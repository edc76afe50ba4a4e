"""The network between hosts, measured in pairs: failed transfers, slow hosts, directions, pairs, all.

A transfer is slow if it is slower than the fast ones of its measurement; where rates vary, in all of its
intervals. The slow ones are explained as those between GPUs are (`gputopo.copies.pairs.slow_ends`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies import SlowEnds, fastest, slow_ends
from gputopo.findings.measured.faults import named_paths
from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of
from gputopo.values.bandwidth import Bandwidth, Kind, TransferRate
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE

NETWORK_KINDS: tuple[Kind, ...] = ("network", "network_bidirectional", "network_latency")

SLOW = Threshold(
    "rate between two hosts, of the fast ones of all pairs",
    0.8,
    "of them",
    (
        "not measured on hardware: repeats on an idle network differ by some percent; of the 4,032 rates "
        "of 64 hosts with a noise of 3% none is so low"
    ),
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
    "a host sends or receives slower than the others",
    remedy=(
        "Compare its card with those of the other hosts: rate, MTU, errors, PCIe width (gputopo inspect "
        "--fleet), then its cable, transceiver and switch port; see whether other programs use its "
        "network or CPU. Slow in one direction only: errors of the port, pause frames (ethtool -S)."
    ),
    thresholds=(SLOW,),
)
PAIR_SLOW = Rule(
    "network.pair_slow",
    "single pairs of hosts are slow, although both hosts are fast with others",
    remedy=(
        "Look for the path that only they share: a link between two switches, one of several equal paths "
        "(ECMP, adaptive routing), a route over another interface (ip route get). Measure again: if "
        "other pairs are slow then, the cause is other load."
    ),
    thresholds=(SLOW,),
)
ALL_SLOW = Rule(
    "network.all_slow",
    "all hosts transfer less than their cards allow",
    remedy=(
        "Check what all hosts share: switch, MTU, the interface of the addresses (use --hosts with "
        "addresses of the fast network), load of other jobs, CPU frequency, interrupts on one core."
    ),
    thresholds=(OF_CARD,),
)
UNATTRIBUTED = Rule(
    "network.unattributed",
    "transfers between two hosts are slow; it is unknown which host is the cause",
    remedy="Measure with a third host. The host that is slow with both others is reported.",
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
        "Stop other users of the network and the CPUs (jobs, copies, backups), and measure again; "
        "--effort full measures longer."
    ),
    thresholds=(UNSTEADY,),
)

Pair = tuple[str, str]


class NetworkVerdict(NamedTuple):
    """The fast rate, what share of it each pair reaches, and the hosts and pairs that are slow."""

    fast_gb_per_s: float
    shares: Mapping[Pair, float]
    slow: SlowEnds[str]


@check(FAILED)
def failed(machine: Machine) -> Iterator[Fault]:
    """Find transfers between hosts that failed, one finding for each reason."""
    by_words = grouped(
        (failure.says, failure.names)
        for failure in copies_of(machine).failures
        if failure.kind in NETWORK_KINDS
    )
    for says, pairs in by_words.items():
        whole = list(dict.fromkeys(pairs))
        yield FAILED.fault(MACHINE, f"{_named(whole)}: {says}", {"transfers": whole, "says": says})


@check(HOST_SLOW, PAIR_SLOW, ALL_SLOW, UNATTRIBUTED)
def slow(machine: Machine) -> Iterator[Fault]:
    """Find what is slow in a measurement of all pairs of hosts, not in outputs of other programs."""
    samples = _of_pairs(copies_of(machine))
    is_steady = _spread(samples) <= UNSTEADY.value
    rates, best = _by_pair(samples), _by_pair(samples, at_best=not is_steady)
    if len(rates) < 2:
        return
    hosts = sorted({host for pair in rates for host in pair})
    are_two = len(hosts) == 2  # none of which is compared with others
    fast = fastest(rates.values())
    shares = {pair: rate / fast for pair, rate in best.items()}
    behind = {pair for pair, share in shares.items() if share < SLOW.value}
    explained = NetworkVerdict(fast, shares, slow_ends(behind, shares))
    yield from _of_hosts(explained)
    if explained.slow.pairs:
        why = "the sender or the receiver" if are_two else "both ends are fast with others"
        yield _of_single_pairs(UNATTRIBUTED if are_two else PAIR_SLOW, explained, why)
    rates_of_cards = ((sample.median_gb_per_s, sample.expectation.gb_per_s) for sample in samples)
    of_cards = [rate / allowed for rate, allowed in rates_of_cards if rate and allowed]
    if of_cards and is_steady and median(of_cards) < OF_CARD.value and not (are_two and explained.slow.pairs):
        who = " and ".join(hosts) if are_two else f"{len(hosts)} hosts"
        yield _below_cards(UNATTRIBUTED if are_two else ALL_SLOW, samples, median(of_cards), who)


def _of_hosts(explained: NetworkVerdict) -> Iterator[Fault]:
    fast = explained.fast_gb_per_s
    for host in explained.slow.blamed:
        sides = {"sends": explained.slow.out.get(host), "receives": explained.slow.into.get(host)}
        ways = {
            way: median(explained.shares[pair] for pair in pairs) for way, pairs in sides.items() if pairs
        }
        other = "" if len(ways) > 1 else "; the other direction is not slow"
        share = min(ways.values())
        rates = f"{share:.0%} of what the fast pairs reach ({share * fast:.3g} of {fast:.3g} GB/s)"
        says = f"host {host} {' and '.join(ways)} at {rates} with most others{other}"
        yield HOST_SLOW.fault(MACHINE, says, {"host": host, "directions": ways, "fast_gb_per_s": fast})


def _of_single_pairs(rule: Rule, explained: NetworkVerdict, why: str) -> Fault:
    pairs, fast = explained.slow.pairs, explained.fast_gb_per_s
    worst = min(explained.shares[pair] for pair in pairs)
    says = f"{_named(pairs)}: down to {worst:.0%} of what the fast pairs reach ({fast:.3g} GB/s); {why}"
    shares = [[*pair, explained.shares[pair]] for pair in pairs]
    return rule.fault(MACHINE, says, {"pairs": shares, "fast_gb_per_s": fast})


def _below_cards(rule: Rule, samples: Iterable[TransferRate], share: float, who: str) -> Fault:
    card = next(sample.expectation for sample in samples if sample.expectation.gb_per_s)
    allowed = f"{card.gb_per_s:.3g} GB/s: {card.source}"
    evidence = {"share": share, "expected_gb_per_s": card.gb_per_s, "source": card.source}
    return rule.fault(MACHINE, f"{who}: {share:.0%} of what the cards allow ({allowed})", evidence)


@check(UNSTEADY_RATES)
def unsteady(machine: Machine) -> Iterator[Fault]:
    """Find measurements in which the rate of each transfer varies too much for a verdict."""
    spread = _spread(_of_pairs(copies_of(machine)))
    if spread > UNSTEADY.value:
        says = f"the rate of one transfer varies by {spread:.0f}% within its measurement (median of all)"
        called = "only transfers that are slow in all intervals are called slow"
        yield UNSTEADY_RATES.fault(MACHINE, f"{says}: {called}", {"varies": says})


def _spread(samples: Sequence[TransferRate]) -> float:
    """Return by how many percent the rate of a transfer varies: the median of all."""
    return median([sample.spread_percent or 0.0 for sample in samples] or [0.0])


@check(OVERSUBSCRIBED)
def oversubscribed(machine: Machine) -> Iterator[Fault]:
    """Find rates that fall while all hosts send at once."""
    samples = _of_pairs(copies_of(machine))
    alone = _by_pair(samples)
    together = [sample for sample in _rates(copies_of(machine)) if sample.group is not None]
    pairs = [(sample.names, sample.median_gb_per_s) for sample in together]
    shares = [rate / before for pair, rate in pairs if rate and (before := alone.get(pair))]
    if len(shares) > 2 and median(shares) < AT_ONCE.value and _spread(samples) <= UNSTEADY.value:
        total, share = sum(rate or 0.0 for _, rate in pairs), median(shares)
        reach = f"{len(pairs)} hosts at once reach {share:.0%} of their rate in pairs"
        evidence = {"share": share, "together_gb_per_s": total}
        yield OVERSUBSCRIBED.fault(MACHINE, f"{reach}, {total:.3g} GB/s together", evidence)


def _rates(bandwidth: Bandwidth) -> list[TransferRate]:
    if bandwidth.source != "live":
        return []
    rates = bandwidth.samples.of(TransferRate)
    return [sample for sample in rates if sample.kind == "network" and sample.median_gb_per_s]


def _of_pairs(bandwidth: Bandwidth) -> list[TransferRate]:
    """Return the transfers of pairs in one direction; of a tool that always uses both, in both at once."""
    transfers = [sample for sample in _rates(bandwidth) if sample.group is None]
    return [sample for sample in transfers if not sample.with_reverse] or transfers


def _by_pair(samples: Iterable[TransferRate], *, at_best: bool = False) -> dict[Pair, float]:
    """Return the GB/s of each pair; `at_best`: in its fastest interval."""
    return {
        sample.names: max((sample.rate, *(sample.repeats_gb_per_s if at_best else ()))) for sample in samples
    }


def _named(pairs: Iterable[Pair]) -> str:
    return named_paths(f"{a} to {b}" for a, b in pairs)
