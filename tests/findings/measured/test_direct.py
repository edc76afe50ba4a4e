"""P2P is called slower only where all that was measured agrees; the remedy never turns off what is faster."""

import re
from collections.abc import Mapping
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, CopyLatency, Failure, Method, Path, Sample, Samples
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests import there
from tests.findings.measured.machines import sample

Pair = tuple[int, int]
ONE_PAIR: Pair = (0, 1)


def box(links: Mapping[Pair, Link], samples: list[Sample], *failures: Failure, name: str = "A") -> Machine:
    gpus = sorted({gpu for pair in links for gpu in pair})
    return Machine(
        source="a test",
        gpus=tuple(Gpu(index=index, name=name) for index in gpus),
        links=tuple(links.values()),
        bandwidth=Bandwidth(source="live", samples=Samples(samples), failures=failures),
    )


def linked(hops: Mapping[Pair, Hop | None], nvlinks: Mapping[Pair, int] | None = None) -> dict[Pair, Link]:
    nvlinks = nvlinks or {}
    return {(a, b): Link(a=a, b=b, hop=hop, nvlinks=nvlinks.get((a, b))) for (a, b), hop in hops.items()}


def one_way(a: int, b: int, direct: float, staged: float) -> list[Sample]:
    ends = (f"gpu:{a}", f"gpu:{b}")
    return [sample("p2p_direct", *ends, direct), sample("p2p_staged", *ends, staged)]


def at_once(a: int, b: int, direct: float, staged: float) -> list[Sample]:
    paths: tuple[tuple[Path, float], ...] = (("direct", direct), ("staged", staged))
    return [sample("bidirectional", f"gpu:{a}", f"gpu:{b}", rate, path=path) for path, rate in paths]


ONE_METHOD: tuple[Method, Method] = ("driver", "driver")


def latency(
    a: int, b: int, direct: float, staged: float, methods: tuple[Method, Method] = ONE_METHOD
) -> list[Sample]:
    one = CopyLatency(source=End(f"gpu:{a}"), destination=End(f"gpu:{b}"), median_us=direct)
    return [
        replace(one, path="direct", median_us=direct, method=methods[0]),
        replace(one, path="staged", median_us=staged, method=methods[1]),
    ]


def slower(machine: Machine) -> list[Finding]:
    return [one for one in find_bandwidth(machine) if one.id == "p2p.direct_slower_than_staged"]


def two(*more: Sample, hop: Hop | None = Hop.PHB) -> Machine:
    return box(linked({ONE_PAIR: hop}), [*one_way(0, 1, 21.26, 22.47), *more])


@pytest.mark.parametrize(
    ("more", "severity"),
    [
        ([], "warning"),
        (at_once(0, 1, 41.4, 41.5), "warning"),  # no better in both directions
        (at_once(0, 1, 41.5, 31.4), "info"),  # two RTX 6000 Ada
        (latency(0, 1, 1.15, 10.6), "info"),
        ([*at_once(0, 1, 31.4, 41.5), *latency(0, 1, 10.9, 10.6)], "warning"),
        (latency(0, 1, 1.15, 10.6, ("kernel_read", "copy_engine")), "warning"),  # not comparable
    ],
)
def test_one_direction_is_a_warning_only_where_all_that_was_measured_agrees(
    more: list[Sample], severity: str
) -> None:
    (found,) = slower(two(*more))
    assert found.severity == severity
    assert "21.26 against 22.47 GB/s for 0 to 1" in found.says
    assert ("NCCL_P2P" in (found.remedy or "")) is (severity == "warning")


def every_pair(hops: Mapping[Pair, Hop | None], slow: set[Pair]) -> list[Sample]:
    found = []
    for a, b in permutations({gpu for pair in hops for gpu in pair}, 2):
        found += one_way(a, b, 8.0 if (min(a, b), max(a, b)) in slow else 12.0, 10.0)
    return found


def four(near: Hop | None, far: Hop | None) -> dict[Pair, Hop | None]:
    return {pair: near if pair in ((0, 1), (2, 3)) else far for pair in combinations(range(4), 2)}


ACROSS = {(0, 2), (0, 3), (1, 2), (1, 3)}


# How NCCL reports the distance of a pair without NVLink, near to far; how far each setting allows P2P.
DISTANCES = {Hop.INTERNAL: 1, Hop.PIX: 1, Hop.PXB: 2, Hop.PHB: 3, Hop.NODE: 3, Hop.SYS: 4}
REACH = {"NCCL_P2P_DISABLE=1": -1, "NVL": 0, "PIX": 1, "PXB": 2, "PHB": 3}
FOUR = list(combinations(range(4), 2))


def of_pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Pair, Any]]:
    return st.fixed_dictionaries(dict.fromkeys(FOUR, values))


