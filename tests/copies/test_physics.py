"""What physics forbids, on numbers made by hand: nothing sound is invalid, nothing impossible is used."""

import random
from itertools import permutations
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo import captures
from gputopo.copies import checked, memory_limit, ramp_ups, with_expectations
from gputopo.reference import known_gpus, over_nvlink
from gputopo.values.bandwidth import (
    Bandwidth,
    CopyLatency,
    CopyRate,
    CopyRateKind,
    Expectation,
    Method,
    Path,
    Run,
    Sample,
    Samples,
)
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine, Pcie
from gputopo.values.rates import host_copies, judged, pair_copies
from tests.invented_bandwidths import bandwidth_of, machine_with

NAMES = [None, "A GPU of tomorrow", *(row.name for row in known_gpus())]
MIB = 2**20


def box(*names: str | None) -> Machine:
    return Machine(source="test", gpus=tuple(Gpu(index=index, name=name) for index, name in enumerate(names)))


def local(gb_per_s: float, gpu: int = 0, size: int | None = None, **more: object) -> CopyRate:
    place = f"gpu:{gpu}"
    one = CopyRate(
        kind="d2d_local", source=End(place), destination=End(place), bytes=size, median_gb_per_s=gb_per_s
    )
    return msgspec.structs.replace(one, **more)


def host(gb_per_s: float, kind: CopyRateKind = "h2d", gpu: int = 0, **more: object) -> CopyRate:
    ends = (f"gpu:{gpu}", "host") if kind == "d2h" else ("host", f"gpu:{gpu}")
    one = CopyRate(kind=kind, source=End(ends[0]), destination=End(ends[1]), median_gb_per_s=gb_per_s)
    return msgspec.structs.replace(one, **more)


def copy(a: int, b: int, gb_per_s: float, kind: CopyRateKind = "p2p_direct", **more: object) -> CopyRate:
    one = CopyRate(kind=kind, source=End(f"gpu:{a}"), destination=End(f"gpu:{b}"), median_gb_per_s=gb_per_s)
    return msgspec.structs.replace(one, **more)


def both(a: int, b: int, gb_per_s: float, path: Path = "direct", **more: object) -> CopyRate:
    return copy(a, b, gb_per_s, "bidirectional", path=path, **more)


def check(machine: Machine, *samples: CopyRate) -> tuple[CopyRate, ...]:
    return checked(Bandwidth(source="test", samples=Samples(samples)), machine).copies


def marks(machine: Machine, *samples: CopyRate) -> list[str | None]:
    return [one.invalid for one in check(machine, *samples)]


# Caches


def test_a_copy_faster_than_the_memory_is_of_the_cache_and_a_slower_one_is_valid() -> None:
    ada = box("NVIDIA RTX 6000 Ada Generation")
    assert marks(ada, local(4374.1, size=32_000_000), local(831.1), local(900.0, size=32 * MIB)) == [
        "cache",
        None,
        None,
    ]


def test_a_copy_that_fits_the_cache_and_outruns_larger_ones_is_of_the_cache() -> None:
    ada = box("NVIDIA RTX 6000 Ada Generation")
    small = local(850.0, size=32_000_000)
    assert marks(ada, small, local(401.0)) == ["cache", None]
    assert marks(ada, small, local(790.0, size=512 * MIB)) == [None, None]
    assert marks(ada, small, local(401.0, size=33_000_000)) == [None, None]
    assert marks(ada, small, local(401.0, gpu=1)) == [None, None]
    assert marks(box("NVIDIA RTX A6000"), local(600.0, size=32_000_000), local(401.0)) == [None, None]


def test_of_boards_with_one_name_the_fastest_memory_counts() -> None:
    assert marks(box("NVIDIA GeForce RTX 3050"), local(205.0), local(230.0)) == [None, "cache"]


def test_an_unknown_model_is_compared_with_the_fastest_memory_known() -> None:
    for machine in (box(None), box("A GPU of tomorrow"), Machine(source="test")):
        assert marks(machine, local(1537.0), local(8100.0)) == [None, "cache"]


def test_a_cache_rate_makes_no_sound_number_a_clock_ramp_up() -> None:
    ada = box(*["NVIDIA RTX 6000 Ada Generation"] * 2)
    found = checked(
        Bandwidth(
            source="p2pBandwidthLatencyTest + bandwidthTest",
            samples=Samples(
                (
                    local(804.0),
                    local(833.0, gpu=1),
                    local(4367.0, size=32_000_000),
                    local(4370.0, gpu=1, size=32_000_000),
                )
            ),
        ),
        ada,
    )
    assert ramp_ups(found, ada) == ()
    # Some hits, and still below the memory's rate: no rate at full clocks either.
    half = msgspec.structs.replace(
        found, samples=(local(804.0), local(833.0, gpu=1), local(958.0, size=32_000_000))
    )
    assert ramp_ups(half, ada) == ()
    assert [one.low_gb_per_s for one in ramp_ups(checked(msgspec.structs.replace(
        half, samples=(local(310.0), *found.samples[2:])), ada), ada)] == [(310.0,)]  # fmt: skip


