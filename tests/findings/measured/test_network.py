"""Verdicts on simulated networks: which host, direction or pair is slow, and no other."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, Samples
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests import there
from tests.findings.measured.networks import Pair, machine, rates, slowed


def find(found: Machine) -> list[Finding]:
    return [one for one in find_bandwidth(found) if one.id.startswith("network.")]


seeds = st.integers(0, 2**32)


@given(seeds, st.integers(3, 9))
def test_an_even_network_has_no_findings(seed: int, hosts: int) -> None:
    assert find(machine(rates(Random(seed), hosts), allowed=10.0)) == []


@given(seeds, st.data())
def test_slow_hosts_are_named_and_no_other(seed: int, data: st.DataObject) -> None:
    faults = data.draw(st.integers(1, 2))
    hosts = data.draw(st.integers(3 if faults == 1 else 4, 9))
    random = Random(seed)
    found = rates(random, hosts)
    odd = random.sample([f"n{number}" for number in range(hosts)], faults)
    ends = {host: random.choice(((0,), (1,), (0, 1))) if hosts > 4 else (0, 1) for host in odd}
    for host in odd:
        slowed(found, host, random.uniform(0.1, 0.65), ends[host])
    named = find(machine(found))
    assert {one.id for one in named} == {"network.host_slow"}
    ways = {one.evidence["host"]: set(one.evidence["directions"]) for one in named}
    assert ways == {host: {("sends", "receives")[end] for end in ends[host]} for host in odd}


@given(seeds, st.integers(4, 9), st.integers(1, 2))
def test_single_slow_pairs_are_named_as_pairs(seed: int, hosts: int, faults: int) -> None:
    random = Random(seed)
    found = rates(random, hosts)
    names = [f"n{number}" for number in range(hosts)]
    random.shuffle(names)
    slow: set[Pair] = set()
    for at in range(faults):
        a, b = names[2 * at : 2 * at + 2]
        slow |= {(a, b), (b, a)} if random.random() < 0.5 else {(a, b)}
    for pair in slow:
        found[pair] *= random.uniform(0.1, 0.65)
    (finding,) = find(machine(found))
    assert finding.id == "network.pair_slow"
    assert {(a, b) for a, b, _ in finding.evidence["pairs"]} == slow


@given(seeds, st.integers(5, 9))
def test_a_slow_host_and_a_slow_pair_are_told_apart(seed: int, hosts: int) -> None:
    random = Random(seed)
    found = rates(random, hosts)
    slowed(found, "n0", 0.5)
    found["n1", "n2"] *= 0.5
    assert {one.id for one in find(machine(found))} == {"network.host_slow", "network.pair_slow"}


def test_of_two_hosts_neither_is_blamed() -> None:
    even = rates(Random(1), 2)
    (finding,) = find(machine({pair: rate * (0.4 if pair[0] == "n0" else 1) for pair, rate in even.items()}))
    assert finding.id == "network.unattributed"
    assert "n0 to n1: down to 4" in finding.says
    assert "the sender or the receiver" in finding.says
    (finding,) = find(machine(even, allowed=25.0))
    assert finding.id == "network.unattributed"
    assert "n0 and n1: 4" in finding.says
    assert find(machine(even)) == []


@given(seeds, st.integers(3, 9))
def test_all_below_their_cards_is_one_finding_about_all(seed: int, hosts: int) -> None:
    (finding,) = find(machine(rates(Random(seed), hosts), allowed=20.0))
    assert finding.id == "network.all_slow"
    assert f"{hosts} hosts: " in finding.says


def test_hosts_that_are_slow_only_all_at_once_are_oversubscribed() -> None:
    (finding,) = find(machine(rates(Random(1), 6), at_once=0.5))
    assert finding.id == "network.oversubscribed"
    assert "6 hosts at once reach 5" in finding.says


def test_where_rates_vary_only_what_is_slow_in_all_windows_is_called_slow() -> None:
    found = rates(Random(1), 5)
    slowed(found, "n0", 0.6)
    (finding,) = find(machine(found, at_once=0.5, spread_percent=80.0))
    assert finding.id == "network.unsteady"
    slowed(found, "n0", 0.5)
    assert {one.id for one in find(machine(found, spread_percent=80.0))} == {
        "network.unsteady",
        "network.host_slow",
    }
    two = {("n0", "n1"): 10.0, ("n1", "n0"): 2.0}
    assert {one.id for one in find(machine(two, spread_percent=80.0))} == {
        "network.unsteady",
        "network.unattributed",
    }


def test_outputs_of_other_programs_are_not_compared_as_hosts() -> None:
    found = machine({("client", "server"): 1.0, ("server", "client"): 9.0})
    other = Bandwidth(source="iperf3", samples=Samples(there(found.bandwidth).samples))
    assert find(Machine(source="iperf3", bandwidth=other)) == []
