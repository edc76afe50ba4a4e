"""NVSwitch fabric and recovery action: odd answers; what each era prints is read back in test_written."""

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Fabric, Machine

GPU = "GPU 00000000:01:00.0\n    Product Name : NVIDIA H100 80GB HBM3\n"
STATE = "    Fabric\n        State : {0}\n        Status : {0}\n        Health\n            Bandwidth : {0}\n"
ACTION = "    GPU Recovery Action : {}\n"
STATUS = "    GPU Reset Status\n        Reset Required : {}\n        Drain and Reset Recommended : {}\n"
DEPRECATED = "Requested functionality has been deprecated"


def read(text: str) -> Machine:
    machine = read_text(text, origin="box.txt")
    assert machine.unread == ()
    return machine


def test_a_driver_that_writes_the_names_into_the_csv_values_is_understood() -> None:
    head = "pci.bus_id, fabric.state, fabric.status\n"
    (gpu,) = read(f"{head}00000000:01:00.0, state  Completed, status Success\n").gpus
    assert (gpu.fabric.state, gpu.fabric.status) == ("completed", "success")


def test_a_card_without_nvswitches_has_the_reason() -> None:
    for reason in ("N/A", "Not Supported", "Unknown Error"):
        machine = read(GPU + STATE.format(reason))
        assert machine.gpus[0].fabric == Fabric()
        for name in ("state", "status", "health"):
            assert machine.missing[f"gpus[0].fabric.{name}"] == reason


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (ACTION.format("Bus Reset"), "bus reset"),  # an action that no known driver has
        (ACTION.format("Unknown Error"), None),
        (STATUS.format("No", "N/A"), None),
        (ACTION.format("None") + STATUS.format("Yes", "No"), "reset"),  # of two, the worse
        (ACTION.format("Reboot") + STATUS.format("Yes", "No"), "reboot"),
        (ACTION.format("Reset") + STATUS.format(DEPRECATED, DEPRECATED), "reset"),
    ],
)
def test_the_recovery_action_is_the_worse_of_what_is_reported(lines: str, expected: str | None) -> None:
    assert read(GPU + lines).gpus[0].recovery_action == expected


def test_a_value_that_is_refused_until_the_reset_shows_it_and_not_of_other_cards() -> None:
    box = "GPU 00000000:01:00.0\n    Fan Speed : 30 %\nGPU 00000000:02:00.0\n    Fan Speed : {}\n"
    for text in (
        box.format("GPU requires reset"),
        box.format("[GPU requires reset]"),
        "index, fan.speed [%]\n0, 30 %\n1, [GPU requires reset]\n",
    ):
        machine = read(text)
        assert [gpu.recovery_action for gpu in machine.gpus] == [None, "reset"]
        assert [gpu.lost for gpu in machine.gpus] == [False, False]
        assert machine.missing["gpus[1].fan_percent"] == "GPU requires reset"