# Links


@pytest.mark.parametrize(
    ("name", "gb_per_s", "mark"),
    [
        ("NVIDIA H100 80GB HBM3", 55.0, None),
        ("NVIDIA H100 80GB HBM3", 176.0, "above_link"),
        ("NVIDIA GH200 480GB", 419.0, None),
        ("NVIDIA GH200 480GB", 900.0, "above_link"),
        ("NVIDIA GB200", 205.0, None),
        ("Tesla V100-SXM2-16GB", 68.0, None),  # to the CPU by NVLink
        ("Tesla V100-PCIE-16GB", 68.0, "above_link"),
        ("GeForce GTX 1070", 26.0, "above_link"),
        (None, 359.05, None),
        (None, 700.0, "above_link"),
    ],
)
def test_a_copy_with_the_host_is_no_faster_than_the_widest_link(
    name: str | None, gb_per_s: float, mark: str | None
) -> None:
    machine = box(name)
    assert marks(machine, host(gb_per_s), host(gb_per_s, "d2h")) == [mark, mark]
    assert marks(machine, host(2 * gb_per_s, "bidirectional")) == [mark]


@pytest.mark.parametrize(
    ("name", "gb_per_s", "link"),
    [
        ("NVIDIA GH200 480GB", 352.0, "NVLink-C2C"),
        ("Tesla V100-SXM2-16GB", 68.0, "NVLink to the CPU"),
        (None, 359.0, "NVLink or NVLink-C2C"),
    ],
)
def test_what_goes_over_no_pcie_link_has_no_pcie_expectation(
    name: str | None, gb_per_s: float, link: str
) -> None:
    machine = Machine(source="test", gpus=(Gpu(index=0, name=name, pcie=Pcie(gen_max=5, width_now=16)),))
    bandwidth = Bandwidth(
        source="test", samples=Samples((host(gb_per_s), host(2 * gb_per_s, "bidirectional")))
    )
    for one in with_expectations(bandwidth, machine).copies:
        assert one.expectation.gb_per_s is None
        assert link in (one.expectation.source or "")


def test_a_copy_between_gpus_is_no_faster_than_all_their_nvlinks() -> None:
    eight = box(*["NVIDIA H800"] * 2)
    assert marks(eight, copy(0, 1, 172.0), copy(1, 0, 310.0), both(0, 1, 328.0)) == [
        None,
        "above_link",
        None,
    ]
    assert marks(box(*["NVIDIA GeForce RTX 4090"] * 2), copy(0, 1, 27.0), copy(1, 0, 60.0)) == [
        None,
        "above_link",
    ]
    assert marks(box(*["NVIDIA H800"] * 2), copy(0, 1, 70.0, "p2p_staged")) == ["above_link"]


def test_pairs_that_no_pcie_link_can_carry_are_on_nvlink() -> None:
    v100 = box(*["Tesla V100-SXM2-16GB"] * 3)
    assert over_nvlink([copy(1, 0, 24.1), copy(0, 2, 12.0), both(1, 2, 48.0)], v100) == {(0, 1), (1, 2)}
    assert over_nvlink([copy(0, 1, 50.0, "p2p_staged"), both(0, 1, 50.0, "staged")], v100) == frozenset()
    assert over_nvlink([copy(0, 1, 24.1, bytes=4096)], v100) == frozenset()
    assert over_nvlink([msgspec.structs.replace(copy(0, 1, 24.1), invalid="inconsistent")], v100) == set()
    nameless = box(None, None)
    assert over_nvlink([copy(0, 1, 100.0)], nameless) == frozenset()
    assert over_nvlink([copy(0, 1, 100.0), host(25.0)], nameless) == {(0, 1)}
    assert over_nvlink([copy(0, 1, 60.0), host(13.0)], nameless) == frozenset()
    assert over_nvlink([copy(0, 1, 130.0)], nameless) == {(0, 1)}


# Contradictions


def test_a_pair_below_one_full_uplink_is_sound_at_once_and_alone() -> None:
    k80 = box(*["Tesla K80"] * 2)
    assert marks(k80, copy(0, 1, 9.96), copy(1, 0, 9.96), both(0, 1, 9.94), both(1, 0, 9.5)) == [None] * 4


