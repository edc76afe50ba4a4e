"""TensorFlow's device lines of both generations: clocks filed as what they are, numbers, peers."""

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Machine
from tests.captures import samples


def read(text: str) -> Machine:
    return read_text(text, origin="x")


@pytest.mark.parametrize("text", [samples.TF_1, samples.TF_2], ids=["1", "2"])
def test_every_fact_of_a_device_is_in_the_machine(text: str) -> None:
    machine = read(text)
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS)
    assert [gpu.cuda_index for gpu in machine.gpus] == [0, 1, 2]
    assert [gpu.name for gpu in machine.gpus] == ["GeForce GTX 1070"] * 3
    assert [gpu.clocks_mhz.graphics.boost for gpu in machine.gpus] == [1771] * 3
    assert [gpu.memory_mib.total for gpu in machine.gpus] == [8110] * 3
    assert [link.p2p_read for link in machine.links] == ["OK", "NOT_SUPPORTED", "NOT_SUPPORTED"]
    assert [link.p2p_write for link in machine.links] == ["OK", "NOT_SUPPORTED", "NOT_SUPPORTED"]
    assert machine.unread == ()


def test_what_tensorflow_1_calls_memory_clock_is_no_memory_clock() -> None:
    machine = read(samples.TF_1)
    assert all(
        gpu.clocks_mhz.memory.now is None and gpu.clocks_mhz.memory.max is None for gpu in machine.gpus
    )
    assert "boost clock" in machine.missing["gpus[0].clocks_mhz.memory.now"]
    assert "gpus[0].clocks_mhz.memory.now" not in read(samples.TF_2).missing
    assert [gpu.memory_mib.free for gpu in machine.gpus] == [8018] * 3


def test_cuda_may_number_the_gpus_otherwise_than_the_bus() -> None:
    turned = samples.TF_2.replace("85:00.0", "XX").replace("05:00.0", "85:00.0").replace("XX", "05:00.0")
    machine = read(turned)
    assert [(gpu.pci_address, gpu.cuda_index) for gpu in machine.gpus] == [
        (samples.GPUS[0], 2),
        (samples.GPUS[1], 1),
        (samples.GPUS[2], 0),
    ]
    assert [link.p2p_read for link in machine.links] == ["NOT_SUPPORTED", "NOT_SUPPORTED", "OK"]


def test_processes_that_all_call_their_gpu_0_give_no_number() -> None:
    blocks = samples.TF_2.replace("device 1 with", "device 0 with").replace("device 2 with", "device 0 with")
    machine = read(blocks)
    assert [gpu.cuda_index for gpu in machine.gpus] == [None] * 3
    assert "differently" in machine.missing["gpus[0].cuda_index"]
    assert machine.links == ()


def test_the_oldest_lines_are_read() -> None:
    machine = read(
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:885] Found device 0 with properties: \n"
        "name: GeForce GTX 1080\nmajor: 6 minor: 1 memoryClockRate (GHz) 1.7335\npciBusID 0000:01:00.0\n"
        "Total memory: 7.92GiB\nFree memory: 7.81GiB\n"
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:906] DMA: 0 \n"
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:916] 0:   Y \n"
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:975] Creating TensorFlow device (/gpu:0) -> "
        "(device: 0, name: GeForce GTX 1080, pci bus id: 0000:01:00.0)\n"
    )
    (gpu,) = machine.gpus
    assert (gpu.name, gpu.pci_address, gpu.cuda_index) == ("GeForce GTX 1080", "0000:01:00.0", 0)
    assert (gpu.clocks_mhz.graphics.boost, gpu.memory_mib.total) == (1733, 8110)
