"""Samples of GPUs and hosts, by the tower whose they are."""

import pytest

from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.sampled import Facts
from gputopo.values.run.events import GpuSample, HostLoad, Sample, Step, Xid
from gputopo.values.run.hosts import OneMachine
from tests.invented_runs import cpu_devices, gpu_devices, on_hosts


def sample(rank: int, clock: int, other_cpu: float) -> Sample:
    load = HostLoad(time_s=0.0, seconds=1.0, cores=4, other_cpu_share=other_cpu, run_cpu_share=1 - other_cpu)
    xids = (Xid(code=79, gpu=0),) if rank else ()
    return Sample(time_s=0.0, rank=rank, gpus=(GpuSample(gpu=0, graphics_mhz=clock),), host=load, xids=xids)


def test_a_tower_has_the_clock_of_its_hosts_gpu_and_the_load_of_its_host() -> None:
    facts = Facts(on_hosts(gpu_devices(1), gpu_devices(1)))
    facts.add(sample(0, 1800, 0.0))
    facts.add(sample(1, 1200, 0.5))
    facts.end_step(Step(time_s=0.0, step=1, seconds=0.1, images=2, loss=1.0, marks=()), counted=True)
    assert [facts.of_gpu(tower, sampled.CORE) for tower in (0, 1)] == [[1800.0], [1200.0]]
    assert [facts.of_host(tower, sampled.HOST_CPU) for tower in (0, 1)] == [[0.0], [0.5]]
    assert facts.of_step(sampled.STEP) == [0.1]
    assert facts.xids == {(1, 0): 79}


def test_what_others_take_is_shared_by_the_devices_of_that_host_alone() -> None:
    facts = Facts(on_hosts(cpu_devices(6), cpu_devices(1)))
    for rank in (0, 1):
        facts.add(sample(rank, 0, 0.15))
    facts.end_step(Step(time_s=0.0, step=1, seconds=0.1, images=7, loss=1.0, marks=()), counted=True)
    taken = [facts.of_host(tower, sampled.HOST_TAKEN) for tower in (0, 6)]
    assert taken == [[0.15 * 6], [0.15 * 4]]  # of one of six devices; of one of four cores


def load_sample(rank: int, run: float, other: float) -> Sample:
    load = HostLoad(time_s=0.0, seconds=1.0, cores=2, run_cpu_share=run, other_cpu_share=other)
    return Sample(time_s=0.0, rank=rank, gpus=(), host=load)


def others(*addresses: str) -> list[float | None]:
    """What other programs took beside each of these servers, of which each takes 40 % of the CPU."""
    machine = OneMachine({"servers": [{"address": one} for one in addresses]})
    for rank in range(len(addresses)):
        machine.without_ranks(load_sample(rank, 0.4, 0.45))
    loads = [machine.without_ranks(load_sample(rank, 0.4, 0.45)).host for rank in range(len(addresses))]
    return [load.other_cpu_share for load in loads if load is not None]


@pytest.mark.parametrize(
    "addresses",
    [("localhost:1", "127.0.0.1:2"), ("10.0.0.1:1", "10.0.0.1:2")],
)
def test_ranks_on_one_machine_are_no_other_programs(addresses: tuple[str, ...]) -> None:
    assert others(*addresses) == [pytest.approx(0.05)] * 2


def test_ranks_on_other_machines_take_nothing_of_this_one() -> None:
    assert others("n1:2222", "10.0.0.2:2222", "[fd00::1]:2222") == [0.45] * 3