def test_a_sum_above_twice_one_direction_is_not_used_and_a_low_one_is_low() -> None:
    cards = box(*["NVIDIA GeForce RTX 4090"] * 2)
    alone = (copy(0, 1, 26.0), copy(1, 0, 26.1))
    assert marks(cards, *alone, both(0, 1, 58.5)) == [None, None, "inconsistent"]
    for low in (14.0, 22.0, 52.3):
        assert marks(cards, *alone, both(0, 1, low)) == [None, None, None]


def test_both_directions_through_one_host_memory_may_carry_less_than_one() -> None:
    cards = box(*["NVIDIA A100 80GB PCIe"] * 2)
    alone = (copy(0, 1, 20.1, "p2p_staged"), copy(1, 0, 20.0, "p2p_staged"))
    assert marks(cards, *alone, both(0, 1, 15.9, "staged")) == [None, None, None]
    with_host = (host(25.0), host(26.0, "d2h"), host(20.0, "bidirectional"))
    assert marks(cards, *with_host) == [None, None, None]


def test_over_nvlinks_a_sum_as_large_as_one_direction_is_of_one_direction() -> None:
    h800 = box(*["NVIDIA H800"] * 2)
    assert marks(h800, copy(0, 1, 165.0), both(0, 1, 160.0)) == [None, "inconsistent"]
    assert marks(h800, copy(0, 1, 165.0), both(0, 1, 301.0)) == [None, None]
    assert marks(h800, copy(0, 1, 50.0), both(0, 1, 49.0)) == [None, None]


def test_a_direction_that_is_faster_while_the_other_is_used_too_is_low_and_counts() -> None:
    cards = box(*["NVIDIA GeForce RTX 4090"] * 2)
    assert marks(cards, copy(0, 1, 27.07), copy(1, 0, 11.46), both(0, 1, 54.1)) == [None, None, None]


def test_a_copy_among_others_that_is_far_faster_than_alone_counts_both_directions() -> None:
    h800 = box(*["NVIDIA H800"] * 2)
    among = copy(0, 1, 160.0, method="kernel_read", group="bidirectional gpu:0 gpu:1", with_reverse=True)
    alone = copy(0, 1, 84.0, method="kernel_read")
    assert marks(h800, alone, among) == [None, "inconsistent"]
    assert marks(h800, msgspec.structs.replace(alone, method="copy_engine"), among) == [None, None]
    assert marks(h800, msgspec.structs.replace(alone, median_gb_per_s=150.0), among) == [None, None]


# Several runs


def test_one_number_given_several_times_is_one_sample_with_the_lower_median() -> None:
    values = (24.6, 25.1, 24.8, 61.0, 25.0)
    found = check(box("NVIDIA H100 80GB HBM3"), *(host(one, run=f"node{n}") for n, one in enumerate(values)))
    assert [one.median_gb_per_s for one in found] == [25.0]
    assert found[0].runs == tuple(Run(name=f"node{n}", value=one) for n, one in enumerate(values))
    assert check(box(None), host(24.0, run="1"), host(31.0, run="2"))[0].median_gb_per_s == 24.0


def test_runs_without_a_name_are_known_by_a_number_that_a_tool_prints_once() -> None:
    machine = box(None, None)
    driver: Method = "driver"
    (found,) = check(machine, host(24.6, method=driver), host(26.0, method=driver))
    assert [run.value for run in found.runs] == [24.6, 26.0]
    # nvbandwidth reads and writes, p2pBandwidthLatencyTest has tables with P2P and without.
    assert len(check(machine, copy(0, 1, 50.0), copy(0, 1, 54.0))) == 2
    assert len(check(machine, copy(0, 1, 5.0, "p2p_staged"), copy(0, 1, 5.1, "p2p_staged"))) == 2


def test_of_each_run_the_fastest_counts_and_an_impossible_number_is_of_no_run() -> None:
    machine = box("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")
    found = check(
        machine,
        copy(0, 1, 300.0, run="1"),
        copy(0, 1, 310.0, run="1"),
        copy(0, 1, 390.0, run="2"),
        copy(0, 1, 900.0, run="3"),
    )
    assert [(one.median_gb_per_s, one.invalid) for one in found] == [(310.0, None), (900.0, "above_link")]


