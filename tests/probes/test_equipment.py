"""What a host has of nccl-tests: programs in PATH that start, and GPUs."""

from pathlib import Path

import pytest

from gputopo.copies.network import NcclPrograms, Tools
from gputopo.probes.equipment import nccl_at, tools_at
from tests.probes.stand_ins import NcclTests

HERE = "127.0.0.1"


def gpu(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)


def test_what_nccl_tests_lack_on_a_host_is_stated(
    nccl: NcclTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(nccl.folder))
    assert tools_at(HERE, "auto", tmp_path) == Tools(lacks="no GPU")
    gpu(tmp_path)
    assert tools_at(HERE, "tcp", tmp_path).nccl is None
    known = tools_at(HERE, "auto", tmp_path).nccl
    assert known == NcclPrograms(
        mpirun=str(nccl.folder / "mpirun"),
        program=str(nccl.folder / "sendrecv_perf"),
        gpus=1,
        all_reduce=None,
    )
    assert "IPv6" in str(nccl_at("fd00::1", tmp_path))
    (nccl.folder / "sendrecv_perf").rename(nccl.folder / "sendrecv_perf_mpi")
    found = nccl_at(HERE, tmp_path)
    assert isinstance(found, NcclPrograms)
    assert found.program.endswith("sendrecv_perf_mpi")
    (nccl.folder / "mpirun").write_text("#!/bin/sh\necho HYDRA build details: Version: 4.1\n")
    assert nccl_at(HERE, tmp_path) == "mpirun does not print its version of Open MPI"
    (nccl.folder / "mpirun").write_text("\x7fELF cut off")
    assert nccl_at(HERE, tmp_path) == "mpirun cannot be started: Exec format error"
    (nccl.folder / "mpirun").unlink()
    assert nccl_at(HERE, tmp_path) == "mpirun is not installed"
    (nccl.folder / "sendrecv_perf_mpi").unlink()
    assert nccl_at(HERE, tmp_path) == "sendrecv_perf is not installed"
