"""The checks that need a GPU, tried on the doubles: they agree on a sound machine, and see a fault."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.box import Box
from tests.gpu.checks import kept, near
from tests.kit.cuda.build import why_not
from tests.kit.dialects.smi import xml
from tests.kit.machines import machine_of

needs_gcc = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

UUID = "GPU-0a1b2c3d-0000-4000-8000-00000000abcd"


def test_numbers_agree_within_their_share_and_the_worst_is_named() -> None:
    words = "1 of 2 within 1%; worst gpu:1: 98, 100"
    assert near("h2d", {"gpu:0": (99.5, 100.0), "gpu:1": (98.0, 100.0)}, 0.01) == ("h2d", words, False)
    assert near("h2d", {"gpu:0": (100.9, 100.0)}, 0.01)[2] is True
    assert near("h2d", {}, 0.01)[2] is None


def test_serials_and_uuids_are_masked_before_they_are_kept(tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\necho '<uuid>{UUID}</uuid><serial>1320922000123</serial><pdi>N/A</pdi>'\n")
    smi.chmod(0o755)
    box = Box(tmp_path / "kept", environment={**os.environ, "PATH": f"{smi.parent}:{os.environ['PATH']}"})
    box.folder.mkdir()
    box.write("before.txt", f'{UUID} {{"serial": "77", "uuid": null}} <board_serial>88</board_serial> N/A')
    assert box.smi
    box.write("after.txt", "card 1320922000123 of 2")
    assert (box.folder / "after.txt").read_text() == "card masked of 2"
    before = (box.folder / "before.txt").read_text()
    assert before == 'GPU-masked {"serial": "masked", "uuid": null} <board_serial>masked</board_serial> N/A'
    assert list(kept(box)) == [("no serials and UUIDs in what is kept", "none", True)]
    (box.folder / "leak.txt").write_text("card 1320922000123")
    (box.folder / "other.json").write_text(f'"uuid": "{UUID}"')
    assert [row[1:] for row in kept(box)] == [("leak.txt, other.json", False)]


BARE = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""


def run_without(names: tuple[str, ...], folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the checks in a Python, with its children, that lacks packages. `folder` is in PATH."""
    (folder / "sitecustomize.py").write_text(BARE.format(names=names))
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"},
        timeout=300,
    )


def test_all_packages_that_are_missing_are_named_first_with_the_command_that_installs_them(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "kept"
    done = run_without(("msgspec", "defusedxml", "platformdirs"), tmp_path, "--keep", str(folder))
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    says, _, command = line.partition("; to install: ")
    assert says == "missing: msgspec, defusedxml, platformdirs"
    python, *words = shlex.split(command)
    assert (python, words[:3]) == (sys.executable, ["-m", "pip", "install"])
    assert [word.partition(">=")[0] for word in words[3:]] == ["msgspec", "defusedxml", "platformdirs"]
    assert not folder.exists()


@needs_gcc
@pytest.mark.sessions
def test_a_bare_machine_shows_what_nvidia_smi_has_otherwise_and_what_it_lacks(
    tmp_path: Path,
) -> None:
    machine = machine_of("desktop")
    other = xml(machine, 550).replace(machine.gpus[0].vbios_version or "", "90.02.0B.00.99")
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{other}\nEND\n")
    smi.chmod(0o755)
    absent = ("tensorflow", "keras", "torch", "numpy", "jinja2", "pytest")
    done = run_without(absent, tmp_path, "--double", "desktop", "--keep", str(tmp_path / "kept"))
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    table = (tmp_path / "kept" / "table.txt").read_text()
    assert table.splitlines() == done.stdout.splitlines()[:-1]
    (wrong,) = [line for line in table.splitlines() if line.startswith("NOT")]
    assert "90.02.0B.00.99" in wrong
    not_tried = [line for line in table.splitlines() if line.startswith("not tried")]
    assert any("there is no nvbandwidth" in line for line in not_tried)
    files = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"versions.txt", "timings.txt", "machine.json", "quick.json", "plain-rates.json"} <= files
    assert "torch is not installed" in (tmp_path / "kept" / "versions.txt").read_text()
