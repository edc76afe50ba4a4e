"""Simulated measurements of all pairs of hosts, with noise and faults."""

from itertools import permutations
from random import Random

from gputopo.values.bandwidth import Bandwidth, Expectation, Samples, TransferRate
from gputopo.values.ends import End
from gputopo.values.machine import Machine

NOISE = 0.03
Pair = tuple[str, str]  # from host to host


def rates(random: Random, hosts: int, gb_per_s: float = 10.0) -> dict[Pair, float]:
    names = [f"n{number}" for number in range(hosts)]
    return {pair: gb_per_s * random.gauss(1, NOISE) for pair in permutations(names, 2)}


def slowed(found: dict[Pair, float], host: str, share: float, ends: tuple[int, ...] = (0, 1)) -> None:
    for pair in found:
        if host in [pair[end] for end in ends]:
            found[pair] *= share


def machine(
    found: dict[Pair, float],
    *,
    allowed: float | None = None,
    at_once: float = 1.0,
    spread_percent: float | None = None,
) -> Machine:
    """Return a measurement of these GB/s."""
    samples = [
        TransferRate(
            kind="network",
            source=End(f"host:{a}"),
            destination=End(f"host:{b}"),
            median_gb_per_s=rate,
            expectation=Expectation() if allowed is None else Expectation("the card", allowed),
            spread_percent=spread_percent,
            repeats_gb_per_s=() if spread_percent is None else _windows(rate, spread_percent),
        )
        for (a, b), rate in found.items()
    ]
    names = sorted({host for pair in found for host in pair})
    ring = zip(names, [*names[1:], names[0]], strict=True)
    samples += [
        TransferRate(
            kind="network",
            source=End(f"host:{a}"),
            destination=End(f"host:{b}"),
            group="all hosts at once",
            median_gb_per_s=found[a, b] * at_once,
        )
        for a, b in ring
        if len(names) > 2
    ]
    return Machine(source="live", bandwidth=Bandwidth(source="live", samples=Samples(samples)))


def _windows(rate: float, spread_percent: float) -> tuple[float, ...]:
    apart = rate * spread_percent / 100
    return (rate - 0.2 * apart, rate, rate + 0.8 * apart)


def with_each_fault() -> list[Machine]:
    """Return a measurement for each rule."""
    even = rates(Random(1), 5)
    slow_host, slow_pair = dict(even), dict(even)
    slowed(slow_host, "n1", 0.5)
    slow_pair["n1", "n2"] *= 0.5
    two = {("n0", "n1"): 10.0, ("n1", "n0"): 3.0}
    return [
        machine(slow_host),
        machine(slow_pair),
        machine(even, allowed=20.0),
        machine(even, at_once=0.5),
        machine(two),
        machine(even, spread_percent=60.0),
    ]
