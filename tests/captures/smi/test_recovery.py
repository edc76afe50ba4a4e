"""Where `nvidia-smi` shows that a GPU needs a reset, in its three output formats."""

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Machine

ACTION, STATUS = "    GPU Recovery Action : {}\n", "    GPU Reset Status\n"
REQUIRED, DRAIN = "        Reset Required : {}\n", "        Drain and Reset Recommended : {}\n"
DEPRECATED = "Requested functionality has been deprecated"


def text(lines: str) -> Machine:
    return read_text(f"GPU 00000000:01:00.0\n{lines}", origin="box.txt")


def action(machine: Machine) -> str | None:
    assert machine.unread == ()
    return machine.gpus[0].recovery_action


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("None", "none"),
        ("Reset", "reset"),
        ("Reboot", "reboot"),
        ("Drain P2P", "drain p2p"),
        ("Drain and Reset", "drain and reset"),
        ("Bus Reset", "bus reset"),
        ("N/A", None),
        ("Unknown Error", None),
    ],
)
def test_the_action_is_kept_in_the_words_of_the_driver(said: str, expected: str | None) -> None:
    assert action(text(ACTION.format(said))) == expected


@pytest.mark.parametrize(
    ("required", "drain", "expected"),
    [
        ("Yes", "No", "reset"),
        ("Yes", "Yes", "reset"),
        ("No", "Yes", "drain and reset"),
        ("No", "No", "none"),
        ("No", "N/A", None),
        ("N/A", "N/A", None),
        (DEPRECATED, DEPRECATED, None),
    ],
)
def test_the_answers_of_older_drivers_are_the_same_fact(
    required: str, drain: str, expected: str | None
) -> None:
    assert action(text(STATUS + REQUIRED.format(required) + DRAIN.format(drain))) == expected


def test_where_both_are_reported_the_worse_stands() -> None:
    assert action(text(ACTION.format("None") + STATUS + REQUIRED.format("Yes"))) == "reset"
    assert action(text(ACTION.format("Reboot") + STATUS + REQUIRED.format("Yes"))) == "reboot"
    assert action(text(ACTION.format("Reset") + STATUS + REQUIRED.format(DEPRECATED))) == "reset"


def test_a_reason_stands_for_an_answer_that_is_not_given() -> None:
    machine = text(STATUS + REQUIRED.format("N/A") + DRAIN.format("N/A"))
    assert machine.missing["gpus[0].recovery_action"] == "N/A"


def test_the_xml_shows_the_same() -> None:
    gpu = (
        "<gpu_reset_status><reset_required>Yes</reset_required>"
        "<drain_and_reset_recommended>N/A</drain_and_reset_recommended></gpu_reset_status>"
    )
    log = f'<nvidia_smi_log><gpu id="00000000:01:00.0">{gpu}</gpu></nvidia_smi_log>'
    assert action(read_text(log, origin="box.xml")) == "reset"


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        ("gpu_recovery_action", "Reset", "reset"),
        ("reset_status.reset_required", "Yes", "reset"),
        ("reset_status.drain_and_reset_recommended", "Yes", "drain and reset"),
        ("gpu_recovery_action", "[N/A]", None),
        ("temperature.gpu", "[GPU requires reset]", "reset"),
        ("pstate", "[N/A]", None),
    ],
)
def test_the_columns_show_the_same(column: str, cell: str, expected: str | None) -> None:
    machine = read_text(f"index, name, {column}\n0, A, {cell}\n", origin="box.csv")
    assert action(machine) == expected


def test_a_value_that_is_refused_until_the_reset_shows_it_and_not_of_other_cards() -> None:
    box = "GPU 00000000:01:00.0\n    Fan Speed : 30 %\nGPU 00000000:02:00.0\n    Fan Speed : {}\n"
    for refused in ("GPU requires reset", "[GPU requires reset]"):
        machine = read_text(box.format(refused), origin="box.txt")
        assert [gpu.recovery_action for gpu in machine.gpus] == [None, "reset"]
        assert [gpu.lost for gpu in machine.gpus] == [False, False]
        assert machine.missing["gpus[1].fan_percent"] == "GPU requires reset"
