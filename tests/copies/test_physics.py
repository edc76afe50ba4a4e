"""What physics forbids, on numbers made by hand: nothing sound is invalid, nothing impossible is used."""

import pathlib
import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo import captures
from gputopo.copies import checked, memory_limit
from gputopo.reference import known_gpus, over_nvlink
from gputopo.values.bandwidth import (
    Bandwidth,
    CopyLatency,
    CopyRate,
    CopyRateKind,
    Expectation,
    Path,
    Sample,
    Samples,
)
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine
from gputopo.values.rates import host_copies, judged
from tests.invented_bandwidths import bandwidth_of, machine_with
from tests.kit.golden import assert_golden

NAMES = [None, "A GPU of tomorrow", *(row.name for row in known_gpus())]

MIB = 2**20
SMALL = 32_000_000  # bytes


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


ADA, K80, RTX_4090 = "NVIDIA RTX 6000 Ada Generation", "Tesla K80", "NVIDIA GeForce RTX 4090"
H100, H800, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H800", "NVIDIA A100 80GB PCIe"
BOTH_ALONE = (copy(0, 1, 26.0), copy(1, 0, 26.1))
AMONG = copy(0, 1, 160.0, method="kernel_read", group="bidirectional gpu:0 gpu:1", with_reverse=True)
BY_KERNEL = copy(0, 1, 84.0, method="kernel_read")


def with_host(gb_per_s: float) -> list[CopyRate]:
    return [host(gb_per_s), host(gb_per_s, "d2h"), host(2 * gb_per_s, "bidirectional")]


CASES: dict[str, tuple[Machine, Sequence[CopyRate]]] = {
    # A copy faster than the memory is of the cache; so is one that fits the cache and outruns larger ones.
    "cache and memory": (
        box(ADA), [local(4374.1, size=SMALL), local(831.1), local(900.0, size=32 * MIB)],
    ),
    "a small copy beside larger ones": (box(ADA), [local(850.0, size=SMALL), local(401.0)]),
    "a small copy beside sound ones": (box(ADA), [local(850.0, size=SMALL), local(790.0, size=512 * MIB)]),
    # Of boards with one name, and of an unknown model, the fastest memory counts.
    "boards of one name": (box("NVIDIA GeForce RTX 3050"), [local(205.0), local(230.0)]),
    "no name": (box(None), [local(1537.0), local(8100.0)]),
    # A copy with the host is no faster than the widest link.
    "host of an H100": (box(H100), [*with_host(55.0), *with_host(176.0)]),
    "host of a GH200": (box("NVIDIA GH200 480GB"), [*with_host(419.0), *with_host(900.0)]),
    "host of a V100 with NVLink": (box("Tesla V100-SXM2-16GB"), with_host(68.0)),
    "host of an unknown GPU": (box(None), [*with_host(359.05), *with_host(700.0)]),
    # A copy between GPUs is no faster than all their NVLinks.
    "NVLinks": (box(H800, H800), [copy(0, 1, 172.0), copy(1, 0, 310.0), both(0, 1, 328.0)]),
    "no NVLinks": (box(RTX_4090, RTX_4090), [copy(0, 1, 27.0), copy(1, 0, 60.0)]),
    "staged": (box(H800, H800), [copy(0, 1, 70.0, "p2p_staged")]),
    # A pair below one full uplink is sound at once and alone; a sum above twice one direction is not used.
    "one uplink": (box(K80, K80), [copy(0, 1, 9.96), copy(1, 0, 9.96), both(0, 1, 9.94), both(1, 0, 9.5)]),
    "a sum that is too high": (box(RTX_4090, RTX_4090), [*BOTH_ALONE, both(0, 1, 58.5)]),
    **{
        f"a sum of {low}": (box(RTX_4090, RTX_4090), [*BOTH_ALONE, both(0, 1, low)])
        for low in (14.0, 22.0, 52.3)
    },
    # Both directions through one host memory may carry less than one.
    "through host memory": (
        box(A100, A100),
        [copy(0, 1, 20.1, "p2p_staged"), copy(1, 0, 20.0, "p2p_staged"), both(0, 1, 15.9, "staged")],
    ),
    # Over NVLinks a sum as large as one direction is of one direction.
    "a sum of one direction": (box(H800, H800), [copy(0, 1, 165.0), both(0, 1, 160.0)]),
    "a sum of NVLinks": (box(H800, H800), [copy(0, 1, 165.0), both(0, 1, 301.0)]),
    # A direction that is faster while the other is used too is low and counts.
    "a low direction": (
        box(RTX_4090, RTX_4090), [copy(0, 1, 27.07), copy(1, 0, 11.46), both(0, 1, 54.1)],
    ),
    # A copy among others that is far faster than alone counts both directions.
    "among others": (box(H800, H800), [BY_KERNEL, AMONG]),
    "among others by another method": (
        box(H800, H800), [msgspec.structs.replace(BY_KERNEL, method="copy_engine"), AMONG],
    ),
    # One number given several times is one sample with the lower median; some tools print several tables.
    "five runs": (
        box(H100), [host(rate, run=str(rate)) for rate in (24.6, 25.1, 24.8, 61.0, 25.0)],
    ),
    "two runs of bandwidthTest": (box(None), [host(24.6, method="driver"), host(26.0, method="driver")]),
    "two tables": (box(None, None), [copy(0, 1, 50.0), copy(0, 1, 54.0)]),
    # Of each run the fastest counts, and an impossible number is of no run.
    "runs with an impossible number": (
        box(H100, H100),
        [copy(0, 1, rate, run=run) for rate, run in ((300.0, "1"), (310.0, "1"), (390.0, "2"), (900.0, "3"))],
    ),
}  # fmt: skip


def told(one: CopyRate) -> str:
    runs = "".join(f", run {run.name} {run.value}" for run in one.runs)
    return f"  {one.kind} {one.source} to {one.destination} {one.median_gb_per_s}: {one.invalid}{runs}"


def test_impossible_numbers_are_marked_as_they_were() -> None:
    lines = list[str]()
    for name, (machine, samples) in CASES.items():
        lines += [name, *map(told, check(machine, *samples))]
    assert_golden(pathlib.Path(__file__).with_name("golden") / "impossible.txt", "\n".join([*lines, ""]))


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


def test_runs_that_disagree_are_judged_only_if_every_one_is_below_the_limit() -> None:
    machine = box("NVIDIA H100 80GB HBM3")
    (found,) = check(machine, host(24.0, run="1"), host(31.0, run="2"))
    assert not list(judged([found]))
    assert host_copies([found], "h2d", machine) == {}
    assert list(judged([msgspec.structs.replace(found, expectation=Expectation(low_gb_per_s=50.0))]))
    assert not list(judged([msgspec.structs.replace(found, expectation=Expectation(low_gb_per_s=28.0))]))
    (agreeing,) = check(machine, host(24.0, run="1"), host(24.5, run="2"))
    assert list(judged([agreeing])) == [agreeing]


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


# All numbers


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