def test_runs_that_disagree_are_judged_only_if_every_one_is_below_the_limit() -> None:
    machine = box("NVIDIA H100 80GB HBM3")
    (found,) = check(machine, host(24.0, run="1"), host(31.0, run="2"))
    assert not list(judged([found]))
    assert host_copies([found], "h2d", machine) == {}
    assert list(judged([msgspec.structs.replace(found, expectation=Expectation(low_gb_per_s=50.0))]))
    assert not list(judged([msgspec.structs.replace(found, expectation=Expectation(low_gb_per_s=28.0))]))
    (agreeing,) = check(machine, host(24.0, run="1"), host(24.5, run="2"))
    assert list(judged([agreeing])) == [agreeing]


# All numbers


PLACES = tuple(map(End, ("host", "gpu:0", "gpu:1", "gpus", "node:0")))
OF_BOTH: dict[str, Any] = {
    "source": st.sampled_from(PLACES),
    "destination": st.sampled_from(PLACES),
    "bytes": st.sampled_from((None, 4096, 32_000_000)),
    "method": st.sampled_from((None, "driver", "copy_engine", "kernel_read")),
    "path": st.sampled_from((None, "direct", "staged")),
    "group": st.sampled_from((None, "all")),
    "run": st.sampled_from((None, "1", "2")),
}
COPIES = st.builds(
    CopyRate,
    kind=st.sampled_from(get_args(CopyRateKind)),
    median_gb_per_s=st.one_of(st.none(), st.floats(0.01, 20_000.0)),
    invalid=st.sampled_from((None, "cache", "above_link", "inconsistent")),
    **OF_BOTH,
)
LATENCIES = st.builds(CopyLatency, median_us=st.floats(0.1, 100.0), **OF_BOTH)
SAMPLES = st.one_of(COPIES, LATENCIES)


@given(st.lists(SAMPLES, max_size=12), st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_whatever_is_read_no_valid_number_is_impossible_and_its_order_does_not_matter(
    samples: list[Sample], name: str | None, mixed: random.Random
) -> None:
    machine = box(name, name)
    found = checked(Bandwidth(source="test", samples=Samples(samples)), machine)
    assert checked(found, machine) == found
    limit = memory_limit(machine.gpus[0]).gb_per_s
    for one in found.copies:
        if one.kind == "d2d_local" and "gpu:" in one.source and one.median_gb_per_s:
            assert (one.invalid == "cache") == (one.median_gb_per_s > limit)
    shuffled = [*samples]
    mixed.shuffle(shuffled)
    again = checked(Bandwidth(source="test", samples=Samples(shuffled)), machine)
    assert sorted(map(repr, again.samples)) == sorted(map(repr, found.samples))


RATES = st.floats(0.97, 1.0)


@given(
    name=st.sampled_from([row.name for row in known_gpus() if row.pcie_generation and row.memory_gb_per_s]),
    share=RATES,
    back=RATES,
    at_once=st.floats(0.9, 2.0),
    local_share=st.floats(0.6, 0.94),
)
def test_a_sound_pair_of_any_model_has_no_invalid_number(
    name: str, share: float, back: float, at_once: float, local_share: float
) -> None:
    row = next(row for row in known_gpus() if row.name == name)
    machine = box(name, name)
    pcie = 0.88 * {3: 15.754, 4: 31.508, 5: 63.015, 6: 121.0}[row.pcie_generation or 3]
    pcie *= (row.pcie_width or 16) / 16
    samples = [
        *(host(pcie * share, gpu=gpu) for gpu in (0, 1)),
        *(host(pcie * back, "d2h", gpu=gpu) for gpu in (0, 1)),
        *(host(pcie * at_once * max(share, back), "bidirectional", gpu=gpu) for gpu in (0, 1)),
        *(copy(a, b, pcie * share) for a, b in permutations((0, 1))),
        both(0, 1, pcie * at_once * share),
        *(local(local_share * (row.memory_gb_per_s or 0), gpu=gpu) for gpu in (0, 1)),
    ]
    assert {one.invalid for one in check(machine, *samples)} == {None}


def test_sound_machines_have_no_invalid_number() -> None:
    invented = bandwidth_of(4)
    assert checked(invented, machine_with(4)) == invented
    for name in ("7gforce", "7gforce-v2", "az-2x-m60", "az-4x-m60"):
        machine = captures.load([name])
        assert machine.bandwidth is not None
        assert {one.invalid for one in machine.bandwidth.samples} == {None}, name
        assert checked(machine.bandwidth, machine) == machine.bandwidth


def test_what_is_not_valid_is_of_no_accessor() -> None:
    machine = box("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")
    found = check(machine, host(176.0), copy(0, 1, 900.0), host(27.0))
    assert [one.median_gb_per_s for one in host_copies(found, "h2d", machine).values()] == [27.0]
    assert pair_copies(found, "p2p_direct") == {}
