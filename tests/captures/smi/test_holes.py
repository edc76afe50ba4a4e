"""Texts of `nvidia-smi -q` with missing lines: what is missing is named, and no value crosses the gap."""

import pytest

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

GPU = """GPU 00000000:{bus:02X}:00.0
    Product Name                          : NVIDIA GeForce RTX 3080
    PCI
        Sub System Id                     : 0x38971462
    Performance State                     : P2
    FB Memory Usage
        Total                             : 10240 MiB
        Used                              : {n}00 MiB
    Utilization
        GPU                               : {n} %
    Temperature
        GPU Current Temp                  : {n}0 C
    Power Readings
        Power Draw                        : {n}0.00 W
    Clocks
        Graphics                          : {n}000 MHz
    Max Clocks
        Graphics                          : 9000 MHz
    Processes                             : None

"""


def output(gpus: int = 3, driver: str = "525.105.17", first: int = 1) -> str:
    """An output in which each value of GPU n begins with n."""
    head = f"==============NVSMI LOG==============\n\nDriver Version                            : {driver}\n"
    head += f"Attached GPUs                             : {gpus}\n"
    return head + "".join(GPU.format(bus=n, n=n) for n in range(first, first + gpus))


def read(text: str) -> Machine:
    return read_text(text, origin="a.txt")


def test_fewer_gpus_than_are_attached_are_a_gap() -> None:
    text = output().replace(GPU.format(bus=2, n=2), "")
    (gap,) = read(text).gaps
    assert (gap.attached, gap.listed, gap.text) == (3, 2, "3 GPUs are attached and 2 are listed")
    assert read(output()).gaps == ()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (output(driver="550.54.14"), "driver 550.54.14, not 525.105.17"),
        (output(gpus=2), "counts 2 GPUs, not 3"),
        (output(first=5), "other PCI addresses: 0000:05:00.0"),
    ],
)
def test_two_machines_in_one_text_are_refused(other: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        read(output() + other)
    assert refused.value.hint == "give one file for each machine"
    assert why in refused.value.what


def test_outputs_that_each_list_one_of_two_gpus_are_of_one_machine() -> None:
    first, second = (output(gpus=2).replace(GPU.format(bus=n, n=n), "") for n in (2, 1))
    assert [gpu.pci_address for gpu in read(first + second).gpus] == ["0000:01:00.0", "0000:02:00.0"]


@pytest.mark.parametrize("count", ["9" * 5000, "²"])
def test_a_count_of_gpus_that_is_none_counts_nothing(count: str) -> None:
    text = output().replace(": 3\n", f": {count}\n", 1)
    assert f"Attached GPUs                             : {count}\n" in text
    assert len(read(text).gpus) == 3
    assert all(gap.attached is None for gap in read(text).gaps)
