"""`gputopo bandwidth --from` what other programs printed when they did not come to their end."""

from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.kit.dialects import bandwidthtest, nvbandwidth, p2p

WHY = "no CUDA-capable device is detected"
NVBANDWIDTHS = f"[CUDA_ERROR_NO_DEVICE] {WHY} in expression cuInit(0)"
FAILED = {
    "bandwidthTest": f"[CUDA Bandwidth Test] - Starting...\ncudaGetDeviceCount returned 100\n-> {WHY}\n",
    "p2pBandwidthLatencyTest": f"Cuda failure p2pBandwidthLatencyTest.cu:605: '{WHY}'\n",
    "nvbandwidth": f"nvbandwidth Version: v0.8\n{NVBANDWIDTHS}\n",
    "nvbandwidth -j": nvbandwidth.json_of_cases([], error=NVBANDWIDTHS),
}
ROWS = [[100.5, 11.25], [13.0, 101.5]]
WHOLE = {
    "bandwidthTest": (bandwidthtest.quick("A", {"Host to Device": 12000.0}), "Result"),
    "p2pBandwidthLatencyTest": (
        p2p.matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", ROWS),
        "     1 ",
    ),
    "nvbandwidth": (
        nvbandwidth.table(
            "device_to_device_memcpy_read_ce", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)", ROWS
        ),
        " 1 ",
    ),
}


@pytest.mark.parametrize("program", FAILED)
def test_a_program_that_cuda_failed_is_a_finding_whichever_it_is(
    program: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "failed.txt").write_text(FAILED[program])
    asked = ("bandwidth", "--from", tmp_path / "failed.txt")
    done = call(*asked)
    assert (done.code, done.err) == (0, "")
    assert "bandwidth.copy_failed" in done.out
    assert WHY in " ".join(done.out.split())
    assert call(*asked, "--fail-on", "error").code == 1


@pytest.mark.parametrize("program", WHOLE)
def test_a_capture_that_stops_early_is_no_baseline(program: str, call: Call, tmp_path: Path) -> None:
    text, lost = WHOLE[program]
    (tmp_path / "half.txt").write_text(text.rpartition(lost)[0])
    done = call("bandwidth", "--from", tmp_path / "half.txt", "--save")
    assert done.code == 0
    assert "the capture ends early" in done.out
    assert done.err.startswith("gputopo: not saved: ")


@pytest.mark.parametrize("program", WHOLE)
def test_a_capture_that_is_whole_does_not_end_early(program: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "whole.txt").write_text(WHOLE[program][0])
    assert "ends early" not in call("bandwidth", "--from", tmp_path / "whole.txt").out
