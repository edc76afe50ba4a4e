"""The checks that need a GPU, tried on the doubles: they agree on a sound machine, and see a fault."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputopo.values.machine import Machine
from gputopo.values.schema import decode
from tests.gpu.__main__ import doubled
from tests.gpu.checks import engine, facts, near, rates, recordings
from tests.kit.cuda.build import why_not
from tests.kit.dialects.smi import xml

needs_gcc = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


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


@needs_gcc
def test_on_the_double_of_a_sound_machine_all_agree_but_what_differs(tmp_path: Path) -> None:
    box = doubled(tmp_path / "kept", "desktop")
    box.folder.mkdir()
    machine = decode(Path(box.recording).read_bytes(), Machine, origin="here")
    smi = tmp_path / "nvidia-smi"
    changed = machine.gpus[0].vbios_version or ""
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{xml(machine, 550).replace(changed, '90.02.0B.00.99')}\nEND\n")
    smi.chmod(0o755)
    box.environment = {**(box.environment or {}), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ((_, words, verdict),) = facts(box)
    assert verdict is False
    assert "90.02.0B.00.99" in words
    local = {"kind": "d2d_local", "method": "copy_engine", "source": "gpu:0", "destination": "gpu:0"}
    (box.folder / "plain-rates.json").write_text(json.dumps([local | {"gb_per_s": 600.0}]))
    found = {what: verdict for what, _, verdict in engine(box)}
    assert found["copies in GPU memory of 4 times the L2, of 512 MiB"] is False, "645 GB/s"
    assert found["streams of a GPU begin together"] is found["copies with NVML read, without"] is True
    assert [verdict for _, _, verdict in recordings(box)] == [True]
    (box.folder / "leak.json").write_text('"uuid": "GPU-0a1b2c3d-0000-4000-8000-000000000000"')
    assert [row[1:] for row in recordings(box)] == [("leak.json", False)]


def test_elsewhere_it_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """As one process: the command, which finds no libcuda."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0
    assert done.stdout.startswith("skipped: ")
