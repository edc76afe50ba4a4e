"""Faults of NVLinks, found from nvbandwidth's output alone, by the names of the GPUs and their rates."""

from collections.abc import Callable, Mapping
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.findings import find_bandwidth
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests.kit.dialects import nvbandwidth

Pair = tuple[int, int]
Rates = Mapping[Pair, float]

READ = next(case for case in nvbandwidth.CASES if case.name == "device_to_device_memcpy_read_ce")
H100, A100, V100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"
# Of pairs without NVLink in a DGX-1, and its pairs with two links (the others have one).
CUBE_MESH_PCIE = {(a, b) for a in range(4) for b in range(4, 8) if b != a + 4}
CUBE_MESH_DOUBLE = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}


def read(name: str, rates: Rates, count: int, case: nvbandwidth.Case = READ) -> Machine:
    """Return what is read of the output that nvbandwidth prints of a test between GPUs."""
    rows = [[rates.get((column, row)) for column in range(count)] for row in range(count)]
    devices = "".join(f"Device {gpu}: {name}\n" for gpu in range(count))
    text = nvbandwidth.table(case.name, case.heading, rows)
    return read_text(f"nvbandwidth Version: v0.4\n\n{devices}\n{text}", origin="nvbandwidth")


def uniform(gb_per_s: float, count: int) -> dict[Pair, float]:
    return dict.fromkeys(permutations(range(count), 2), gb_per_s)


def changed(rates: Rates, share: float, chosen: Callable[[Pair], bool]) -> dict[Pair, float]:
    return {pair: round(rate * share, 2) if chosen(pair) else rate for pair, rate in rates.items()}


def of_gpu(rates: Rates, share: float, *gpus: int) -> dict[Pair, float]:
    return changed(rates, share, lambda pair: bool({*pair} & {*gpus}))


def of_pair(rates: Rates, share: float, *pair: int) -> dict[Pair, float]:
    return changed(rates, share, lambda one: {*one} == {*pair})


def found(name: str, rates: Rates, count: int) -> list[tuple[str, str, str]]:
    return [(one.severity, one.id, one.subject.text) for one in findings(name, rates, count)]


def findings(name: str, rates: Rates, count: int) -> list[Finding]:
    return list(find_bandwidth(read(name, rates, count)))


def cube_mesh(one_link: float, pcie: float) -> dict[Pair, float]:
    """Return the rates of eight P100 or V100: pairs over PCIe, with one NVLink and with two."""
    rates = {}
    for a, b in permutations(range(8), 2):
        pair = (min(a, b), max(a, b))
        double = 2 if pair in CUBE_MESH_DOUBLE else 1
        rates[a, b] = pcie if pair in CUBE_MESH_PCIE else double * one_link
    return rates


SOUND = {
    "8 H100": (H100, uniform(394.0, 8), 8),
    "4 H100 in a full mesh, 6 links each": (H100, uniform(132.0, 4), 4),
    "8 H800": ("NVIDIA H800", uniform(172.3, 8), 8),
    "8 A100": (A100, uniform(275.0, 8), 8),
    "16 V100 behind switches": ("Tesla V100-SXM3-32GB", uniform(140.0, 16), 16),
    "8 V100": (V100, cube_mesh(24.2, 9.0), 8),
    "4 V100 in a full mesh": (V100, uniform(48.3, 4), 4),
    # Two CPUs with NVLinks of their own (IBM AC922, S822LC): the path through them is faster than PCIe.
    "4 V100 and POWER9": (
        V100,
        changed(uniform(68.5, 4), 0.423, lambda pair: min(pair) // 2 != max(pair) // 2),
        4,
    ),
    "4 RTX A6000, one bridge": (
        "NVIDIA RTX A6000",
        changed(uniform(52.4, 4), 0.4, lambda pair: {*pair} != {0, 1}),
        4,
    ),
}
# Pairs without a bridge, or across CPU sockets, with half of what the widest links of their models carry.
HALVED = {
    "4 RTX 3090, two bridges": ("NVIDIA GeForce RTX 3090", 51.8, 0.25),
}


def test_sound_machines_have_no_finding() -> None:
    assert {box: found(*of) for box, of in SOUND.items()} == {box: [] for box in SOUND}


@pytest.mark.parametrize("box", HALVED)
def test_pairs_with_half_of_their_widest_links_are_a_statement(box: str) -> None:
    name, near, share = HALVED[box]
    rates = changed(uniform(near, 4), share, lambda pair: min(pair) // 2 != max(pair) // 2)
    assert found(name, rates, 4) == [("info", "bandwidth.below_expected", "machine")]


def test_its_words_have_both_rates_and_the_links_that_they_fit() -> None:
    (one,) = findings(H100, of_gpu(uniform(394.0, 8), 0.5, 3), 8)
    assert one.says == (
        f"GPU 3 ({H100}): direct copies with every peer reach about 50% of the rate of other pairs: 197 "
        "against 394 GB/s, about 9 of 18 NVLinks"
    )
    assert len(one.evidence["pairs"]) == 14


@pytest.mark.parametrize(("name", "rate", "count"), [(H100, 394.0, 8), (V100, 48.3, 4)])
def test_a_pair_at_55_percent_is_a_finding_on_the_pair(name: str, rate: float, count: int) -> None:
    assert found(name, of_pair(uniform(rate, count), 0.55, 1, 2), count) == [
        ("warning", "bandwidth.pair_slower", "link:1-2")
    ]


def test_all_pairs_at_half_are_one_finding_on_the_machine() -> None:
    assert found(H100, uniform(197.0, 8), 8) == [("warning", "bandwidth.below_expected", "machine")]


def test_two_gpus_are_compared_with_the_expectation_alone() -> None:
    assert found(H100, uniform(197.0, 2), 2) == [("warning", "bandwidth.below_expected", "link:0-1")]
    assert found("NVIDIA RTX A6000", uniform(36.0, 2), 2) == [
        ("warning", "bandwidth.below_expected", "link:0-1")
    ]


def test_pairs_of_an_unknown_model_that_no_pcie_link_explains_are_compared() -> None:
    name = "NVIDIA Future 9000"
    even = uniform(900.0, 4)
    assert found(name, even, 4) == []
    assert found(name, of_gpu(even, 0.5, 1), 4) == [("warning", "bandwidth.below_expected", "gpu:1")]
    assert found(name, of_pair(even, 0.55, 0, 2), 4) == [("warning", "bandwidth.pair_slower", "link:0-2")]


BOXES = st.sampled_from([(H100, 394.0, 8), (H100, 394.0, 4), (A100, 275.0, 8), ("NVIDIA H800", 172.3, 6)])


def noisy(rates: Rates, noise: list[float]) -> dict[Pair, float]:
    return {pair: round(rate * one, 2) for (pair, rate), one in zip(rates.items(), noise, strict=False)}


NOISE = st.lists(st.floats(0.98, 1.02), min_size=56, max_size=56)


@settings(max_examples=4)
@given(box=BOXES, noise=NOISE, gpu=st.integers(0, 7), share=st.floats(0.1, 0.8))
def test_noise_accuses_none_and_whichever_gpu_is_slow_it_is_accused_and_no_other(
    box: tuple[str, float, int], noise: list[float], gpu: int, share: float
) -> None:
    name, rate, count = box
    sound, slow = noisy(uniform(rate, count), noise), gpu % count
    assert found(name, sound, count) == []
    accused = found(name, of_gpu(sound, share, slow), count)
    assert accused == [("warning", "bandwidth.below_expected", f"gpu:{slow}")]
