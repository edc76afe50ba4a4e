import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest

from gputopo.cli import run_command
from gputopo.probes import RunWatch
from tests.kit.faults import selected
from tests.kit.machines import ReadingHere, WatchHere
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree
from tests.kit_workers import misbehave
from tests.kit_workers.stand_in import PYTHON, WORKER, behaves, write_python


class Called(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Called]
OnTerminal = Callable[..., "Terminal"]
ByName = Callable[[str], None]  # does what is named so


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps what commands file away from the user's folder, and what was filed there away from commands.

    The caller's choice of GPUs is kept away too.
    """
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def read_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process ask NVML in it. With the fixture `waits` they ask it in a child, as ever."""
    if "waits" not in request.fixturenames:
        monkeypatch.setattr("gputopo.probes.collect.NvmlReading", ReadingHere)
    monkeypatch.setattr("gputopo.probes.run_watch.RunWatch", partial(RunWatch, open_gpus=WatchHere))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command line in this process: exit code, stdout, stderr."""

    def called(*arguments: object) -> Called:
        code = run_command([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Called(code, captured.out, captured.err)

    return called


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was written, without colours and links."""
        return re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\\\", "", self.getvalue())


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Runs the command line of this process on a terminal; returns that terminal."""

    def shown(*arguments: object, columns: int = 80, lines: int = 1000) -> Terminal:
        for name, text in {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm"}.items():
            monkeypatch.setenv(name, text)
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            assert run_command([str(argument) for argument in arguments]) == 0
        return terminal

    return shown


CORE = WORKER
# For the code of a worker that does something before it behaves as one of the kit.
THEN_BEHAVE = f"""
import os, sys
os.execv(sys.executable, [sys.executable, "-IS", {misbehave.__file__!r}, behaviour, *sys.argv[1:]])
"""
# Code of a process: a program that stands for Python, a module, and the arguments of its main.
WITH_WORKER = """
import runpy, sys
sys.executable = sys.argv.pop(1)
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def pretending(folder: Path, worker: str, module: str = CORE) -> str:
    """Write a program that stands for Python, but runs a pretending worker in the place of `module`.

    `worker`: a behaviour of `misbehave`, or its own code. Its arguments are those of the module.
    """
    if worker.isidentifier():
        return write_python(folder, module, behaves(worker))
    code = folder / "worker.py"
    code.write_text(worker)
    return write_python(folder, module, f'exec {PYTHON} -IS {code} "$@"')


@pytest.fixture
def worker(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a pretending worker in the place of the core, or of another module: see `pretending`."""

    def begin(worker: str, module: str = CORE) -> None:
        program = pretending(tmp_path_factory.mktemp("worker"), worker, module)
        monkeypatch.setattr(sys, "executable", program)

    return begin


@pytest.fixture(scope="session")
def tree_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the tree of a scenario, once for all tests: none writes to it."""
    return cache(lambda name: write_tree(selected(name), tmp_path_factory.mktemp("tree")))


@pytest.fixture
def on_scenario(tree_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[ByName]:
    """Makes this machine one of the kit's for the rest of the test."""
    with contextlib.ExitStack() as doubles:

        def begin(name: str) -> None:
            monkeypatch.setenv("GPUTOPO_ROOT", str(tree_of(name)))
            doubles.enter_context(installed(FakeNvml(selected(name))))

        yield begin


@pytest.fixture
def without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this machine one without any PCI device and without a driver."""
    root = tmp_path / "no-gpu"
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Test CPU\n")
    monkeypatch.setenv("GPUTOPO_ROOT", str(root))
    with installed(_driver_not_loaded()):
        yield


@pytest.fixture
def with_broken_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this machine one with NVIDIA devices whose kernel module is not loaded."""
    root = write_tree(SCENARIOS["four"], tmp_path / "broken", driver=False)
    monkeypatch.setenv("GPUTOPO_ROOT", str(root))
    with installed(_driver_not_loaded()):
        yield


@pytest.fixture
def with_hidden_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this machine one that shows no PCI bus, and whose driver is of two versions."""
    root = tmp_path / "hidden"
    (root / "proc").mkdir(parents=True)
    monkeypatch.setenv("GPUTOPO_ROOT", str(root))
    with installed(FakeNvml(SCENARIOS["four"], init_code=18)):  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
        yield


def _driver_not_loaded() -> FakeNvml:
    return FakeNvml(SCENARIOS["four"], init_code=9)  # NVML_ERROR_DRIVER_NOT_LOADED
