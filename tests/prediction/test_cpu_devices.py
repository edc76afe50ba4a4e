"""Steps on logical CPU devices: what each mode does with the variables, and what was measured."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.prediction.cpu_devices import UPDATE, Work, added, cpu_devices, predict, updated
from gputopo.prediction.step import Placing, model_of
from gputopo.workload.workloads import require

SERVER, COPIED, RING = (
    Placing("parameter_server", "cpu"),
    Placing("replicated", None, "copy"),
    Placing("replicated", None, "ring"),
)
ALONE = Placing("independent")
MODES = (SERVER, COPIED, RING, ALONE, Placing("replicated", None, "hierarchical"))
MODEL = model_of(require("alexnet"))


def test_adding_n_tensors_reads_n_and_writes_one() -> None:
    assert added(SERVER, 4) == added(COPIED, 4) == Work(5, 1)
    assert added(ALONE, 4) == added(SERVER, 1) == Work(0, 0)


def test_a_ring_reads_every_gradient_and_joins_the_sums_on_every_device() -> None:
    assert added(RING, 4) == Work(2 * 4, 7)
    assert added(Placing("replicated", None, "pscpu#2"), 4).passes == 5 + 2 * 4


def test_groups_are_added_before_their_sums_are() -> None:
    assert added(MODES[-1], 4) == Work(4 + 2, 2 + 1)


def test_collectives_of_a_model_wait_for_one_another() -> None:
    small = model_of(require("resnet20"))
    work = added(Placing("replicated", None, "collective"), 2)
    assert work.seconds(small, cpu_devices()) > 1e-6 * len(small.sizes) * cpu_devices().us_collective


def test_a_server_updates_once_and_copies_each() -> None:
    assert updated(SERVER, 4) == Work(UPDATE, 1)
    assert updated(COPIED, 4) == updated(ALONE, 4) == Work(4 * UPDATE, 4)


@given(st.sampled_from(MODES), st.integers(1, 16), st.floats(0.01, 100))
def test_a_step_computes_for_all_devices_and_one_device_takes_what_it_was_given(
    mode: Placing, towers: int, alone_s: float
) -> None:
    one = predict(MODEL, mode, 1, 1 + alone_s, cpu_devices())
    assert one.step_s == pytest.approx(1 + alone_s)
    step = predict(MODEL, mode, towers, 1 + alone_s, cpu_devices())
    share = cpu_devices().at_once if towers > 1 else 1.0
    assert step.compute_s == pytest.approx(towers * share * one.compute_s)
    assert min(step) >= 0


@given(st.integers(2, 16))
def test_a_server_does_least_and_a_ring_most(towers: int) -> None:
    steps = [
        predict(MODEL, mode, towers, 1.0, cpu_devices()).step_s for mode in (SERVER, ALONE, COPIED, RING)
    ]
    assert all(a < b or towers == 2 for a, b in pairwise(steps))
