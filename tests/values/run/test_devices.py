from hypothesis import given
from hypothesis import strategies as st

from gputopo.values.run.events import Device, place_name, with_names
from tests.invented_runs import cpu_devices, gpu_devices, on_hosts


def test_a_device_of_several_hosts_is_called_by_its_host_and_its_number_there() -> None:
    gpu, cpu = on_hosts(gpu_devices(2, "GTX 1070"), cpu_devices(1))[1:]
    assert (gpu.label, gpu.short_name, gpu.name) == (*["n1 GPU 1"] * 2, "n1 GPU 1 (GTX 1070)")
    assert (cpu.label, cpu.short_name, cpu.name) == ("n2 CPU 0",) * 3


def test_a_gpu_has_the_number_of_its_machine_not_that_of_tensorflow() -> None:
    device = Device(tower=5, device="/job:worker/task:2/device:GPU:1", rank=2, host="n3", gpu=6)
    assert device.short_name == "n3 GPU 6"
    assert place_name("/job:worker/replica:0/task:2/device:CPU:0", [device]) == "n3 CPU 0"


@given(st.integers(0, 3), st.sampled_from(["GPU", "CPU"]), st.integers(0, 99))
def test_a_place_of_the_run_has_its_hosts_name_and_another_stays_as_it_is(
    rank: int, kind: str, number: int
) -> None:
    place = f"/job:worker/task:{rank}/device:{kind}:{number}"
    hosts = on_hosts(cpu_devices(1), cpu_devices(1))
    expected = f"n{rank + 1} {kind} {number}" if rank < 2 else place
    assert place_name(place, hosts) == expected
    assert place_name(place, cpu_devices(2)) == place
    assert place_name(f"/{kind}:{number}", hosts) == f"/{kind}:{number}"


def test_the_devices_in_an_error_of_tensorflow_have_their_names() -> None:
    hosts = on_hosts(gpu_devices(2), gpu_devices(2))
    text = "OOM on /job:worker/replica:0/task:1/device:GPU:1 by allocator GPU_1_bfc"
    assert with_names(text, hosts) == "OOM on n2 GPU 1 by allocator GPU_1_bfc"
    assert with_names(text, gpu_devices(2)) == text
