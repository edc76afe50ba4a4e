"""The order of a screen's runs, its limit of time and its signals, with a worker that only pretends."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.jobs import ScreenCell, measure_cells
from gputopo.values.run.several_runs import ScreenRun
from tests.kit_workers.stand_in import WORKER, behaves, in_place_of
from tests.launch.jobs.test_trials import PS, STEPS_WORK, unless

QUICK_S = 120.0  # for all runs of --quick


def cells(gpus: int) -> list[ScreenCell]:
    """Return the cells of a machine: each GPU alone, and all of them in two ways."""
    numbers = tuple(range(gpus))
    return [
        *(ScreenCell("alone", (number,), PS) for number in numbers),
        *(ScreenCell(kind, numbers, PS) for kind in ("independent", "together")),
    ]


def measured(
    folder: Path, of: Sequence[ScreenCell], worker: str = STEPS_WORK, **how: Any
) -> tuple[tuple[ScreenRun, ...], int, bool]:
    with in_place_of(WORKER, worker, folder / "stand-in"):
        return measure_cells(of, folder, **how)


def names(runs: Sequence[ScreenRun]) -> list[str]:
    """Return the kind, devices and round of each run."""
    return [run.folder.removeprefix("screen/") for run in runs]


def clock_of(folder: Path, import_s: float, build_s: float) -> Callable[[], float]:
    """A clock by which each run imports, builds for each of its devices, and counts for 2 s."""

    def now_s() -> float:
        devices = [len(run.name.split("-")) - 2 for run in folder.glob("screen/*")]
        return sum(import_s + number * build_s + 2.0 for number in devices)

    return now_s


def test_a_whole_screen_runs_each_alone_in_three_rounds_that_alternate_and_then_all(
    tmp_path: Path, ends_in_time: None
) -> None:
    found, _, complete = measured(tmp_path, cells(2))
    rounds = ["alone-0-1", "alone-1-1", "alone-1-2", "alone-0-2", "alone-0-3", "alone-1-3"]
    assert names(found) == [*rounds, "independent-0-1-1", "together-0-1-1"]
    assert complete


def test_a_quick_one_runs_all_at_once_first_and_then_the_slow_one_and_further_rounds_as_a_whole_only(
    tmp_path: Path, ends_in_time: None
) -> None:
    slow = unless("*/independent-*", behaves("slow_tower"))
    now_s = clock_of(tmp_path, import_s=18.0, build_s=0.0)
    found, _, complete = measured(tmp_path, cells(2), slow, budget_s=QUICK_S, clock=now_s)
    first = ["independent-0-1-1", "alone-1-1", "alone-0-1", "together-0-1-1"]
    assert (names(found), complete) == ([*first, "alone-1-2", "alone-0-2"], False)


def test_a_signal_keeps_what_was_measured(tmp_path: Path, ends_in_time: None) -> None:
    ends_second = unless("*/alone-1-*", f"kill -TERM $PPID; {STEPS_WORK}")
    found, code, complete = measured(tmp_path, cells(2), ends_second)
    assert (names(found), code, complete) == (["alone-0-1"], 143, False)


@pytest.mark.parametrize(
    ("failing", "again"), [("*/alone-1-1/*", [[0, 2]]), ("*/alone-1-1/*|*/alone-2-1/*", [])]
)
def test_a_quick_screen_runs_all_at_once_again_without_a_device_that_failed(
    tmp_path: Path, ends_in_time: None, failing: str, again: list[list[int]]
) -> None:
    def without(cell: ScreenCell, numbers: Sequence[int]) -> ScreenCell:
        return ScreenCell(cell.kind, tuple(numbers), cell.trial)

    fails = unless(f"{failing}|*/independent-0-1-2-*", "exit 1")
    found, _, _ = measured(tmp_path, cells(3)[:-1], fails, budget_s=QUICK_S, without=without)
    several = [one for one in found if one.kind == "independent" and not one.failure]
    assert [[device.number for device in one.devices] for one in several] == again
    assert sum(one.failure is not None for one in found) == failing.count("alone") + 1
