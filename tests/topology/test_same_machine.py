"""What makes another machine, and what does not."""

import msgspec
import pytest

from gputopo.topology import fingerprint
from gputopo.values.machine import Host, Machine
from tests.invented_bandwidths import machine_with
from tests.matrices import changed

MACHINE = machine_with(2)


@pytest.mark.parametrize(
    "other",
    [
        changed(MACHINE, 1, name="NVIDIA Test 2"),
        changed(MACHINE, 0, pci_address="0000:0a:00.0"),
        msgspec.structs.replace(MACHINE, host=Host(cpu_model="Another CPU")),
        machine_with(1),
    ],
    ids=["card", "slot", "cpu", "count"],
)
def test_another_card_slot_cpu_or_number_of_cards_is_another_machine(other: Machine) -> None:
    assert fingerprint(other) not in (None, fingerprint(MACHINE))


def test_the_fingerprint_holds_no_identity_and_does_not_depend_on_order_or_state() -> None:
    same = msgspec.structs.replace(
        changed(MACHINE, 0, uuid="GPU-1", pstate="P8"), gpus=MACHINE.gpus[::-1], source="recording"
    )
    key = fingerprint(MACHINE)
    assert fingerprint(same) == key
    assert key is not None
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


def test_a_driver_that_names_the_maker_is_no_other_machine() -> None:
    def key(name: str) -> str | None:
        gpus = tuple(msgspec.structs.replace(gpu, name=name) for gpu in MACHINE.gpus)
        return fingerprint(msgspec.structs.replace(MACHINE, gpus=gpus))

    assert key("NVIDIA GeForce GTX 1070") == key("GeForce GTX 1070")
    assert key("GeForce GTX 1070") not in (None, key("GeForce GTX 1080"))
