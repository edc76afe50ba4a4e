"""What `gputopo run -- PROGRAM` records: a run folder as of any run, which never hurts the program."""

import sys
from pathlib import Path

import pytest

from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.run.events import RunStarted, Step, read_events
from gputopo.values.run.result import Result
from tests.kit import commands

REPORTS = """
import os, socket
from gputopo.launch.throughput import Steps
ends = socket.socketpair()
child = os.fork()
with Steps(examples=8, device=0 if child else 1) as steps:
    for _ in range(3):
        steps.done()
        ends[not child].send(b"x")  # the end of a synchronous step
        ends[not child].recv(1)
if child:
    os.waitpid(child, 0)
raise SystemExit(7)
"""


def result_in(folder: Path) -> Result:
    return schema.decode((folder / "result.json").read_bytes(), Result, origin="result.json")


def test_a_program_has_a_run_folder_with_the_steps_of_all_its_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ("run", "--num-gpus", "2", "--output", str(folder), "--", sys.executable, "-c", REPORTS)
    done = commands.run("-m", "tests.kit.command", "7gforce", "--", *command)
    assert (done.returncode, done.stdout) == (7, "")
    result = result_in(folder)
    with (folder / "events.jsonl").open("rb") as lines:
        events = list(read_events(lines, origin="events.jsonl"))
    assert summarise(events) == result
    assert (result.status, result.exit_code, result.steps, result.images) == ("failed", 7, 2, 32)
    assert result.failure is not None
    assert result.failure.cause == f"{Path(sys.executable).name} ended with exit code 7"
    started = next(event for event in events if isinstance(event, RunStarted))
    assert [device.gpu for device in started.devices] == [0, 1]
    assert [event.step for event in events if isinstance(event, Step)] == [0, 1, 2]
    said = done.stderr.splitlines()
    assert any("examples/sec" in line and "over 2 steps after 1 step of warm-up" in line for line in said)
    assert said[-1] == f"gputopo: run folder: {folder}"


def test_a_program_that_reports_no_steps_is_recorded_without_a_speed(tmp_path: Path) -> None:
    metrics = tmp_path / "run.prom"
    command = ("run", "--cpu", "--prometheus", str(metrics), "--output", str(tmp_path / "run"), "--", "true")
    assert commands.run("-m", "gputopo", *command).returncode == 0
    result = result_in(tmp_path / "run")
    assert (result.status, result.steps, result.throughput, result.says[0]) == (
        "complete",
        0,
        None,
        "--cpu: true runs without a GPU",
    )
    assert 'gputopo_run_status{state="complete"} 1' in metrics.read_text()


def test_a_folder_that_the_user_names_must_be_free_and_the_usual_one_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    named = commands.run("-m", "gputopo", "run", "--cpu", "--output", str(tmp_path), "--", "true")
    assert (named.returncode, "already holds a run" in named.stderr) == (2, True)
    usual = commands.run(
        *("-m", "gputopo", "run", "--cpu", "--", "sh", "-c", "exit 7"), GPUTOPO_HOME="/proc/nowhere"
    )
    assert (usual.returncode, "this run is not recorded" in usual.stderr) == (7, True)


def test_how_it_ended_is_in_the_result(tmp_path: Path) -> None:
    script = "kill -TERM $PPID; exec sleep 100"
    command = ("run", "--cpu", "--output", str(tmp_path / "run"), "--", "sh", "-c", script)
    done = commands.run("-m", "gputopo", *command)
    result = result_in(tmp_path / "run")
    assert (result.status, result.exit_code) == ("interrupted", done.returncode)
    assert result.failure is not None
    assert result.failure.kind == "terminated"


HANGS = """
import signal, sys
from gputopo.launch.throughput import Steps
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a hang that ends as if all were well
def computes():
    while True:
        pass
with Steps(examples=8) as steps:
    steps.done()
    computes()
"""


def test_a_program_that_hangs_is_ended_with_its_stacks(tmp_path: Path) -> None:
    folder = tmp_path / "hangs"
    command = ("run", "--cpu", "--stall-timeout", "0.3", "--output", str(folder), "--", sys.executable, "-c")
    done = commands.run("-m", "gputopo", *command, HANGS)
    result = result_in(folder)
    assert (done.returncode, result.exit_code, result.status) == (3, 3, "failed")
    assert result.failure is not None
    assert result.failure.kind == "hung"
    name = Path(sys.executable).name
    assert f"gputopo: {name} hangs: no progress for 0 s in a step; " in done.stderr
    assert "in computes" in (folder / "stacks.log").read_text()
    assert not any("killed by" in line or "behind" in line for line in done.stderr.splitlines())


UNTIL_THE_XID = """until grep -q '"code":79' "$0/events.jsonl"; do sleep 0.05; done; exit $1"""


@pytest.mark.parametrize(
    ("own", "options", "code"),
    [(0, (), 0), (0, ("--fail-on", "error"), 1)],
)
def test_an_error_of_a_gpu_is_reported_and_fails_a_program_that_did_not_only_where_asked(
    own: int, options: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    program = ("sh", "-c", UNTIL_THE_XID, folder, str(own))
    command = ("run", "--gpus", "0,1", "--output", folder, *options, "--", *program)
    done = commands.run("-m", "tests.kit.command", "four+xid_79@0", "--", *command)
    assert done.returncode == code
    assert (
        "gputopo: ! GPU 0 (NVIDIA Test-100): Xid 79 reported once: GPU has fallen off the bus\n"
        in done.stderr
    )
    hardware = result_in(tmp_path / "run").hardware
    assert hardware is not None
    assert [(fault.id, fault.severity, fault.gpu) for fault in hardware.faults] == [
        ("driver.xid", "error", 0)
    ]
