"""`gputopo run -- PROGRAM`: a program of the user on the planned GPUs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.cli.run.dry import DryRun
from gputopo.values import schema
from tests.cli.conftest import Call

ROOT = Path(__file__).parents[3]


def kit(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.kit.command", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_dry_run_of_a_program_shows_its_command(call: Call, on_scenario: Callable[[str], None]) -> None:
    on_scenario("7gforce")
    options = ("run", "--gpus", "3", "--dry-run", "--json", "--", "sh", "-c", "exit 1")
    dry = schema.decode(call(*options).out, DryRun, origin="stdout")
    assert (dry.command, dry.spec) == (("sh", "-c", "exit 1"), None)
    assert dry.plan.choice.gpus == (3,)


def test_a_program_of_the_user_sees_the_planned_gpus_and_passes_its_code_through() -> None:
    script = 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; exit 7'
    done = kit("7gforce", "--", "run", "--num-gpus", "2", "--", "sh", "-c", script)
    assert done.returncode == 7
    order, uuids = done.stdout.split()
    assert order == "PCI_BUS_ID"
    assert [uuid.startswith("GPU-") for uuid in uuids.split(",")] == [True, True]
    assert done.stderr == "gputopo: sh runs on GPU 0, 1.\n"


def test_a_program_on_a_machine_without_a_gpu_runs_without_one_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    environment = {**os.environ, "GPUTOPO_ROOT": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "gputopo",
        "run",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES; kill -9 $$",
    ]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (137, "-1\n")
    assert done.stderr == "gputopo: No NVIDIA device: sh runs without one.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_program_runs_to_its_end_with_its_own_stderr_where_that_is_full(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    script = "echo taken; echo lost >&2 || echo refused; exit 7"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gputopo", "run", "--", "sh", "-c", script],
            env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stdout) == (7, "taken\nrefused\n")
