import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.memory_check import require_memory
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine, MemoryMib
from gputopo.values.run.batches import BatchSize
from gputopo.values.run.events import Device
from gputopo.values.run.spec import RunSpec, Runtime, Server
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
    # 2 devices x 2147483647 x 12,288 bytes = 49152.0 GiB; 8 GiB / (2 x 12,288) = 349,525
    assert refused.value.what == (
        "the examples of --batch-size 2,147,483,647 alone need 49,152.0 GiB, and this machine has 8.0 GiB"
    )
    assert refused.value.hint == "use a --batch-size far below 349,525: layers need more"


def test_each_gpu_has_its_own_memory_a_limit_is_respected_and_the_smallest_decides() -> None:
    fits = 1024 * 2**20 // RESNET20
    there = with_memory(1024, 2048)
    require_memory(gpu_spec(fits, 0, 1), [there], host_bytes=[1])
    require_memory(gpu_spec((fits, 2 * fits), 0, 1), [there], host_bytes=[1])
    with pytest.raises(HardwareError, match=r"GPU 0 has 1\.0 GiB"):
        require_memory(gpu_spec(fits + 1, 0, 1), [there], host_bytes=[2**40])
    with pytest.raises(HardwareError, match=r"GPU 1 has 2\.0 GiB"):
        require_memory(gpu_spec((1, 2 * fits + 1), 0, 1), [there], host_bytes=[1])
    limited = msgspec.structs.replace(gpu_spec(fits, 0), runtime=Runtime(memory_limit_mib=512))
    with pytest.raises(HardwareError, match=r"0\.5 GiB"):
        require_memory(limited, [with_memory(40960)], host_bytes=[1])


def test_what_is_not_known_is_not_checked() -> None:
    require_memory(gpu_spec(2**31 - 1, 0), [with_memory(None)], host_bytes=[1])
    require_memory(cpu_spec(model="resnet20", batch_size=2**31 - 1), [None], host_bytes=[None])
    require_memory(cpu_spec(model="keras:ResNet50", batch_size=2**31 - 1), [None], host_bytes=[1])


def test_each_host_has_the_memory_of_its_own_devices() -> None:
    servers = tuple(Server(host=f"n{rank}", address=f"n{rank}:1", cores=1) for rank in range(2))
    devices = tuple(Device(tower=rank, device=f"/{rank}", rank=rank) for rank in range(2))
    spec = cpu_spec(model="resnet20", batch_size=100, devices=devices, servers=servers)
    require_memory(spec, [None, None], host_bytes=[100 * RESNET20, None])
    with pytest.raises(HardwareError, match="n1 has"):
        require_memory(spec, [None, None], host_bytes=[100 * RESNET20, 99 * RESNET20])
