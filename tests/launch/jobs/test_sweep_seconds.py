"""Predicted seconds of cells, and those that are left."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs import predicted_s
from gputopo.values.run.several_runs import FALLBACK_S, Sweep, SweepCell


def cell(number: int, model: str, **more: object) -> SweepCell:
    options = {"model": model, "batch_size": more.pop("batch", None)}
    return SweepCell(number=number, name=str(number), table="1", options=options, **more)  # type: ignore[arg-type]


def sweep(*cells: SweepCell, pause_s: float = 0.0) -> Sweep:
    return Sweep(title="t", origin="o", matrix="", backend="cpu", cells=cells, cool_down_s=pause_s)


@pytest.mark.parametrize(
    ("images_per_sec", "counted", "counted_s", "seconds"),
    [(100.0, 20, None, 2 + 10), (100.0, 20, 5.0, 2 + 5), (None, 20, 5.0, 5), (None, 20, None, None)],
)
def test_a_prediction_is_the_start_of_6_s_the_warm_up_and_the_shorter_limit(
    images_per_sec: float | None, counted: int, counted_s: float | None, seconds: float | None
) -> None:
    limits: dict[str, Any] = {"counted": counted, "counted_s": counted_s}
    found = predicted_s(images_per_sec=images_per_sec, joint_batch=50, warmup=4, **limits)
    assert found == (None if seconds is None else pytest.approx(6 + seconds))


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
