"""Invented logs of NCCL of several versions: GPUs, transports, hosts, cards, rings, settings."""

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop, Machine
from tests import there


def read(*lines: str) -> Machine:
    return read_text("\n".join(lines) + "\n", origin="log")


def transports(machine: Machine) -> dict[tuple[int, int], tuple[str, ...]]:
    return {(link.a, link.b): link.nccl for link in machine.links if link.nccl}


def start(rank: int, bus: str, *, nvml: int | None, ranks: int = 2, host: str = "n1") -> str:
    number = "" if nvml is None else f" nvmlDev {nvml}"
    words = f"comm 0x55a{rank} rank {rank} nranks {ranks} cudaDev {rank}{number} busId {bus} commId 0xab"
    return f"{host}:7{rank}:9{rank} [{rank}] NCCL INFO ncclCommInitRank {words} - Init START"


def path(rank: int, words: str, *, host: str = "n1") -> str:
    return f"{host}:7{rank}:9{rank} [{rank}] NCCL INFO Channel 00/0 : {words}"


ONE_HOST = (
    "n1:70:70 [0] NCCL INFO cudaDriverVersion 12040",
    "n1:70:70 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
    "n1:70:90 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to PIX.",
    "n1:70:90 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "n1:70:90 [0] NCCL INFO Using network IB",
    *(start(rank, bus, nvml=rank, ranks=3) for rank, bus in enumerate(("5000", "6000", "85000"))),
    "n1:70:90 [0] NCCL INFO Channel 00/02 :    0   1   2",
    "n1:70:90 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    "n1:71:91 [1] NCCL INFO Trees [0] 2/-1/-1->1->0 [1] 2/-1/-1->1->0",
    path(0, "0[0] -> 1[1] via P2P/CUMEM/read"),
    path(1, "1[1] -> 2[2] via SHM/direct/direct"),
    path(2, "2[2] -> 0[0] via SHM/direct/direct"),
    "n1:70:90 [0] NCCL INFO 2 coll channels, 0 collnet channels, 16 nvls channels, 2 p2p channels",
)


def test_the_log_of_one_host_shows_transports_cards_rings_and_settings() -> None:
    machine = read("epoch 1 loss 2.3", *ONE_HOST)
    found = there(machine.nccl)
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:05:00.0", "0000:06:00.0", "0000:85:00.0"]
    assert transports(machine) == {
        (0, 1): ("P2P/CUMEM/read",),
        (0, 2): ("SHM/direct/direct",),
        (1, 2): ("SHM/direct/direct",),
    }
    assert [link.p2p_read for link in machine.links] == ["OK", None, None]
    assert (found.version, machine.driver.cuda_version, found.ranks, found.hosts) == ("2.21.5", "12.4", 3, 1)
    assert (found.network, found.channels, found.nvls) == ("IB", 2, True)
    assert (found.rings, found.trees) == (("0 1 2",), ("1->0",))
    assert found.settings == ("NCCL_P2P_LEVEL=PIX",)
    ports = [port for nic in machine.nics for port in nic.ports or ()]
    assert [(port.name, port.link_layer) for port in ports] == [
        ("mlx5_0", "InfiniBand"),
        ("mlx5_2", "Ethernet"),
    ]


def test_bus_ids_of_old_versions_name_the_gpus_of_the_host_of_rank_0() -> None:
    machine = read(
        "NCCL version 2.10.3+cuda11.3",
        path(3, "3[1f0] -> 0[1e0] [send] via NET/IB/0", host="n2"),
        path(0, "3[1f0] -> 0[1e0] [receive] via NET/IB/1(0)/GDRDMA"),
        path(0, "0[1e0] -> 1[1f0] via P2P/IPC"),
        path(2, "2[1e0] -> 3[1f0] via direct shared memory", host="n2"),
        "n2:72:92 [0] misc/socket.cc:456 NCCL WARN Connect to 10.0.0.9<42> failed",
    )
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:00:1e.0", "0000:00:1f.0"]
    found = there(machine.nccl)
    assert (found.hosts, transports(machine)) == (2, {(0, 1): ("P2P/IPC",)})
    assert found.between_hosts == ("NET/IB", "NET/IB/GDRDMA")
    assert found.warnings == ("Connect to 10.0.0.9<42> failed",)


def test_paths_of_the_graph_are_hops_and_refused_p2p_is_a_fact_of_the_pair() -> None:
    machine = read(
        start(0, "41000", nvml=0),
        start(1, "a1000", nvml=1),
        "n1:70:90 [0] NCCL INFO GPU/41000 :GPU/41000 (0/5000.0/LOC) GPU/A1000 (3/12.0/SYS)",
        "n1:70:90 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message "
        "with NCCL_IGNORE_DISABLED_P2P=1.",
        path(0, "0[0] -> 1[1] via SHM/direct/direct"),
    )
    (link,) = machine.links
    assert (link.hop, link.p2p_read) == (Hop.SYS, "NOT_SUPPORTED")
    assert machine.nccl is not None
    assert machine.nccl.settings == ()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]", "without a GPU"),
        ("n1:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 1 busId 5000 RCCL version 2.18", "AMD"),
    ],
)
def test_a_log_without_gpus_of_nvidia_is_refused(line: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(line)
