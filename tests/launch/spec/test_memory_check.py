import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.job_spec import Server
from gputopo.launch.spec.memory_check import require_memory
from gputopo.launch.spec.run_spec import RunSpec, Runtime
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.gpu import MemoryMib
from gputopo.values.machine import Machine
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Device
from tests.launch.specs import cpu_spec, machine

RESNET20 = 32 * 32 * 3 * 4  # bytes of one picture in float32


def gpu_spec(batch_size: BatchSize, *gpus: int) -> RunSpec:
    devices = tuple(
        Device(tower=n, device=f"/GPU:{n}", hop_to_variables=None, gpu=g) for n, g in enumerate(gpus)
    )
    return cpu_spec(model="resnet20", backend="gpu", devices=devices, ps_device=None, batch_size=batch_size)


def with_memory(*mib: int | None) -> Machine:
    bare = machine(len(mib))
    gpus = (
        msgspec.structs.replace(gpu, memory_mib=MemoryMib(total=total))
        for gpu, total in zip(bare.gpus, mib, strict=True)
    )
    return msgspec.structs.replace(bare, gpus=tuple(gpus))


@given(batch=st.integers(1, 2**31 - 1), memory=st.integers(2**20, 2**42))
def test_two_cpu_devices_have_the_memory_of_the_host_together(batch: int, memory: int) -> None:
    spec = cpu_spec(model="resnet20", batch_size=batch)
    if 2 * batch * RESNET20 <= memory:
        require_memory(spec, [None], host_bytes=[memory])
    else:
        with pytest.raises(HardwareError):
            require_memory(spec, [None], host_bytes=[memory])


def test_the_refusal_states_how_much_there_is_and_below_what_to_stay() -> None:
    spec = cpu_spec(model="resnet20", batch_size=2**31 - 1)
    with pytest.raises(HardwareError) as refused:
        require_memory(spec, [None], host_bytes=[8 * 2**30])
    assert refused.value.exit_code == ExitCode.HARDWARE
    # 2 devices x 2147483647 x 12,288 bytes = 49152.0 GiB; 8 GiB / (2 x 12,288) = 349,525
    assert refused.value.what == (
        "the examples of --batch-size 2,147,483,647 alone need 49,152.0 GiB on 2 CPU devices, "
        "and this machine has 8.0 GiB"
    )
    assert refused.value.hint == (
        "give a --batch-size far below 349,525, which leaves no memory for anything else"
    )


def test_each_gpu_has_its_own_memory_and_the_smallest_decides() -> None:
    fits = 2 * 2**20 // RESNET20  # 170 pictures into the smaller GPU's 2 MiB
    there = with_memory(4, 2)
    require_memory(gpu_spec(fits, 0, 1), [there], host_bytes=[1])
    require_memory(gpu_spec(2 * fits, 0), [there], host_bytes=[1])
    with pytest.raises(HardwareError, match=r"a GPU here has 0\.0 GiB"):
        require_memory(gpu_spec(fits + 1, 0, 1), [there], host_bytes=[2**40])


def test_batches_that_differ_are_each_compared_with_their_own_gpu() -> None:
    fits = 2 * 2**20 // RESNET20
    there = with_memory(4, 2)
    require_memory(gpu_spec((2 * fits, fits), 0, 1), [there], host_bytes=[1])
    with pytest.raises(HardwareError, match=f"--batch-size {fits + 1} alone"):
        require_memory(gpu_spec((1, fits + 1), 0, 1), [there], host_bytes=[1])
    with pytest.raises(HardwareError, match=r"--batch-size 1,1000 alone need .* on 2 CPU devices"):
        require_memory(cpu_spec(model="resnet20", batch_size=(1, 1000)), [None], host_bytes=[1000 * RESNET20])


def test_a_limit_of_gpu_memory_counts_as_its_memory() -> None:
    spec = msgspec.structs.replace(gpu_spec(1000, 0), runtime=Runtime(memory_limit_mib=1))
    with pytest.raises(HardwareError):
        require_memory(spec, [with_memory(40960)], host_bytes=[1])


@pytest.mark.parametrize("there", [None, with_memory(None)])
def test_a_gpu_that_does_not_report_its_memory_refuses_nothing(there: Machine | None) -> None:
    spec = gpu_spec(2**31 - 1, 0)
    require_memory(spec, [there], host_bytes=[1])
    with pytest.raises(HardwareError):
        require_memory(spec, [with_memory(40960)], host_bytes=[1])


def test_the_gpus_of_every_host_are_checked_and_named_by_their_host() -> None:
    fits = 2 * 2**20 // RESNET20
    devices = tuple(
        Device(
            tower=n,
            device=f"/job:worker/task:{n}/device:GPU:0",
            hop_to_variables=None,
            gpu=3,
            rank=n,
            host=f"n{n + 1}",
        )
        for n in range(2)
    )
    servers = tuple(Server(host=f"n{n + 1}", address=f"n{n + 1}:2222", cores=1) for n in range(2))
    spec = msgspec.structs.replace(gpu_spec(fits + 1, 0, 1), devices=devices, servers=servers)
    large, small = with_memory(4, 4, 4, 4), with_memory(4, 4, 4, 2)
    require_memory(spec, [large, large], host_bytes=[1, None])
    with pytest.raises(HardwareError, match=r"and n2 GPU 3 has 0\.0 GiB"):
        require_memory(spec, [large, small], host_bytes=[1, None])


def test_cpu_devices_of_several_hosts_have_the_memory_of_their_own_host() -> None:
    devices = tuple(
        Device(
            tower=n,
            device=f"/job:worker/task:{n}/device:CPU:0",
            hop_to_variables=None,
            rank=n,
            host=f"n{n + 1}",
        )
        for n in range(2)
    )
    servers = tuple(Server(host=f"n{n + 1}", address=f"n{n + 1}:2222", cores=1) for n in range(2))
    spec = msgspec.structs.replace(
        cpu_spec(model="resnet20", batch_size=100), devices=devices, servers=servers
    )
    require_memory(spec, [None, None], host_bytes=[100 * RESNET20, 100 * RESNET20])
    require_memory(spec, [None, None], host_bytes=[100 * RESNET20, None])
    with pytest.raises(HardwareError, match="and n2 has"):
        require_memory(spec, [None, None], host_bytes=[100 * RESNET20, 99 * RESNET20])
