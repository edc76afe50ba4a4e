"""The cells of a sweep one after another, with a worker that only pretends: limits of time and pauses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch.jobs import Pause, run_cells
from gputopo.report import sweep_document
from gputopo.values.run.several_runs import BY_TIME, Sweep, SweepCell
from tests.kit_workers.stand_in import WORKER, behaves, in_place_of
from tests.launch.jobs.test_trials import COPIES, PS, STEPS_WORK
from tests.launch.specs import plan_for

TRIALS = {1: PS, 2: COPIES, 3: PS}


def sweep_of(*states: str) -> Sweep:
    cells = tuple(
        SweepCell(number=n, name=f"{n:04d}", table="1", options={"model": "trivial"}, state=state)  # type: ignore[arg-type]
        for n, state in enumerate(states, start=1)
    )
    return Sweep(title="T", origin="t.toml", matrix="", backend="cpu", cells=cells)


def run(sweep: Sweep, folder: Path, **more: Any) -> tuple[Sweep, int]:
    order = [cell.number for cell in sweep.cells]
    return run_cells(sweep, order, TRIALS, folder, **more)


def states(sweep: Sweep) -> list[str]:
    return [cell.state for cell in sweep.cells]


@pytest.fixture(autouse=True)
def in_time(ends_in_time: None, tmp_path: Path) -> Iterator[None]:
    """No run of these lasts: their worker pretends."""
    with in_place_of(WORKER, STEPS_WORK, tmp_path / "stand-in"):
        yield


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much each time that it is read."""
    times = count(0.0, seconds)
    return lambda: next(times)


def test_no_cell_is_started_that_would_not_end_in_time(tmp_path: Path) -> None:
    sweep = sweep_of("pending", "pending", "pending")
    predicted = tuple(msgspec.structs.replace(cell, predicted_s=30.0) for cell in sweep.cells)
    sweep = msgspec.structs.replace(sweep, cells=predicted)
    limited = msgspec.structs.replace(sweep, time_budget_s=60.0)
    found, code = run(limited, tmp_path, clock=ticking(20.0))
    assert (states(found)[0], states(found)[-1], found.ended_by, code) == ("done", "pending", BY_TIME, 0)
    for before in ({"time_budget_s": 20.0}, {"time_budget_s": 60.0, "seconds": 100.0, "budget_from_s": 60.0}):
        none, _ = run(msgspec.structs.replace(sweep, **before), tmp_path)
        assert states(none) == ["pending"] * 3


def test_work_of_others_beside_a_cell_is_marked(tmp_path: Path) -> None:
    shares = iter([0.02, 0.5])
    pause = Pause(other_cpu_share=lambda: next(shares))
    found, _ = run(sweep_of("pending", "pending"), tmp_path, pause=pause)
    assert [(cell.other_cpu_share, cell.beside_other_work) for cell in found.cells] == [
        (0.02, False),
        (0.5, True),
    ]
    summary = sweep_document(found).summary
    assert summary.startswith("NOT RELIABLE: 1 of 2 cells: other programs were busy. Repeat.")


def test_cells_are_apart_by_the_pause_and_wait_for_the_temperature(tmp_path: Path) -> None:
    slept: list[float] = []
    readings = iter([50.0, 72.0, 60.0, 59.0])
    pause = Pause(
        seconds=7.0, below_c=60.0, temperature_c=lambda: next(readings), sleep=lambda s: slept.append(s)
    )
    said: list[str] = []
    found, _ = run(sweep_of("pending", "pending"), tmp_path, pause=pause, on_wait=said.append)
    assert slept == [7.0, 2.0, 2.0]
    assert [cell.temperature_c for cell in found.cells] == [50.0, 59.0]
    assert said == ["waiting until all GPUs are below 60 \N{DEGREE SIGN}C, now 72"]


def test_a_cell_whose_nccl_failed_names_what_ran(tmp_path: Path) -> None:
    planned = plan_for((), None, variable_update="replicated", all_reduce="nccl")
    nccl = msgspec.structs.replace(COPIES.spec, all_reduce="nccl")
    trial = replace(COPIES, target=replace(COPIES.target, plan=planned), spec=nccl)
    sweep = sweep_of("pending")
    cells = (msgspec.structs.replace(sweep.cells[0], mode="replicated nccl"),)
    sweep = msgspec.structs.replace(sweep, cells=cells)
    with in_place_of(WORKER, behaves("crashes_in_nccl"), tmp_path / "another"):
        found, _ = run_cells(sweep, [1], {1: trial}, tmp_path)
    assert [(cell.state, cell.mode) for cell in found.cells] == [("done", "replicated copy (NCCL failed)")]
