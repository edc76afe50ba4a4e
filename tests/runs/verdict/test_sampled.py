"""Samples of GPUs and hosts, by the tower whose they are."""

from gputopo.runs.verdict import sampled
from gputopo.runs.verdict.sampled import Facts
from gputopo.values.run.events import GpuSample, HostLoad, Sample, Step, Xid
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
