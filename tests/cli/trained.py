"""`gputopo` in this process with workers that really train: forks of one that has TensorFlow loaded."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputopo.cli import run_command
from gputopo.values import schema
from gputopo.values.run.result import Result
from tests.kit.machines import ReadingHere
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.launch.forks import forked_workers


@contextlib.contextmanager
def without_a_gpu(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Make this machine one without a GPU, `folder` the current one and its `home` that of gputopo.

    Workers are forks. The patches may be added to.
    """
    root = folder / "root"
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    no_driver = FakeNvml(SCENARIOS["four"], init_code=9)  # NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.MonkeyPatch.context() as patch, installed(no_driver), forked_workers(root) as command:
        patch.setattr("gputopo.probes.collect.NvmlReading", ReadingHere)
        patch.setenv("GPUTOPO_ROOT", str(root))
        patch.setenv("GPUTOPO_HOME", str(folder / "home"))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.chdir(folder)
        patch.setattr("gputopo.launch.jobs.run.worker_command", command)
        yield patch


def result_of(folder: Path, *options: str) -> Result:
    """Return what `gputopo run` with these options files in `folder`'s home."""
    before = set(folder.glob("home/runs/*/result.json"))
    with without_a_gpu(folder):
        assert run_command(["run", *options]) == 0
    (file,) = set(folder.glob("home/runs/*/result.json")) - before
    return schema.decode(file.read_bytes(), Result, origin="result.json")
