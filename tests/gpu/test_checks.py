"""The checks that need a GPU, tried on the doubles: they agree on a sound machine, and see a fault."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gputopo.values.machine import Machine
from gputopo.values.schema import decode
from tests.gpu.__main__ import doubled
from tests.gpu.box import RESERVE_S, Box, NotTriedError
from tests.gpu.checks import CHECKS, copies, engine, facts, full, holding, kept, near, rates, rows
from tests.kit.cuda.build import why_not
from tests.kit.dialects.smi import xml

needs_gcc = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

UUID = "GPU-0a1b2c3d-0000-4000-8000-00000000abcd"


def test_numbers_agree_within_their_share_and_the_worst_is_named() -> None:
    words = "1 of 2 within 1%; worst gpu:1: 98, 100"
    assert near("h2d", {"gpu:0": (99.5, 100.0), "gpu:1": (98.0, 100.0)}, 0.01) == ("h2d", words, False)
    assert near("h2d", {"gpu:0": (100.9, 100.0)}, 0.01)[2] is True
    assert near("h2d", {}, 0.01)[2] is None


def test_only_large_copies_that_ran_alone_are_compared() -> None:
    one: dict[str, Any] = {"kind": "h2d", "method": "copy_engine", "source": "host", "destination": "gpu:0"}
    samples: list[dict[str, Any]] = [
        one | {"median_gb_per_s": 12.0, "bytes": 2**25},
        one | {"median_gb_per_s": 12.5, "bytes": 2**29},
        one | {"median_gb_per_s": 99.0, "bytes": 4096},
        one | {"median_gb_per_s": 99.0, "bytes": 2**29, "group": "h2d gpus:0,1"},
        one | {"median_gb_per_s": 99.0, "bytes": 2**29, "pinned": False},
        one | {"kind": "host_memory", "median_gb_per_s": 99.0},
    ]
    assert rates(samples) == {("h2d", "copy_engine", "host", "gpu:0"): 12.5}


ENDLESS = (sys.executable, "-c", "import signal; signal.pause()")


def test_a_command_that_lasts_longer_than_its_limit_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no end within 0.1 s"):
        Box(tmp_path).run(*ENDLESS, limit_s=0.1)


def test_a_command_for_which_the_time_is_too_short_is_not_tried(tmp_path: Path) -> None:
    box = Box(tmp_path, budget_s=RESERVE_S + 0.1)
    for _ in range(2):
        with pytest.raises(NotTriedError, match="no time left"):
            box.run(*ENDLESS)
    assert len(box.timings) == 1, "the second was not started"


def test_checks_for_which_there_is_no_time_are_not_tried(
    tmp_path: Path,
) -> None:
    found = list(rows(Box(tmp_path, budget_s=0.0)))
    assert [words for _, words, _ in found[:-1]] == ["no time left"] * len(CHECKS)
    assert {verdict for _, _, verdict in found[:-1]} == {None}
    assert found[-1] == ("no serials and UUIDs in what is kept", "none", True)


def test_a_command_that_fails_is_kept_with_what_it_printed(tmp_path: Path) -> None:
    box = Box(tmp_path)
    with pytest.raises(RuntimeError, match="exit code 3: no driver"):
        box.run("sh", "-c", f"echo half; echo no driver of {UUID} >&2; exit 3")
    text = (tmp_path / "failed-1.txt").read_text()
    assert "half" in text
    assert "no driver of GPU-masked" in text


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


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The machine `desktop`, recorded once."""
    return doubled(tmp_path_factory.mktemp("recorded"), "desktop").recording