@settings(max_examples=6)
@given(
    hops=of_pairs(st.sampled_from([*Hop, None])),
    nvlinks=of_pairs(st.sampled_from([0, 0, 0, 4])),
    slow=st.sets(st.sampled_from(FOUR), min_size=1),
)
def test_a_setting_excludes_the_slow_pairs_and_no_others_and_never_nvlinks(
    hops: dict[Pair, Hop | None], nvlinks: dict[Pair, int], slow: set[Pair]
) -> None:
    machine = box(linked(hops, nvlinks), every_pair(hops, slow))
    findings = slower(machine)
    named = {pair for found in findings for pair in found.evidence["pairs"]}
    unwanted = {(a, b) for a, b in FOUR if {f"{a}>{b}", f"{b}>{a}"} & named and not nvlinks[a, b]}
    for found in findings:
        setting = re.search(r"NCCL_P2P_(?:LEVEL=(\w+)\.|DISABLE=1)", found.remedy or "")
        if setting is None:
            continue
        reach = REACH[setting[1] or setting[0]]
        assert reach >= 0 or not any(nvlinks.values())
        for pair, hop in hops.items():
            distance = 0 if nvlinks[pair] else None if hop is None else DISTANCES[hop]
            if pair in unwanted:
                assert distance is None or distance > reach
            else:
                assert distance is not None
                assert distance <= reach


@pytest.mark.parametrize(
    ("near", "far", "level"),
    [
        (Hop.PIX, Hop.PXB, "PIX"),
        (Hop.PIX, Hop.NODE, "PXB"),  # host bridges of one NUMA node are PHB to NCCL
        (Hop.NODE, Hop.SYS, "PHB"),
        (Hop.SYS, Hop.PHB, None),  # the nearer ones are slow
        (Hop.PIX, None, None),
    ],
)
def test_the_level_excludes_the_slow_pairs_and_no_others(
    near: Hop, far: Hop | None, level: str | None
) -> None:
    hops = four(near, far)
    (found,) = slower(box(linked(hops), every_pair(hops, ACROSS)))
    remedy = found.remedy or ""
    assert "each of GPUs 0-1 with each of 2-3" in remedy
    assert "NCCL_P2P_DISABLE" not in remedy
    if level is None:
        assert "no NCCL_P2P_LEVEL turns P2P off only between these pairs" in remedy
    else:
        assert f"NCCL_P2P_LEVEL={level}." in remedy


@pytest.mark.parametrize("hop", [Hop.PIX, Hop.PHB, Hop.SYS, None])
def test_where_every_pair_is_slower_directly_and_none_has_nvlink_p2p_may_be_off(hop: Hop | None) -> None:
    (found,) = slower(two(hop=hop))
    assert "NCCL" in (found.remedy or "")
    assert ("NCCL_P2P_DISABLE=1" in (found.remedy or "")) is (hop in (Hop.PIX, None))


def test_p2p_is_not_turned_off_by_a_tool_that_does_not_compare_the_data() -> None:
    machine = two(hop=None)
    other = replace(machine, bandwidth=replace(there(machine.bandwidth), source="p2pBandwidthLatencyTest"))
    (found,) = slower(other)
    assert "NCCL" not in (found.remedy or "")
    assert "compares every byte" in (found.remedy or "")


@pytest.mark.parametrize(("by", "hop"), [("topology", Hop.PHB), ("topology", None), ("rate", Hop.PIX)])
def test_where_any_pair_has_nvlink_p2p_is_never_turned_off(by: str, hop: Hop | None) -> None:
    hops = four(hop, hop)
    nvlinks = dict.fromkeys(((0, 1), (2, 3)), 4) if by == "topology" else {}
    samples = every_pair(hops, ACROSS)
    if by == "rate":
        samples = [
            replace(one, median_gb_per_s=150.0, repeats_gb_per_s=())
            if one.kind == "p2p_direct"
            and {one.source, one.destination} in ({"gpu:0", "gpu:1"}, {"gpu:2", "gpu:3"})
            else one
            for one in samples
        ]
    (found,) = slower(box(linked(hops, nvlinks), samples))
    assert "NCCL_P2P_DISABLE" not in (found.remedy or "")
    assert f"NCCL_P2P_LEVEL={'PXB' if hop is Hop.PHB else 'NVL'}." in (found.remedy or "")


def test_a_slow_nvlink_is_a_fault_of_the_nvlink() -> None:
    hops = four(Hop.PHB, Hop.PHB)
    (found,) = slower(box(linked(hops, {(0, 1): 2}), every_pair(hops, {(0, 1)})))
    assert "NCCL" not in (found.remedy or "")
    assert "nvidia-smi nvlink -s" in (found.remedy or "")


@pytest.mark.parametrize("gpu", [0, 7])
def test_nothing_is_sent_over_a_host_path_that_is_at_fault(gpu: int) -> None:
    wrong = Failure(
        kind="h2d", source=End("host"), destination=End(f"gpu:{gpu}"), reason="WRONG_DATA", says=""
    )
    (found,) = slower(box(linked({ONE_PAIR: Hop.PIX}), one_way(0, 1, 8.0, 10.0), wrong))
    assert ("NCCL_P2P" in (found.remedy or "")) is (gpu == 7)
