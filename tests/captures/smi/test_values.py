"""Values of `nvidia-smi`: what it prints in odd forms, and what has a reason in place of a value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.facts import at_gpu
from gputopo.values.machine import Machine
from tests.kit.dialects import smi

# Lines of `nvidia-smi -q` by the fact that they show.
LINES = {
    "clocks_mhz.sm.now": ("Clocks", "SM"),
    "memory_mib.total": ("FB Memory Usage", "Total"),
    "power_w.draw": ("Power Readings", "Power Draw"),
    "temperature_c.gpu": ("Temperature", "GPU Current Temp"),
    "pcie.width_now": ("PCI", "GPU Link Info", "Link Width", "Current"),
    "pcie.gen_now": ("PCI", "GPU Link Info", "PCIe Generation", "Current"),
    "pcie.replay_counter": ("PCI", "Replays Since Reset"),
    "pci_device_id": ("PCI", "Device Id"),
    "persistence_mode": ("Persistence Mode",),
    "compute_mode": ("Compute Mode",),
    "virtualization": ("GPU Virtualization Mode", "Virtualization Mode"),
    "pstate": ("Performance State",),
    "uuid": ("GPU UUID",),
}


def read(fact: str, value: str) -> Machine:
    *sections, name = LINES[fact]
    lines = [f"{'    ' * depth}{section}\n" for depth, section in enumerate(sections, 1)]
    lines.append(f"{'    ' * len(LINES[fact])}{name:<38}: {value}\n")
    return read_text("GPU 00000000:01:00.0\n" + "".join(lines) + "    Fan Speed : 30 %\n", origin="x")


@pytest.mark.parametrize(
    ("fact", "text", "value"),
    [
        ("memory_mib.total", "6143 MB", 6143),
        ("temperature_c.gpu", "-8 C", -8),
        ("compute_mode", "Exclusive_Process", "exclusive_process"),
        ("virtualization", "Pass-Through", "pass-through"),
        ("pci_device_id", "26B910DE", "26b9"),
        ("uuid", "GPU-8f6a3c1e-0000-4b1f-9d1c-2f3a4b5c6d7e", "GPU-8f6a3c1e-0000-4b1f-9d1c-2f3a4b5c6d7e"),
    ],
)
def test_a_value_is_read_as_its_kind(fact: str, text: str, value: object) -> None:
    machine = read(fact, text)
    assert (smi.value(machine.gpus[0], fact), machine.unread) == (value, ())


@pytest.mark.parametrize(
    ("shown", "address"), [("00000001:00:00.0", "0001:00:00.0"), ("00010000:0A:00.0", "10000:0a:00.0")]
)
def test_an_address_is_written_as_the_kernel_writes_it(shown: str, address: str) -> None:
    assert read_text(f"GPU {shown}\n    Fan Speed : 30 %\n", origin="x").gpus[0].pci_address == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[N/A]", "N/A"),
        ("ERR!", "ERR!"),
        ("Requested functionality has been deprecated", "Requested functionality has been deprecated"),
        ("[Insufficient Permissions]", "Insufficient Permissions"),
    ],
)
def test_no_value_has_the_reason_of_the_source(text: str, reason: str) -> None:
    for fact in sorted(LINES):
        machine = read(fact, text)
        assert (fact, machine.missing.get(at_gpu(0, fact)), machine.unread) == (fact, reason, ())


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ("clocks_mhz.sm.now", "252 MH"),
        ("clocks_mhz.sm.now", "2520 MiB"),
        ("clocks_mhz.sm.now", "2.5 MHz"),
        ("power_w.draw", "71,27 W"),
        ("temperature_c.gpu", "\u0664\u0662 C"),
        ("pcie.replay_counter", "-1"),
        ("compute_mode", "E. Process"),
        ("pstate", "P32"),
        ("memory_mib.total", "9" * 400 + " MiB"),
    ],
)
def test_what_is_not_understood_is_listed_and_not_guessed(fact: str, text: str) -> None:
    machine = read(fact, text)
    assert smi.value(machine.gpus[0], fact) is None
    assert machine.missing[at_gpu(0, fact)].startswith("not understood: ")
    assert len(machine.unread) == 1


@pytest.mark.parametrize(
    ("fact", "text", "reason"),
    [
        ("pcie.width_now", "0x", "the driver reports 0x"),
        ("pci_device_id", "26B91002", "the driver reports 26B91002"),
        ("uuid", "GPU-8f6a3c1e-0000-4b1f", "cut in the capture"),
        ("uuid", "GPU-00000000-0000-0000-0000-000000000000", "masked in the capture"),
    ],
)
def test_what_means_unknown_is_no_value(fact: str, text: str, reason: str) -> None:
    machine = read(fact, text)
    assert (smi.value(machine.gpus[0], fact), machine.unread) == (None, ())
    assert machine.missing[at_gpu(0, fact)] == reason


# Without what `[0m` begins with: a color of a terminal.
_LETTERS = st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="[")


@given(st.sampled_from(sorted(LINES)), st.text(_LETTERS))
def test_any_text_gives_a_value_or_a_reason(fact: str, text: str) -> None:
    machine = read(fact, text.strip() or "0")
    value: Any = smi.value(machine.gpus[0], fact)
    assert (value is None) == (at_gpu(0, fact) in machine.missing)
