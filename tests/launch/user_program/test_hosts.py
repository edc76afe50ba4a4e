"""The variables of a program on several hosts: what it gets, and what stands as it was given."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from gputopo.launch.failure import UNREACHABLE
from gputopo.launch.hosts import starters
from gputopo.launch.hosts.allocation import Allocation, HostOptions, find
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.user_program.hosts import (
    Following,
    Leading,
    cluster_variables,
    nccl_variables,
    rendezvous_beside,
    require_all,
    unset,
)
from gputopo.launch.user_program.program import ProgramEnd, ProgramStop
from gputopo.values.errors import UsageError
from gputopo.values.machine import Hop, Machine, Nic, NicPort
from gputopo.values.run.events import RankFailed, RunFinished
from tests.launch.hosts.environs import ray_train, torchrun
from tests.launch.hosts.meetings import START, Later, guest, joining, meeting

WORKERS = ["n1:4001", "10.0.0.2:4002", "10.0.0.3:4003"]


def variables(index: int) -> dict[str, str]:
    return cluster_variables(WORKERS, index, ("n1", 4999))


@pytest.mark.parametrize("index", range(3))
def test_what_a_program_gets_is_understood_as_the_same_hosts_and_ranks(index: int) -> None:
    environ = variables(index)
    for source in (environ, {"TF_CONFIG": environ["TF_CONFIG"]}):
        found = find(HostOptions(), source)
        assert found is not None
        assert (found.rank, found.size, found.leader.name) == (index, 3, "n1")
    found = find(HostOptions(), environ)
    assert found is not None
    assert [str(host) for host in found.hosts] == WORKERS
    (claim,) = starters.claims({name: text for name, text in environ.items() if name != "TF_CONFIG"})
    assert (claim.rank, claim.size, [str(host) for host in claim.hosts]) == (index, 3, ["n1:4999"])
    assert json.loads(environ["TF_CONFIG"])["task"] == {"type": "worker", "index": index}


def test_what_is_given_stands_and_a_rank_is_not_mixed_with_another_size() -> None:
    given = {"TF_CONFIG": "{}", "MASTER_ADDR": "n1", "WORLD_SIZE": "24", "RANK": " "}
    assert set(unset(variables(1), given)) == {"MASTER_PORT"}
    assert set(unset(variables(1), {"TF_CONFIG": ""})) == set(variables(1))


def test_a_program_whose_starter_names_all_hosts_is_not_started_on_fewer() -> None:
    require_all({}, 2, 1)
    require_all(ray_train(), 2, 2)
    with pytest.raises(UsageError, match=r"the plan takes 1 of 2 hosts, .* for all of TF_CONFIG") as refused:
        require_all(ray_train(), 2, 1)
    assert "unset TF_CONFIG" in refused.value.hint
    with pytest.raises(UsageError, match="for all of WORLD_SIZE"):
        require_all(torchrun(), 2, 1)


@pytest.mark.parametrize(
    ("given", "environ", "port"),
    [
        (None, {}, 2222),
        (4000, {}, 4000),
        (2222, {"TF_CONFIG": '{"cluster": {"worker": ["a:2222", "b:2223"]}, "task": {"index": 0}}'}, 2224),
        (29500, {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, 29501),
        (None, {"PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "2222"}, 2223),
    ],
)
def test_hosts_do_not_meet_at_a_port_of_the_program(
    given: int | None, environ: dict[str, str], port: int
) -> None:
    text = environ.get("TF_CONFIG")
    environ = environ if text is None else {"TF_CONFIG": text.replace('"index"', '"type": "worker", "index"')}
    hosts = (HostAddress("a", given), HostAddress("b", 2222))
    found = rendezvous_beside(Allocation(rank=1, hosts=hosts, source="test"), environ)
    assert found.leader == HostAddress("a", port)
    assert found.hosts[1:] == hosts[1:]


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


class Run:
    """Rank 0 and a guest whose programs are pretended. `stops`: what would end them."""

    def __init__(
        self, leading: Leading, following: Following, stops: tuple[ProgramStop, ProgramStop]
    ) -> None:
        self.leading, self.following, self.stops = leading, following, stops


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr("gputopo.launch.user_program.program.signal.pthread_kill", lambda *_: None)
    stops = (ProgramStop(), ProgramStop())
    with meeting("n2") as held:
        there = guest(held)
        reply = Later(lambda: there.join(joining(1, "n2")))
        held.wait(10)
        held.answer({1: START})
        reply.result()
        with (
            Leading(held, [0, 1], "n1", "/bin/train", stops[0]) as leading,
            Following(there, "/bin/train", stops[1]) as following,
        ):
            yield Run(leading, following, stops)


def test_a_program_that_ends_well_is_waited_for_by_the_others_and_to_the_last(run: Run) -> None:
    run.leading.ended(ProgramEnd(0))
    threading.Timer(0.3, run.following.ended, [ProgramEnd(0)]).start()
    began = time.monotonic()
    assert run.leading.wait() is None
    assert time.monotonic() - began >= 0.25
    assert run.following.wait() is None
    assert not run.stops[0].asked


def test_the_failure_of_rank_0_ends_the_others_and_is_named_with_its_host(run: Run) -> None:
    run.leading.ended(ProgramEnd(-9))
    found, theirs = run.leading.wait(), run.following.wait()
    assert found is not None
    assert theirs is not None
    assert found.cause == theirs.cause == "host n1 (rank 0): train was killed by SIGKILL"
    assert (found.exit_code, theirs.exit_code) == (137, 137)
    _until(lambda: run.stops[1].asked)
    assert run.stops[1].exit_code == 137


def test_the_first_failure_counts_and_a_host_that_is_gone_after_its_program_has_ended_is_none(
    run: Run,
) -> None:
    gone = RankFailed(time_s=0.0, rank=1, kind=UNREACHABLE, cause="gone", remedy="", exit_code=3)
    run.leading._add(RunFinished(time_s=0.0, rank=1, status="complete", exit_code=0, wall_s=0.0))
    run.leading._add(gone)
    run.leading.ended(ProgramEnd(5))
    run.leading._add(msgspec.structs.replace(gone, kind="error"))
    found = run.leading.wait()
    assert found is not None
    assert found.exit_code == 5


def test_a_program_that_was_asked_to_end_and_did_ends_the_run_without_a_failure(run: Run) -> None:
    run.leading.ended(ProgramEnd(0, passed=frozenset({15})))
    assert run.leading.wait() is None
    assert run.following.wait() is None
    _until(lambda: run.stops[1].asked)
    assert run.stops[1].exit_code == 0


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        os.sched_yield()
    assert holds()
