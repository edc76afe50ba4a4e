"""The order of a screen's runs, its limit of time and its signals, with a worker that only pretends."""

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from gputopo.launch.jobs import run
from gputopo.launch.jobs.screen import QUICK_S, ScreenCell, measure
from tests.launch.jobs.test_trials import PS, pretends

CELLS = (
    ScreenCell("alone", (0,), PS),
    ScreenCell("alone", (1,), PS),
    ScreenCell("independent", (0, 1), PS),
    ScreenCell("together", (0, 1), PS),
)


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much each time that it is read."""
    times = count(0.0, seconds)
    return lambda: next(times)


class Box:
    """A machine of `gpus` on which a worker imports, builds for each device, and counts for 2 s."""

    def __init__(self, gpus: int, import_s: float, build_s: float) -> None:
        self.now_s = 0.0
        self._import_s, self._build_s = import_s, build_s
        numbers = tuple(range(gpus))
        self.cells = [
            *(ScreenCell("alone", (number,), PS) for number in numbers),
            *(ScreenCell(kind, numbers, PS) for kind in ("independent", "together")),
        ]

    def clock(self) -> float:
        return self.now_s

    def command(self, spec: Path, events_fd: int) -> Sequence[str]:
        devices = len(spec.parent.name.split("-")) - 2
        self.now_s += self._import_s + devices * self._build_s + 2.0
        return pretends(spec, events_fd)

    def quick(self, folder: Path) -> tuple[list[str], bool]:
        found, _, complete = measure(
            self.cells,
            folder,
            budget_s=QUICK_S,
            clock=self.clock,
        )
        return [one.kind for one in found], complete


def test_a_quick_screen_of_eight_gpus_fits_into_two_minutes(
    tmp_path: Path, ends_in_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(8, import_s=6.0, build_s=0.5)
    monkeypatch.setattr(run, "worker_command", box.command)
    kinds, complete = box.quick(tmp_path)
    assert kinds == ["independent", *["alone"] * 8, "together"]
    assert box.now_s < QUICK_S
    assert not complete  # no second round


def test_a_signal_keeps_what_was_measured(
    tmp_path: Path, ends_in_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_second(spec: Path, events_fd: int) -> Sequence[str]:
        if spec.parent.name != "alone-0-1":
            os.kill(os.getpid(), signal.SIGTERM)
        return pretends(spec, events_fd)

    monkeypatch.setattr(run, "worker_command", ends_second)
    found, code, complete = measure(CELLS, tmp_path)
    assert ([one.folder for one in found], code, complete) == (["screen/alone-0-1"], 143, False)


@pytest.mark.parametrize(("failing", "again"), [({"1"}, [[0, 2]]), ({"1", "2"}, [])])
def test_a_quick_screen_runs_all_at_once_again_without_a_device_that_failed(
    tmp_path: Path,
    ends_in_time: None,
    monkeypatch: pytest.MonkeyPatch,
    failing: set[str],
    again: list[list[int]],
) -> None:
    def fails(spec: Path, events_fd: int) -> Sequence[str]:
        return ("false",) if failing & {*spec.parent.name.split("-")[1:-1]} else pretends(spec, events_fd)

    def without(cell: ScreenCell, numbers: Sequence[int]) -> ScreenCell:
        return ScreenCell(cell.kind, tuple(numbers), cell.trial)

    cells = [
        *(ScreenCell("alone", (number,), PS) for number in range(3)),
        ScreenCell("independent", (0, 1, 2), PS),
    ]
    monkeypatch.setattr(run, "worker_command", fails)
    found, _, _ = measure(cells, tmp_path, budget_s=QUICK_S, without=without)
    several = [one for one in found if one.kind == "independent" and not one.failure]
    assert [[device.number for device in one.devices] for one in several] == again
    assert sum(one.failure is not None for one in found) == len(failing) + 1
