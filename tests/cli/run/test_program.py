"""`gputopo run -- PROGRAM`: a program of the user on the planned GPUs."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from gputopo.launch import DryRun
from gputopo.values import schema
from tests.cli.conftest import ByName, Call
from tests.kit import commands
from tests.kit.forks import Done, Program


def test_a_dry_run_of_a_program_shows_its_command(call: Call, on_scenario: ByName) -> None:
    on_scenario("7gforce")
    options = ("run", "--gpus", "3", "--dry-run", "--json", "--", "sh", "-c", "exit 1")
    dry = schema.decode(call(*options).out, DryRun, origin="stdout")
    assert (dry.command, dry.spec) == (("sh", "-c", "exit 1"), None)
    assert dry.plan.choice.gpus == (3,)


def test_a_program_of_the_user_sees_the_planned_gpus_and_passes_its_code_through() -> None:
    script = 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; exit 7'
    command = ("run", "--num-gpus", "2", "--", "sh", "-c", script)
    done = commands.run("-m", "tests.kit.command", "7gforce", "--", *command)
    assert done.returncode == 7
    order, uuids = done.stdout.split()
    assert order == "PCI_BUS_ID"
    assert [uuid.startswith("GPU-") for uuid in uuids.split(",")] == [True, True]
    first, code, last = done.stderr.splitlines()
    assert (first, code) == ("gputopo: sh runs on GPU 0, 1.", "gputopo: sh ended with exit code 7")
    assert last.startswith("gputopo: run folder: ")


def test_a_program_on_a_machine_without_a_gpu_runs_without_one_and_it_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    command = ("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; kill -9 $$")
    done = commands.run("-m", "gputopo", *command, GPUTOPO_ROOT=str(tmp_path))
    assert (done.returncode, done.stdout) == (137, "-1\n")
    assert done.stderr.startswith(
        "gputopo: No NVIDIA device: sh runs without a GPU.\ngputopo: sh was killed by SIGKILL\n"
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -TERM $$", ["sh was killed by SIGTERM", "find out who sent it"]),
        ("kill -PIPE $$", []),  # the end of `| head`
        ("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 MiB' >&2; exit 1",
         ["sh ended with exit code 1: CUDA out of memory. Tried to allocate 2 MiB", "Check nvidia-smi for"]),
    ],
)  # fmt: skip
def test_why_a_program_failed_is_shown_with_what_its_stderr_reports(
    script: str, said: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    done = commands.run("-m", "gputopo", "run", "--", "sh", "-c", script, GPUTOPO_ROOT=str(tmp_path))
    lines = [line for line in done.stderr.splitlines() if line.startswith("gputopo")]
    shown = [
        line.removeprefix("gputopo: ") for line in lines[1:-1]
    ]  # between where it runs and the run folder
    assert len(shown) == len(said), shown
    assert all(line.startswith(begin) for line, begin in zip(shown, said, strict=True)), shown


_UNTIL_KILLED = (sys.executable, "-c", "import signal; print('begun', flush=True); signal.pause()")


@contextlib.contextmanager
def _running(home: Path, *options: str) -> Iterator[tuple[Program, IO[str]]]:
    """gputopo that runs a program on `four` until it is killed, and what both print."""
    command = ("-m", "tests.kit.command", "four", "--", "run", *options, "--", *_UNTIL_KILLED)
    with commands.started(*command, GPUTOPO_HOME=str(home)) as started:
        yield started


def _begun(out: IO[str]) -> str:
    """Wait for the program, and return what was printed before: the GPUs are claimed."""
    lines: list[str] = []
    for line in out:
        if line == "begun\n":
            return "".join(lines)
        lines.append(line)
    raise AssertionError(lines)


def test_two_runs_take_different_gpus_and_a_killed_one_frees_its_own(tmp_path: Path) -> None:
    def gputopo(*arguments: str) -> Done:
        return commands.run("-m", "tests.kit.command", "four", "--", *arguments, GPUTOPO_HOME=str(tmp_path))

    visible = ("run", "--num-gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    with _running(tmp_path, "--num-gpus", "2") as (first, out):
        _begun(out)
        words = f"claimed by gputopo run (pid {first.pid})"
        beside = gputopo(*visible)
        assert f"GPUs 0 and 1 excluded: {words}" in beside.stderr
        named = gputopo("run", "--gpus", "1,2", "--", "true")
        assert (named.returncode, named.stdout) == (3, "")
        assert f"GPU 1 is {words}" in named.stderr
        os.kill(first.pid, signal.SIGKILL)
        first.wait(60)
        freed = gputopo(*visible).stdout.strip()
        assert not set(freed.split(",")) & set(beside.stdout.strip().split(","))
