"""The cells of a sweep one after another, with a worker that only pretends: ends, kills, limits, pauses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.launch.jobs.sweep import FILE, Pause, run_cells
from gputopo.launch.supervise.run_folder import RunFolder
from gputopo.report.runs.sweep import sweep_document
from gputopo.values import schema
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import BY_TIME, Sweep, SweepCell
from tests.launch.jobs.test_screen import ticking, unsampled
from tests.launch.jobs.test_trials import COPIES, PS, pretends

TRIALS = {1: PS, 2: COPIES, 3: PS}


def sweep_of(*states: str) -> Sweep:
    cells = tuple(
        SweepCell(number=n, name=f"{n:04d}", table="1", options={"model": "trivial"}, state=state)  # type: ignore[arg-type]
        for n, state in enumerate(states, start=1)
    )
    return Sweep(title="T", origin="t.toml", matrix="", backend="cpu", cells=cells)


def run(sweep: Sweep, folder: Path, **more: Any) -> tuple[Sweep, int]:
    more = {"command": pretends, **more}
    order = [cell.number for cell in sweep.cells]
    return run_cells(sweep, order, TRIALS, folder, open_sampler=unsampled, **more)


def stored(folder: Path) -> Sweep:
    return schema.decode((folder / FILE).read_bytes(), Sweep, origin=FILE)


def states(sweep: Sweep) -> list[str]:
    return [cell.state for cell in sweep.cells]


@pytest.fixture(autouse=True)
def in_time(ends_in_time: None) -> None:
    """No run of these lasts."""


def test_each_cell_has_a_folder_and_the_manifest_its_speed(tmp_path: Path) -> None:
    found, code = run(sweep_of("pending", "refused", "pending"), tmp_path)
    assert (states(found), code, found.complete) == (["done", "refused", "done"], 0, True)
    assert [cell.images_per_sec for cell in found.cells] == [pytest.approx(40), None, pytest.approx(40)]
    assert stored(tmp_path) == found
    for cell in (found.cells[0], found.cells[2]):
        result = RunFolder(tmp_path / cell.folder).result.read_bytes()
        assert schema.decode(result, Result, origin="result.json").status == "complete"


def test_a_failed_cell_has_its_reason_and_the_others_run(tmp_path: Path) -> None:
    def fails_first(spec: Path, events_fd: int) -> Sequence[str]:
        return ("false",) if spec.parent.name == "0001" else pretends(spec, events_fd)

    found, code = run(sweep_of("pending", "pending"), tmp_path, command=fails_first)
    assert (states(found), code) == (["failed", "done"], 0)
    assert found.cells[0].reason
    assert found.cells[0].images_per_sec is None


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
    assert summary.startswith("No verdict on 1 of 2 cells: other programs were busy. Repeat.")


def test_cells_are_apart_by_the_pause_and_wait_for_the_temperature(tmp_path: Path) -> None:
    slept: list[float] = []
    readings = iter([50.0, 72.0, 66.0, 59.0])
    pause = Pause(
        seconds=7.0, below_c=60.0, temperature_c=lambda: next(readings), sleep=lambda s: slept.append(s)
    )
    said: list[str] = []
    found, _ = run(sweep_of("pending", "pending"), tmp_path, pause=pause, on_wait=said.append)
    assert slept == [7.0, 2.0, 2.0]
    assert [cell.temperature_c for cell in found.cells] == [50.0, 59.0]
    assert said == ["waiting until all GPUs are below 60 \N{DEGREE SIGN}C, now 72"]
