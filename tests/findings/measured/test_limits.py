"""Thresholds of measured copies: just inside there is no finding or a mild one, just outside there is."""

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from msgspec.structs import replace

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, CopyRate, CopyRateKind, Samples, UplinkGroup
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests.findings.measured.machines import added, measured, memory, sample

BELOW = "bandwidth.below_expected"


def box(samples: Sequence[CopyRate], name: str | None, count: int = 4, hop: Hop | None = None) -> Machine:
    links = tuple(Link(a=a, b=b, hop=hop) for a, b in combinations(range(count), 2)) if hop else ()
    gpus = tuple(Gpu(index=index, name=name) for index in range(count))
    return Machine(
        source="t", gpus=gpus, links=links, bandwidth=Bandwidth(source="t", samples=Samples(samples))
    )


def of(machine: Machine, id: str) -> list[Finding]:
    return [one for one in find_bandwidth(machine) if one.id == id]


def with_host(gb_per_s: Sequence[float], kinds: Sequence[CopyRateKind] = ("h2d", "d2h")) -> list[CopyRate]:
    found = []
    for kind in kinds:
        for gpu, rate in enumerate(gb_per_s):
            ends = (f"gpu:{gpu}", "host") if kind == "d2h" else ("host", f"gpu:{gpu}")
            found.append(sample(kind, *ends, rate, pinned=True))
    return found


@pytest.mark.parametrize(("share", "severity"), [(0.46, "info"), (0.44, "warning")])
def test_a_workstation_card_at_half_of_its_peers_may_be_wired_so(share: float, severity: str) -> None:
    (found,) = of(box(with_host([share * 26.0, 26.0, 26.0, 26.0]), "NVIDIA GeForce RTX 3090"), BELOW)
    assert (found.subject.text, found.severity) == ("gpu:0", severity)


@pytest.mark.parametrize(("share", "is_slow"), [(0.81, False), (0.79, True)])
@pytest.mark.parametrize("kind", ["bidirectional", "d2d_local"])
def test_numbers_that_peers_have_alike(kind: CopyRateKind, share: float, is_slow: bool) -> None:
    rates = [2822.0, 2824.0, 2824.0 * share, 2823.0]
    if kind == "d2d_local":
        samples = [sample(kind, f"gpu:{gpu}", f"gpu:{gpu}", rate) for gpu, rate in enumerate(rates)]
    else:
        samples = with_host([rate / 60 for rate in rates], [kind])
    found = of(box(samples, "NVIDIA Unheard Of"), BELOW)
    assert [one.subject.text for one in found] == (["gpu:2"] if is_slow else [])


@pytest.mark.parametrize(
    ("hop", "share", "is_slow"),
    [(Hop.PIX, 0.91, False), (Hop.PIX, 0.89, True), (None, 0.51, False), (None, 0.49, True)],
)
def test_a_pair_beside_its_peers(hop: Hop | None, share: float, is_slow: bool) -> None:
    rates = dict.fromkeys(permutations(range(4), 2), 12.3) | {(0, 2): 12.3 * share}
    samples = [sample("p2p_direct", f"gpu:{a}", f"gpu:{b}", rate) for (a, b), rate in rates.items()]
    found = of(box(samples, None, hop=hop), "bandwidth.pair_slower")
    assert [one.subject.text for one in found] == (["link:0-2"] if is_slow else [])


@pytest.mark.parametrize(
    ("together", "severity"), [(0.2485, "info"), (0.294, "info"), (0.21, "warning"), (0.125, "warning")]
)
def test_four_gpus_behind_one_uplink_are_usual_and_more_are_not(together: float, severity: str) -> None:
    group = UplinkGroup(
        gpus=(0, 1, 2, 3), from_kind="h2d", alone_gb_per_s=100.0, together_gb_per_s=100 * together
    )
    (found,) = of(added(uplink_groups=(group,))(measured()), "pcie.shared_uplink")
    assert found.severity == severity


@pytest.mark.parametrize(("load", "is_judged"), [(None, True), (0.24, True), (0.26, False)])
def test_host_memory_of_a_busy_host_is_not_judged(load: float | None, is_judged: bool) -> None:
    machine = memory(40.0)(measured())
    assert machine.bandwidth is not None
    shaky = [
        replace(one, spread_percent=90.0) if one.kind == "host_memory" else one
        for one in machine.bandwidth.samples
    ]
    loaded = replace(machine, bandwidth=replace(machine.bandwidth, samples=tuple(shaky), host_load=load))
    assert bool(of(loaded, "bandwidth.unsteady")) is is_judged
