"""The whole command against the doubles of NVML, the PCI tree and CUDA, in a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the CUDA double with"),
]


def environment(home: Path) -> dict[str, str]:
    given = {**os.environ, "GPUTOPO_HOME": str(home)}
    given.pop("CUDA_VISIBLE_DEVICES", None)
    return given


def on_kit(scenario: str, faults: str, *command: str) -> list[str]:
    return [sys.executable, "-m", "tests.kit.command", scenario, "--cuda", faults, "--", *command]


def run(home: Path, scenario: str, faults: str, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        on_kit(scenario, faults, *command),
        cwd=ROOT,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_machine_is_measured_saved_and_compared_with_itself(tmp_path: Path) -> None:
    done = run(tmp_path, "desktop", "", "bandwidth", "--save", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert {"h2d", "d2h", "d2d_local", "host_memory"} <= {one["kind"] for one in document["samples"]}
    up = next(one for one in document["samples"] if one["kind"] == "h2d" and one["pinned"])
    assert up["expected_gb_per_s"] == pytest.approx(up["median_gb_per_s"], rel=0.1)
    assert (tmp_path / "history.sqlite").exists()
    again = run(tmp_path, "desktop", "rate@h2d:0=3", "bandwidth", "--baseline", "--fail-on", "warning")
    assert again.returncode == 1, again.stderr
    told = " ".join(again.stdout.split())
    assert "Worse than on" in told
    assert "h2d host to gpu:0 (pinned" in told
    assert "d2h gpu:0 to host (pinned" not in told


def test_wrong_data_is_named_on_its_gpu_and_nothing_else_is_lost(tmp_path: Path) -> None:
    done = run(tmp_path, "four", "wrong@h2d:1", "bandwidth", "--gpus", "0,1", "--fail-on", "error")
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stdout.split())
    assert "h2d host to gpu:1 (copy_engine, pinned) WRONG_DATA" in told
    assert "FAIL" in told
    assert "h2d host to gpu:0 (copy_engine" not in told
    row = next(row for row in done.stdout.splitlines() if row.startswith("  GPU0"))
    assert "12.3" in row


def test_a_copy_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    done = run(tmp_path, "desktop", "hang@h2d:0", "bandwidth", "--json")
    assert any(one["reason"] == "TIMED_OUT" for one in json.loads(done.stdout)["failures"])


def test_ctrl_c_shows_what_was_measured_until_then(tmp_path: Path) -> None:
    with subprocess.Popen(
        on_kit("four", "", "bandwidth", "--gpus", "0,1", "--json", "--save"),
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " of 1:" not in line:  # a quarter of the jobs is done
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    document = json.loads(out)
    assert process.returncode == 130, err
    assert document["complete"] is False
    assert {"h2d", "d2h"} <= {one["kind"] for one in document["samples"]}
    assert "interrupted" in {one["reason"] for one in document["not_measured"]}
    assert "interrupted" in err
    assert not (tmp_path / "history.sqlite").exists()
