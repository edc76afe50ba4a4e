"""`gputopo` in this process with workers that really train: forks of one that has TensorFlow loaded."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gputopo.cli import run_command
from gputopo.cli.run import autotune, screen, sweep, training
from gputopo.launch.jobs.run import worker_command
from gputopo.values import schema
from gputopo.values.run.result import Result
from tests.kit.machines import ReadingHere
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.launch.forks import server

WITH_WORKERS = (autotune, screen, sweep, training)
"""The modules of commands that start a worker."""

_WORKER = """
import os, sys
from gputopo.launch.train import worker
sys.exit(worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))]))
"""


@contextlib.contextmanager
def without_a_gpu(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Make this machine one without a GPU, `folder` the current one and its `home` that of gputopo.

    Workers are forks. The patches may be added to.
    """
    root = folder / "root"
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    no_driver = FakeNvml(SCENARIOS["four"], init_code=9)  # NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.MonkeyPatch.context() as patch, installed(no_driver), _forked(root) as command:
        patch.setattr("gputopo.probes.collect.NvmlReading", ReadingHere)
        patch.setenv("GPUTOPO_ROOT", str(root))
        patch.setenv("GPUTOPO_HOME", str(folder / "home"))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.chdir(folder)
        for module in WITH_WORKERS:
            patch.setattr(module, "worker_command", command)
        yield patch


def result_of(folder: Path, *options: str) -> Result:
    """Return what `gputopo run` with these options files in `folder`'s home."""
    before = set(folder.glob("home/runs/*/result.json"))
    with without_a_gpu(folder):
        assert run_command(["run", *options]) == 0
    (file,) = set(folder.glob("home/runs/*/result.json")) - before
    return schema.decode(file.read_bytes(), Result, origin="result.json")


@contextlib.contextmanager
def _forked(folder: Path) -> Iterator[Callable[[Path, int], Sequence[str]]]:
    """Make the command of a worker; where nothing can be forked, the real one."""
    forks = server()
    if forks is None:
        yield worker_command
        return
    with forks.door(folder) as python:
        yield lambda spec, events: (python, "-c", _WORKER, str(spec), f"/proc/self/fd/{events}")
