"""The variables of a program on several hosts: what it gets, and what stands as it was given."""

import json

import pytest

from gputopo.launch import Allocation, HostOptions, find_hosts
from gputopo.launch.user_program import cluster_variables, nccl_variables, require_all, unset_variables
from gputopo.values.errors import UsageError
from gputopo.values.machine import Hop, Machine, Nic, NicPort
from tests.launch.hosts.environs import ray_train, torchrun

WORKERS = ["n1:4001", "10.0.0.2:4002", "10.0.0.3:4003"]


def variables(index: int) -> dict[str, str]:
    return cluster_variables(WORKERS, index, ("n1", 4999))


@pytest.mark.parametrize("index", range(3))
def test_what_a_program_gets_is_understood_as_the_same_hosts_and_ranks(index: int) -> None:
    environ = variables(index)
    for source in (environ, {"TF_CONFIG": environ["TF_CONFIG"]}):
        found = find_hosts(HostOptions(), source)
        assert isinstance(found, Allocation)
        assert (found.rank, found.size, found.leader.name) == (index, 3, "n1")
    found = find_hosts(HostOptions(), environ)
    assert isinstance(found, Allocation)
    assert [str(host) for host in found.hosts] == WORKERS
    found = find_hosts(HostOptions(), {name: environ[name] for name in environ if name != "TF_CONFIG"})
    assert isinstance(found, Allocation)
    assert (found.rank, found.size, str(found.leader)) == (index, 3, "n1:4999")
    assert json.loads(environ["TF_CONFIG"])["task"] == {"type": "worker", "index": index}


def test_what_is_given_stands_and_a_rank_is_not_mixed_with_another_size() -> None:
    given = {"TF_CONFIG": "{}", "MASTER_ADDR": "n1", "WORLD_SIZE": "24", "RANK": " "}
    assert set(unset_variables(variables(1), given)) == {"MASTER_PORT"}
    assert set(unset_variables(variables(1), {"TF_CONFIG": ""})) == set(variables(1))


def test_a_program_whose_starter_names_all_hosts_is_not_started_on_fewer() -> None:
    require_all({}, 2, 1)
    require_all(ray_train(), 2, 2)
    with pytest.raises(UsageError, match=r"the plan uses 1 of 2 hosts, .* for all of TF_CONFIG") as refused:
        require_all(ray_train(), 2, 1)
    assert "unset TF_CONFIG" in refused.value.hint
    with pytest.raises(UsageError, match="for all of WORLD_SIZE"):
        require_all(torchrun(), 2, 1)


def nic(index: int, hops: dict[str, Hop], **port: object) -> Nic:
    fields = {"rdma_device": f"mlx5_{index}", "rdma_port": 1, "state": "ACTIVE", **port}
    return Nic(index=index, ports=(NicPort(index=0, **fields),), hops=hops)  # type: ignore[arg-type]


MACHINE = Machine(
    source="live",
    nics=(
        nic(0, {"gpu:0": Hop.PIX, "gpu:1": Hop.SYS, "gpu:2": Hop.PIX}, state="DOWN"),
        nic(1, {"gpu:0": Hop.PXB, "gpu:1": Hop.SYS}),
        nic(2, {"gpu:0": Hop.SYS, "gpu:1": Hop.PIX}),
        nic(3, {"gpu:0": Hop.SYS, "gpu:1": Hop.PIX}, rdma_port=2),
        nic(4, {"gpu:0": Hop.PIX}, rdma_device=None),
        Nic(index=5),
    ),
)


def test_rdma_ports_are_the_active_ones_of_the_nearest_cards() -> None:
    for gpus, ports in (
        ([0], "=mlx5_1:1"),
        ([1], "=mlx5_2:1,mlx5_3:2"),
        ([1, 0], "=mlx5_1:1,mlx5_2:1,mlx5_3:2"),
        ([2], None),
    ):
        assert nccl_variables(None, MACHINE, gpus).get("NCCL_IB_HCA") == ports


def test_nccl_is_told_exactly_what_is_known_and_nothing_else() -> None:
    assert nccl_variables("eth0", MACHINE, [0]) == {
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": "=mlx5_1:1",
    }
    assert nccl_variables(None, Machine(source="live"), [0]) == {}
