"""Files of /proc/driver/nvidia: the version of the kernel module, and each GPU that is bound to it."""

import pytest

from gputopo.captures import read_text

VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (root@box)  Thu\n"
GPU = """\
Model: \t\t NVIDIA GeForce RTX 3090
IRQ:   \t\t 188
GPU UUID: \t {uuid}
Video BIOS: \t 94.02.42.00.0f
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t {address}
Device Minor: \t 0
GPU Firmware: \t N/A
GPU Excluded:\t No
"""
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(("text", "version"), [(VERSION, "535.104.05"), (OPEN, "550.54.14")])
def test_the_version_is_that_of_the_kernel_module(text: str, version: str) -> None:
    machine = read_text(text, origin="x")
    assert (machine.driver.kernel_module_version, machine.driver.version) == (version, None)
    assert (machine.gpus, machine.unread) == ((), ())


def test_gpus_are_in_the_order_of_their_addresses() -> None:
    second = GPU.format(address="0000:41:00.0", uuid=UUID)
    first = GPU.format(address="0000:01:00.0", uuid="GPU-????????-????-????-????-????????????")
    machine = read_text(VERSION + second + first, origin="x")
    assert [(gpu.index, gpu.pci_address, gpu.uuid) for gpu in machine.gpus] == [
        (0, "0000:01:00.0", None),
        (1, "0000:41:00.0", UUID),
    ]
    assert [gpu.vbios_version for gpu in machine.gpus] == ["94.02.42.00.0F"] * 2
    assert [(gpu.name, gpu.gsp_firmware_version) for gpu in machine.gpus] == [
        ("NVIDIA GeForce RTX 3090", None)
    ] * 2
    assert machine.unread == ()
