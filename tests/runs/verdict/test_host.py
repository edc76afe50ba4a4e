"""Ranks of a run on one machine are no other programs to each other."""

import pytest

from gputopo.runs.verdict.sampled import OneMachine
from gputopo.values.run.events import HostLoad, Sample


def sample(rank: int, run: float, other: float) -> Sample:
    load = HostLoad(time_s=0.0, seconds=1.0, cores=2, run_cpu_share=run, other_cpu_share=other)
    return Sample(time_s=0.0, rank=rank, gpus=(), host=load)


def others(*addresses: str) -> list[float | None]:
    """What other programs took beside each of these servers, of which each takes 40 % of the CPU."""
    machine = OneMachine({"servers": [{"address": one} for one in addresses]})
    for rank in range(len(addresses)):
        machine.without_ranks(sample(rank, 0.4, 0.45))
    loads = [machine.without_ranks(sample(rank, 0.4, 0.45)).host for rank in range(len(addresses))]
    return [load.other_cpu_share for load in loads if load is not None]


@pytest.mark.parametrize(
    "addresses",
    [("localhost:1", "127.0.0.1:2"), ("[::1]:1", "[::1]:2"), ("10.0.0.1:1", "10.0.0.1:2")],
)
def test_ranks_on_one_machine_are_no_other_programs(addresses: tuple[str, ...]) -> None:
    assert others(*addresses) == [pytest.approx(0.05)] * 2


def test_ranks_on_other_machines_take_nothing_of_this_one() -> None:
    assert others("n1:2222", "10.0.0.2:2222", "[fd00::1]:2222") == [0.45] * 3


@pytest.mark.parametrize("spec", [{}, {"servers": None}, {"servers": [1, {"address": 2}]}])
def test_a_spec_without_servers_changes_nothing(spec: dict[str, object]) -> None:
    one = sample(0, 0.4, 0.45)
    assert OneMachine(spec).without_ranks(one) is one
