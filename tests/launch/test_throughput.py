"""Steps that the user's own script reports: measured always, written only where a run asks for it."""

import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.throughput import STEPS_FILE, Step, Steps, summary
from tests.kit import commands


def line(pid: int, step: int, seconds: float, examples: int) -> bytes:
    return msgspec.json.encode(Step(pid=pid, step=step, seconds=seconds, examples=examples)) + b"\n"


def test_without_a_run_it_measures_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEPS_FILE, raising=False)
    with Steps(examples=8) as steps:
        steps.done()
        assert steps.images_per_sec is None
        steps.done()
    assert steps.images_per_sec is not None
    assert steps.images_per_sec > 0


def test_a_run_gets_a_line_for_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "steps"
    file.touch()
    monkeypatch.setenv(STEPS_FILE, str(file))
    with Steps(examples=8) as steps:
        steps.done()
        steps.done(examples=3)
    found = [msgspec.json.decode(text, type=Step) for text in file.read_bytes().splitlines()]
    assert [(step.step, step.examples) for step in found] == [(1, 8), (2, 3)]


@pytest.mark.parametrize("name", ["/dev/full", "/nowhere/steps"])
def test_a_report_that_cannot_be_written_never_hurts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS_FILE, name)
    with Steps(examples=8) as steps:
        steps.done()
        steps.done()
    assert steps.images_per_sec is not None


def test_the_first_step_does_not_count_and_processes_are_added_up() -> None:
    lines = [line(1, 1, 9.0, 10), line(1, 2, 0.5, 10), line(2, 1, 9.0, 10), line(2, 2, 1.0, 10)]
    expected = "the program's own steps of 2 processes, without the first: 30.0 images/sec"
    assert summary(lines) == expected
    assert summary(lines[:1]) is None


@given(st.lists(st.binary(max_size=40)))
def test_whatever_else_a_program_writes_there_its_steps_count_alike(lines: list[bytes]) -> None:
    steps = [line(1, 1, 9.0, 10), line(1, 2, 0.5, 10)]
    assert summary([steps[0], *lines, steps[1], *lines]) == summary(steps)


SCRIPT = """
import time
from gputopo.launch.throughput import Steps
with Steps(examples=8) as steps:
    for _ in range(3):
        steps.done()
raise SystemExit(7)
"""


def test_a_program_under_run_has_its_speed_printed_and_its_code_passed_through() -> None:
    done = commands.run("-m", "gputopo", "run", "--cpu", "--", sys.executable, "-c", SCRIPT)
    assert done.returncode == 7
    assert "the program's own steps, without the first: " in done.stderr
