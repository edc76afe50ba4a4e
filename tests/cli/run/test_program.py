"""`gputopo run -- PROGRAM`: a program of the user on the planned GPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.cli.run.dry import DryRun
from gputopo.values import schema
from tests.cli.conftest import Call
from tests.kit import commands


def test_a_dry_run_of_a_program_shows_its_command(call: Call, on_scenario: Callable[[str], None]) -> None:
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
    assert done.stderr == "gputopo: sh runs on GPU 0, 1.\n"


def test_a_program_on_a_machine_without_a_gpu_runs_without_one_and_it_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    command = ("run", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; kill -9 $$")
    done = commands.run("-m", "gputopo", *command, GPUTOPO_ROOT=str(tmp_path))
    assert (done.returncode, done.stdout) == (137, "-1\n")
    assert done.stderr == "gputopo: No NVIDIA device: sh runs without a GPU.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_program_runs_to_its_end_with_its_own_stderr_where_that_is_full(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    script = "echo taken; echo lost >&2 || echo refused; exit 7"
    with open("/dev/full", "w") as full:
        command = ("-m", "gputopo", "run", "--", "sh", "-c", script)
        done = commands.run(*command, err=full.fileno(), GPUTOPO_ROOT=str(tmp_path))
    assert (done.returncode, done.stdout) == (7, "taken\nrefused\n")
