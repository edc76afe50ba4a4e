"""What a host can measure with: programs in PATH that start, and the RDMA port that has its address."""

import shutil
from pathlib import Path

import pytest

from gputopo.copies.network import Nccl, Tools
from gputopo.probes.equipment import nccl_at, rdma_at, tools_at
from tests.kit.specs import NicSpec, PortSpec
from tests.kit.sysfs import write_network
from tests.probes.stand_ins import NcclTests, StandIns

HERE = "127.0.0.1"
GIDS = {
    0: ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1"),
    1: ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2"),
    2: ("0000:0000:0000:0000:0000:ffff:7f00:0001", "IB/RoCE v1"),
    3: ("0000:0000:0000:0000:0000:ffff:7f00:0001", "RoCE v2"),
    10: ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
}


def card(root: Path, name: str, *ports: PortSpec, gids: bool = False) -> None:
    """Write a card as /sys/class has it. `gids`: of RoCE with the address 127.0.0.1."""
    folder = root / "devices" / name
    folder.mkdir(parents=True)
    write_network(folder, NicSpec("0000:41:00.0", None, "pci0000:40", name, infiniband=True, ports=ports))
    device = folder / "infiniband" / name
    (device / "device").symlink_to(folder)
    by_class = root / "sys/class/infiniband"
    by_class.mkdir(parents=True, exist_ok=True)
    (by_class / name).symlink_to(device)
    for index, (gid, kind) in GIDS.items() if gids else ():
        for place, text in ((f"gids/{index}", gid), (f"gid_attrs/types/{index}", kind)):
            file = device / "ports/1" / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")


def roce(name: str) -> PortSpec:
    return PortSpec(name, link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")


def test_a_port_of_infiniband_is_known_by_the_interface_of_the_address(tmp_path: Path) -> None:
    card(tmp_path, "mlx5_0", PortSpec("ib0"))
    card(tmp_path, "mlx5_1", PortSpec("lo"))  # which has 127.0.0.1
    found = rdma_at(HERE, tmp_path)
    assert not isinstance(found, str)
    assert (found.device, found.port, found.gid_index, found.on_path) == ("mlx5_1", 1, None, True)
    assert (found.link_layer, found.rate_gbit_per_s) == ("InfiniBand", 100.0)


def test_a_port_of_roce_is_known_by_the_gid_that_is_the_address(tmp_path: Path) -> None:
    card(tmp_path, "mlx5_0", roce("eth0"))
    card(tmp_path, "mlx5_1", roce("eth1"), gids=True)
    found = rdma_at(HERE, tmp_path)
    assert not isinstance(found, str)
    assert (found.device, found.gid_index, found.on_path) == ("mlx5_1", 3, True)


def test_an_infiniband_port_without_the_address_is_not_on_the_path(tmp_path: Path) -> None:
    card(tmp_path, "mlx5_0", PortSpec("ib0", state="1: DOWN", phys_state="2: Polling"))
    card(tmp_path, "mlx5_1", roce("eth0"))
    card(tmp_path, "mlx5_2", PortSpec("ib2"))
    found = rdma_at(HERE, tmp_path)
    assert not isinstance(found, str)
    assert (found.device, found.on_path) == ("mlx5_2", False)


def test_why_there_is_no_port_is_stated(tmp_path: Path) -> None:
    assert rdma_at(HERE, tmp_path) == "no RDMA port"
    assert "IPv6" in str(rdma_at("fe80::1%eth0", tmp_path))
    card(tmp_path, "mlx5_0", PortSpec("ib0", state="2: INIT"))
    assert rdma_at(HERE, tmp_path) == "no active RDMA port: mlx5_0 is INIT"
    card(tmp_path, "mlx5_1", roce("eth0"))
    assert rdma_at(HERE, tmp_path) == "no RoCE v2 port has the address of this host: mlx5_1"


def gpu(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)


def test_a_host_with_all_of_it_lacks_nothing(stand_ins: StandIns, nccl: NcclTests, tmp_path: Path) -> None:
    root = tmp_path / "root"
    card(root, "mlx5_0", roce("eth0"), gids=True)
    gpu(root)
    found = tools_at(HERE, "auto", root)
    assert found.lacks == {}
    assert found.rdma is not None
    assert found.nccl == Nccl(
        mpirun=str(nccl.folder / "mpirun"),
        program=str(nccl.folder / "sendrecv_perf"),
        gpus=1,
        all_reduce=shutil.which("all_reduce_perf"),
    )
    assert tools_at(HERE, "tcp", root) == tools_at(HERE, "iperf3", root) == Tools()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: file.unlink(), "is not installed"),
        (lambda file: file.write_text("\x7fELF cut off"), "cannot be started: Exec format error"),
        (lambda file: file.write_text("#!/bin/sh\necho Usage\n"), "does not print its version"),
    ],
)
def test_a_program_that_cannot_be_started_is_lacking(
    stand_ins: StandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, why: str
) -> None:
    assert callable(change)
    monkeypatch.setenv("PATH", str(stand_ins.folder))
    change(stand_ins.folder / "iperf3")
    change(stand_ins.folder / "ib_write_lat")
    assert tools_at(HERE, "auto", tmp_path / "root").lacks == {
        "iperf3": f"iperf3 {why}",
        "nccl-tests": "no GPU",
        "ib_write_bw": f"ib_write_lat {why}",
    }


def test_what_nccl_tests_lack_on_a_host_is_stated(
    nccl: NcclTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(nccl.folder))
    assert nccl_at(HERE, tmp_path) == "no GPU"
    gpu(tmp_path)
    assert "IPv6" in str(nccl_at("fd00::1", tmp_path))
    (nccl.folder / "sendrecv_perf").rename(nccl.folder / "sendrecv_perf_mpi")
    found = nccl_at(HERE, tmp_path)
    assert isinstance(found, Nccl)
    assert found.program.endswith("sendrecv_perf_mpi")
    (nccl.folder / "mpirun").write_text("#!/bin/sh\necho HYDRA build details: Version: 4.1\n")
    assert nccl_at(HERE, tmp_path) == "mpirun does not print its version of Open MPI"
    (nccl.folder / "mpirun").unlink()
    assert nccl_at(HERE, tmp_path) == "mpirun is not installed"
    (nccl.folder / "sendrecv_perf_mpi").unlink()
    assert nccl_at(HERE, tmp_path) == "sendrecv_perf is not installed"
