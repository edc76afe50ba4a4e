"""What a host can measure the network with: programs in PATH."""

from pathlib import Path

import pytest

from gputopo.probes.equipment import network_programs


def test_the_programs_in_path_are_found_and_nccl_tests_made_with_mpi_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert network_programs() == {}
    for name in ("iperf3", "sendrecv_perf", "sendrecv_perf_mpi"):
        (tmp_path / name).touch(0o755)
    assert network_programs() == {
        "iperf3": str(tmp_path / "iperf3"),
        "sendrecv_perf": str(tmp_path / "sendrecv_perf_mpi"),
    }