@needs_gcc
def test_on_the_double_of_a_sound_machine_all_agree_but_what_differs(recording: str, tmp_path: Path) -> None:
    box = doubled(tmp_path / "kept", "desktop")
    vars(box)["recording"] = recording
    box.folder.mkdir()
    machine = decode(Path(box.recording).read_bytes(), Machine, origin="here")
    smi = tmp_path / "nvidia-smi"
    changed = machine.gpus[0].vbios_version or ""
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{xml(machine, 550).replace(changed, '90.02.0B.00.99')}\nEND\n")
    smi.chmod(0o755)
    box.environment = {**box.environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ((_, words, verdict),) = facts(box)
    assert verdict is False
    assert "90.02.0B.00.99" in words
    local = {"kind": "d2d_local", "method": "copy_engine", "source": "gpu:0", "destination": "gpu:0"}
    vars(box)["plain_rates"] = [local | {"gb_per_s": 600.0}]
    found = {what: verdict for what, _, verdict in engine(box)}
    assert found["copies in GPU memory of 4 times the L2, of 512 MiB"] is False, "645 GB/s"
    assert found["streams of a GPU begin together"] is found["copies with NVML read, without"] is True


@needs_gcc
@pytest.mark.parametrize(
    ("faults", "way", "verdict"),
    [
        ((), "GPU 0 cuStreamWaitValue32 (", True),
        (("memops=refused",), "GPU 0 a kernel (", True),
        (("memops=refused", "oldsymbols=cuModuleLoadData"), "streams cannot be held back", False),
    ],
)
def test_the_way_in_which_streams_are_held_back_is_named(
    recording: str, tmp_path: Path, faults: Sequence[str], way: str, verdict: bool
) -> None:
    box = doubled(tmp_path, "desktop", *faults)
    vars(box)["recording"] = recording
    ((_, words, found),) = holding(box)
    assert way in words
    assert found is verdict


TORCH = """
class Event:
    clock_ms = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at_ms = Event.clock_ms

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


class Tensor:
    def __init__(self, size, where):
        self.size, self.where = size, where

    def pin_memory(self):
        return Tensor(self.size, "pinned")

    def copy_(self, other, non_blocking=False):
        assert "pageable" not in (self.where, other.where)
        slow = "pinned" in (self.where, other.where)
        Event.clock_ms += self.size / (10e6 if slow else 300e6)


class cuda:
    Event = Event
    device_count = staticmethod(lambda: 2)
    set_device = staticmethod(lambda gpu: None)


uint8 = 1


def empty(size, dtype, device="pageable"):
    return Tensor(size, device)
"""


def test_copies_of_pytorch_are_counted_as_gputopo_counts_them(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps({"gpus": [{"index": 0, "cpu_affinity": "0-1,0"}, {"index": 1}]}))
    box = Box(tmp_path, environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    found = rates(box.keep("torch", *box.torch, str(machine), "60"))
    assert found["h2d", "copy_engine", "host", "gpu:1"] == pytest.approx(10.0)
    assert found["d2h", "copy_engine", "gpu:0", "host"] == pytest.approx(10.0)
    assert found["d2d_local", "copy_engine", "gpu:0", "gpu:0"] == pytest.approx(600.0)
    assert len(found) == 6
    assert box.keep("torch", *box.torch, str(machine), "0") == []


def test_copies_are_compared_with_each_program_that_is_there(tmp_path: Path) -> None:
    box = Box(tmp_path, environment={**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
    copy = {"kind": "h2d", "method": "copy_engine", "source": "host", "destination": "gpu:0"}
    vars(box)["quick"] = {"samples": [copy | {"median_gb_per_s": 12.5, "bytes": 2**29}]}
    vars(box)["plain_rates"] = [copy | {"gb_per_s": 13.5}]
    torch, plain, nvbandwidth = copies(box)
    assert torch[1:] == ("CUDA_VISIBLE_DEVICES changes how PyTorch counts the GPUs", None)
    assert plain[1:] == ("0 of 1 within 1%; worst host to gpu:0: 12.5, 13.5", False)
    assert nvbandwidth[1:] == ("there is no nvbandwidth: --nvbandwidth PROGRAM", None)


def test_the_copies_and_latencies_of_two_sessions_are_compared(tmp_path: Path) -> None:
    box = Box(tmp_path)
    copy = {"kind": "h2d", "method": "copy_engine", "source": "host", "destination": "gpu:0", "group": None}
    for session, gb_per_s, us in (("quick", 12.5, 2.0), ("full_session", 12.6, 2.2)):
        rate = copy | {"median_gb_per_s": gb_per_s, "bytes": 2**29}
        vars(box)[session] = {"samples": [rate, copy | {"kind": "latency", "path": None, "median_us": us}]}
    rate_row, latency_row = full(box)
    assert rate_row[1:] == ("1 of 1 within 1%; worst host to gpu:0: 12.5, 12.6", True)
    assert latency_row[1:] == ("0 of 1 within 5%; worst host gpu:0 copy_engine None: 2, 2.2", False)


BARE = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""


def run_without(names: tuple[str, ...], folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the checks in a Python, with its children, that lacks packages."""
    (folder / "sitecustomize.py").write_text(BARE.format(names=names))
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
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
def test_a_bare_machine_is_compared_without_a_failure_and_without_what_it_lacks(tmp_path: Path) -> None:
    absent = ("tensorflow", "keras", "torch", "numpy", "jinja2", "pytest")
    done = run_without(absent, tmp_path, "--double", "desktop", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    table = (tmp_path / "kept" / "table.txt").read_text()
    assert table.splitlines() == done.stdout.splitlines()[:-1]
    not_tried = [line for line in table.splitlines() if line.startswith("not tried")]
    assert any(line.endswith("PyTorch: torch is not installed") for line in not_tried)
    assert all(line.count(": ") >= 1 for line in not_tried)
    files = {path.name for path in (tmp_path / "kept").iterdir()}
    assert {"versions.txt", "timings.txt", "machine.json", "quick.json", "plain-rates.json"} <= files
    assert "torch is not installed" in (tmp_path / "kept" / "versions.txt").read_text()


def test_elsewhere_it_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """As one process: the command, which finds no libcuda."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0
    assert done.stdout.startswith("skipped: ")
