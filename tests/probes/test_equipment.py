"""What a host can measure the network with: programs in PATH, GPUs, the RDMA port of its address."""

from pathlib import Path

import pytest

from gputopo.copies.network import NcclPrograms, RdmaPort
from gputopo.probes.equipment import nccl_at, rdma_at, tools_at
from tests.kit.specs import NicSpec, PortSpec
from tests.kit.sysfs import write_network
from tests.probes.stand_ins import NcclTests

HERE = "127.0.0.1"


def gpu(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)


def test_what_nccl_tests_lack_on_a_host_is_stated(
    nccl: NcclTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(nccl.folder))
    monkeypatch.delenv("LD_LIBRARY_PATH")
    lacks = tools_at(HERE, "auto", tmp_path).lacks
    assert lacks == {"nccl-tests": "no GPU", "ib_write_bw": "no active RDMA port"}
    gpu(tmp_path)
    assert tools_at(HERE, "tcp", tmp_path).nccl is tools_at(HERE, "ib_write_bw", tmp_path).nccl is None
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


GIDS = {
    0: ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2"),
    2: ("0000:0000:0000:0000:0000:ffff:7f00:0001", "IB/RoCE v1"),
    3: ("0000:0000:0000:0000:0000:ffff:7f00:0001", "RoCE v2"),
    10: ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
}


def card(root: Path, name: str, port: PortSpec, *, gids: bool = False) -> None:
    """Write a card as /sys/class has it. `gids`: of RoCE with the address 127.0.0.1."""
    folder = root / "devices" / name
    folder.mkdir(parents=True)
    write_network(folder, NicSpec("0000:41:00.0", None, "pci0000:40", name, infiniband=True, ports=(port,)))
    device, by_class = folder / "infiniband" / name, root / "sys/class/infiniband"
    (device / "device").symlink_to(folder)
    by_class.mkdir(parents=True, exist_ok=True)
    (by_class / name).symlink_to(device)
    for index, (gid, kind) in GIDS.items() if gids else ():
        for place, text in ((f"gids/{index}", gid), (f"gid_attrs/types/{index}", kind)):
            file = device / "ports/1" / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")


def test_the_rdma_port_is_that_of_the_address_or_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "IPv6" in str(rdma_at("fe80::1%eth0", tmp_path))
    card(tmp_path, "mlx5_0", PortSpec("ib0", state="2: INIT"))
    assert rdma_at(HERE, tmp_path) == "no active RDMA port"
    roce = PortSpec("eth0", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    card(tmp_path, "mlx5_1", roce)
    assert rdma_at(HERE, tmp_path) == "ib_write_bw is not installed"
    (tmp_path / "ib_write_bw").touch(0o755)
    assert rdma_at(HERE, tmp_path) == "no RoCE v2 port has the address 127.0.0.1"
    known = RdmaPort(device="mlx5_2", port=1, link_layer="Ethernet", rate_gbit_per_s=100.0, gid_index=3)
    card(tmp_path, "mlx5_2", roce, gids=True)
    assert rdma_at(HERE, tmp_path) == known
    card(tmp_path, "mlx5_3", PortSpec("lo"))  # which has 127.0.0.1
    found = rdma_at(HERE, tmp_path)
    assert isinstance(found, RdmaPort)
    assert (found.device, found.link_layer, found.gid_index) == ("mlx5_3", "InfiniBand", None)
