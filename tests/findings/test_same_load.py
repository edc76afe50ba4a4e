"""Facts that pass are compared only between GPUs at the same load."""

from typing import Any

import pytest

from gputopo.findings import clocks
from tests.findings.boxes import Change, all_of, every_gpu, gpu, sound
from tests.findings.faults import IDLE

RESTING = every_gpu(**IDLE)
COOL = every_gpu(temperature_c={"gpu": 30, "memory": 35})
READY = every_gpu(**(IDLE | {"pstate": "P0", "pcie": {"gen_now": 3}}))
HOT: dict[str, Any] = {"temperature_c": {"gpu": 55}}


@pytest.mark.parametrize(("degrees", "subjects"), [(54, []), (55, ["gpu:1"])])
def test_a_gpu_is_hot_beside_cool_peers_at_the_same_load(degrees: int, subjects: list[str]) -> None:
    change = all_of(RESTING, COOL, gpu(1, temperature_c={"gpu": degrees}))
    assert [one.subject.text for one in clocks.beside_peers(change(sound()))] == subjects


@pytest.mark.parametrize(
    "other",
    [
        {"utilization_percent": {"gpu": 30}},
        {"utilization_percent": {"gpu": 98}, "throttle": {"mask": 0, "reasons": ()}},
        {"utilization_percent": {"gpu": None}},
        {"pstate": "P5"},
        {"pstate": None},
        {"name": "Tesla V100-PCIE-16GB"},
    ],
)
def test_at_another_load_it_is_not_compared(other: dict[str, Any]) -> None:
    change = all_of(RESTING, COOL, gpu(1, **HOT, **other))
    assert clocks.beside_peers(change(sound())) == []


def test_two_gpus_show_no_usual_temperature() -> None:
    change = all_of(RESTING, COOL, gpu(1, **HOT))
    assert clocks.beside_peers(change(sound(2))) == []
    assert len(clocks.beside_peers(change(sound(3)))) == 1


@pytest.mark.parametrize(
    ("watts", "other", "count"), [(149.0, 250.0, 1), (150.0, 250.0, 0), (149.0, 190.0, 0)]
)
def test_low_power_counts_where_the_peers_draw_the_same(watts: float, other: float, count: int) -> None:
    change = all_of(gpu(1, power_w={"draw": watts}), gpu(3, power_w={"draw": other}))
    assert len(clocks.beside_peers(change(sound()))) == count


def lowered(mhz: int, **also: Any) -> Change:
    return all_of(READY, gpu(2, clocks_mhz={"memory": {"now": mhz} | also}))


def test_one_p_state_has_one_memory_clock() -> None:
    (found,) = clocks.below_peers(lowered(370)(sound()))
    assert found.subject.text == "gpu:2"
    assert clocks.below_peers(lowered(400)(sound())) == []  # within 5 % of 405
    assert clocks.below_peers(lowered(810)(sound())) == []  # higher


def test_a_set_memory_clock_has_its_own_finding() -> None:
    assert clocks.below_peers(lowered(300, application=300)(sound())) == []


def test_an_idle_link_counts_only_in_a_p_state_for_load() -> None:
    slow = gpu(2, pcie={"gen_now": 1})
    assert [one.subject.text for one in clocks.below_peers(all_of(READY, slow)(sound()))] == ["gpu:2"]
    assert clocks.below_peers(all_of(READY, every_gpu(pstate="P8"), slow)(sound())) == []
