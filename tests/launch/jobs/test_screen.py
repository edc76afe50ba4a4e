"""The order of a screen's runs, its limit of time and its signals, with a worker that only pretends."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.jobs.screen import QUICK_S, Cell, measure
from tests.launch.jobs.test_autotune import PS, pretends

CELLS = (
    Cell("alone", (0,), PS),
    Cell("alone", (1,), PS),
    Cell("independent", (0, 1), PS),
    Cell("together", (0, 1), PS),
)


def unsampled(_gpus: Sequence[int]) -> AbstractContextManager[Any]:
    return nullcontext()


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much each time that it is read."""
    times = count(0.0, seconds)
    return lambda: next(times)


def test_rounds_alternate_and_runs_of_several_devices_come_last(tmp_path: Path, ends_in_time: None) -> None:
    found, code, complete = measure(CELLS, tmp_path, open_sampler=unsampled, command=pretends)
    assert [one.folder.removeprefix("screen/") for one in found] == [
        "alone-0-1",
        "alone-1-1",
        "alone-1-2",
        "alone-0-2",
        "alone-0-3",
        "alone-1-3",
        "independent-0-1-1",
        "together-0-1-1",
    ]
    assert (code, complete) == (0, True)
    assert all(one.images_per_sec == pytest.approx(40) for one in found)


@pytest.mark.parametrize(
    ("seconds", "kinds"),
    [
        (QUICK_S / 8, ["alone", "alone", "independent"]),
        (QUICK_S, ["alone", "alone"]),
    ],
)
def test_within_a_limit_the_first_round_is_made_and_others_where_they_fit(
    tmp_path: Path, ends_in_time: None, seconds: float, kinds: list[str]
) -> None:
    found, _, complete = measure(
        CELLS,
        tmp_path,
        open_sampler=unsampled,
        command=pretends,
        budget_s=QUICK_S,
        clock=ticking(seconds),
    )
    assert ([one.kind for one in found], complete) == (kinds, False)


def test_a_signal_keeps_what_was_measured(tmp_path: Path, ends_in_time: None) -> None:
    def ends_second(spec: Path, events_fd: int) -> Sequence[str]:
        if spec.parent.name != "alone-0-1":
            os.kill(os.getpid(), signal.SIGTERM)
        return pretends(spec, events_fd)

    found, code, complete = measure(CELLS, tmp_path, open_sampler=unsampled, command=ends_second)
    assert ([one.folder for one in found], code, complete) == (["screen/alone-0-1"], 143, False)


def test_what_failed_is_not_run_again_and_has_its_reason(tmp_path: Path, ends_in_time: None) -> None:
    def fails_first(spec: Path, events_fd: int) -> Sequence[str]:
        return ("false",) if spec.parent.name == "alone-0-1" else pretends(spec, events_fd)

    found, code, _ = measure(CELLS, tmp_path, open_sampler=unsampled, command=fails_first)
    assert [one.folder for one in found if one.failure] == ["screen/alone-0-1"]
    assert sum(one.kind == "alone" for one in found) == 4
    assert code == 0
