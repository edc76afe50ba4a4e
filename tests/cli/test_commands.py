import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo import __version__
from gputopo.cli import COMMANDS, options_of_command
from gputopo.values import schema
from gputopo.values.machine import Gpu, Machine
from tests.cli.conftest import Call
from tests.kit import commands

ROOT = Path(__file__).parents[2]


def test_without_arguments_the_help_is_printed(call: Call) -> None:
    bare, asked = call(), call("--help")
    assert bare == asked == call("-h")
    assert (bare.code, bare.err) == (0, "")
    for name in ("inspect", "plan", "run"):
        assert f"\n  {name} " in bare.out
    assert "..." not in bare.out.partition("machine:")[2]  # what a command does is not cut off


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_a_screen_and_a_half_and_help_all_has_every_option(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usual, whole = call(command, "--help"), call(command, "--help-all")
    assert (usual.code, whole.code) == (0, 0)
    assert usual.out.startswith(f"Usage: gputopo {command}")
    assert len(usual.out.splitlines()) <= 70
    assert max(map(len, (usual.out + whole.out).splitlines())) <= 80
    declared = {one.option.flag: one.option.more for one in options_of_command(command)}
    assert {flag for flag in declared if f" {flag} " not in f"{whole.out} "} == set()
    assert {flag for flag, more in declared.items() if more and f"\n  {flag} " in usual.out} == set()
    assert (" more options: gputopo" in usual.out) == any(declared.values())
    themes = {one.option.theme for one in options_of_command(command)} - {""}
    assert {theme for theme in themes if f"\n{theme}:\n" not in whole.out} == set()


def test_the_version_is_that_of_the_package(call: Call) -> None:
    assert call("--version") == (0, f"gputopo {__version__}\n", "")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colour_unless_no_color_is_set(no_color: str, coloured: bool, tmp_path: Path) -> None:
    recording = tmp_path / "machine.json"
    schema.write(recording, Machine(source="live", gpus=(Gpu(index=0, lost=True),)))
    command = ("-m", "gputopo", "inspect", "--from", str(recording))
    code, shown = commands.on_a_terminal(*command, NO_COLOR=no_color)
    assert code == 0
    assert "gpu.lost" in shown
    assert ("31m" in shown) == coloured  # red: the severity of an error


def test_closed_streams_change_nothing_of_the_data(tmp_path: Path) -> None:
    line = f"{sys.executable} -m gputopo run --model alexnet --dry-run --json <&- 2>&-"
    environment = {**os.environ, "GPUTOPO_ROOT": str(tmp_path), "GPUTOPO_HOME": str(tmp_path / "home")}
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert schema.schema_of(done.stdout) == "gputopo.dryrun/1"


def test_a_ctrl_c_while_the_process_ends_does_not_change_its_exit_code() -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "from gputopo.cli import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['gputopo', '--version']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_ctrl_c_while_the_entry_point_is_loaded_ends_it_without_a_traceback() -> None:
    interrupts = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == sys.argv[1]: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "if sys.argv[1] == 'signal': del sys.modules['signal']\n"
        "import gputopo.__main__ as entry\n"
        "entry.main()"
    )
    for module, code in (("signal", 130), ("gputopo.cli", -signal.SIGINT)):
        done = subprocess.run(
            [sys.executable, "-c", interrupts, module], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (code, "")
