"""Predicted seconds of cells, and those that are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs.sweep_seconds import START_S, predicted_s
from gputopo.values.run.several_runs import FALLBACK_S, Sweep, SweepCell


def cell(number: int, model: str, **more: object) -> SweepCell:
    options = {"model": model, "batch_size": more.pop("batch", None)}
    return SweepCell(number=number, name=str(number), table="1", options=options, **more)  # type: ignore[arg-type]


def sweep(*cells: SweepCell, pause_s: float = 0.0) -> Sweep:
    return Sweep(title="t", origin="o", matrix="", backend="cpu", cells=cells, cool_down_s=pause_s)


def test_a_prediction_is_the_start_the_warm_up_and_the_shorter_limit() -> None:
    speeds = {"images_per_sec": 100.0, "joint_batch": 50, "warmup": 4}
    assert predicted_s(**speeds, counted=20, counted_s=None) == pytest.approx(START_S + 2 + 10)  # type: ignore[arg-type]
    assert predicted_s(**speeds, counted=20, counted_s=5.0) == pytest.approx(START_S + 2 + 5)  # type: ignore[arg-type]
    assert predicted_s(**{**speeds, "images_per_sec": None}, counted=20, counted_s=5.0) == START_S + 5  # type: ignore[arg-type]
    assert predicted_s(**{**speeds, "images_per_sec": None}, counted=20, counted_s=None) is None  # type: ignore[arg-type]


def test_a_cell_is_expected_to_take_what_is_known_best() -> None:
    begun = sweep(cell(1, "alexnet", state="done", seconds=30.0, predicted_s=20.0))
    assert begun.expected_s(cell(2, "alexnet")) == 30
    assert begun.expected_s(cell(2, "vgg16", predicted_s=40.0)) == 60  # as much longer as the first
    assert begun.expected_s(cell(2, "vgg16")) == 30
    assert sweep().expected_s(cell(2, "vgg16")) == FALLBACK_S


@given(st.lists(st.sampled_from(["pending", "running", "done", "failed", "refused", "left_out"])))
def test_only_cells_that_will_run_take_time(states: list[str]) -> None:
    cells = [cell(n, "alexnet", state=state, predicted_s=10.0) for n, state in enumerate(states)]
    open_ = sum(state in ("pending", "running") for state in states)
    assert sweep(*cells, pause_s=5.0).left_s == pytest.approx(15.0 * open_)
