"""Lines of `nvidia-smi` about GPUs that it counted and got no handle of, in its CSV and its text."""

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Machine

NO_HANDLE = "Unable to determine the device handle for "
HEAD = "index, pci.bus_id, name\n"
ROWS = ("0, 00000000:01:00.0, A\n", "2, 00000000:C1:00.0, B\n")
BARE = ("A, 41\n", "B, 42\n")
TEXT = "GPU 00000000:{}:00.0\n    Clocks\n        Graphics    : 1695 MHz\n"


def csv(*lines: str) -> Machine:
    return read_text("".join(lines), origin="box.csv")


def text(*lines: str) -> Machine:
    return read_text("".join(lines), origin="box.txt")


def lost(machine: Machine) -> list[tuple[int, str | None]]:
    return [(gpu.index, gpu.pci_address) for gpu in machine.gpus if gpu.lost]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("GPU3: 0000:04:00.0: Unknown Error", (3, "0000:04:00.0", "Unknown Error")),
        ("GPU 12: 0000:04:00.0: Unknown Error", (12, "0000:04:00.0", "Unknown Error")),
        ("GPU 00000000:C1:00.0: GPU is lost.  Reboot it", (None, "0000:c1:00.0", "GPU is lost. Reboot it")),
        ("GPU0000:02:00.0: Unknown Error", (None, "0000:02:00.0", "Unknown Error")),
        ("gpu 0000:02:00.0: Not enough power", (None, "0000:02:00.0", "Not enough power")),
        ("GPU2: Unknown Error", (2, None, "Unknown Error")),
        ("GPU 000:BA:00.0: Unknown Error", (None, "0000:ba:00.0", "Unknown Error")),
        ("GPU2", (2, None, "no answer")),
    ],
)
def test_a_line_shows_number_address_both_or_neither(
    said: str, expected: tuple[int | None, str | None, str]
) -> None:
    number, address, reason = expected
    machine = read_text(f"  {NO_HANDLE}{said}\n", origin="x")
    assert lost(machine) == [(number or 0, address)]
    assert machine.missing[f"gpus[{number or 0}]"] == reason
    assert ("gpus[0].index" in machine.missing) == (number is None)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("gpu", ["GPU0000:02:00.0", "GPU1: 0000:02:00.0"])
def test_a_gpu_without_an_answer_is_lost_wherever_the_line_stands(gpu: str, place: int) -> None:
    lines = [HEAD, *ROWS]
    lines.insert(place, f"{NO_HANDLE}{gpu}: Unknown Error\n")
    machine = csv(*lines)
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
    assert lost(machine) == [(1, "0000:02:00.0")]
    assert machine.missing["gpus[1]"] == "Unknown Error"
    assert machine.unread == ()


def test_a_number_alone_is_the_index() -> None:
    assert lost(csv(HEAD, *ROWS, f"{NO_HANDLE}GPU3: Unknown Error\n")) == [(3, None)]
    assert lost(csv("name, temperature.gpu\n", *BARE, f"{NO_HANDLE}GPU1: Unknown Error\n")) == [(1, None)]


def test_without_number_and_place_it_is_counted_last_and_the_reason_is_reported() -> None:
    machine = csv("name, temperature.gpu\n", *BARE, f"{NO_HANDLE}GPU0000:02:00.0: Unknown Error\n")
    assert lost(machine) == [(2, "0000:02:00.0")]
    assert "does not show its number" in machine.missing["gpus[2].index"]


def test_several_without_an_answer_have_a_place_each() -> None:
    silent = (f"{NO_HANDLE}GPU0000:{bus}:00.0: Unknown Error\n" for bus in ("D1", "02", "D1"))
    assert lost(csv(HEAD, *ROWS, *silent)) == [(1, "0000:02:00.0"), (3, "0000:d1:00.0")]


def test_a_number_that_another_gpu_has_is_not_taken() -> None:
    machine = csv(HEAD, *ROWS, f"{NO_HANDLE}GPU2: 0000:D1:00.0: Unknown Error\n")
    assert lost(machine) == [(3, "0000:d1:00.0")]


def test_a_gpu_that_answered_first_and_then_no_more_is_lost_and_keeps_its_facts() -> None:
    machine = csv(HEAD, *ROWS, f"{NO_HANDLE}GPU 0000:C1:00.0: GPU is lost.\n", ROWS[0])
    assert lost(machine) == [(2, "0000:c1:00.0")]
    assert machine.gpus[1].name == "B"


def test_in_the_text_a_number_alone_leaves_its_trace() -> None:
    machine = text(TEXT.format("05"), TEXT.format("06"), f"{NO_HANDLE}GPU2: Unknown Error\n")
    assert [gpu.pci_address for gpu in machine.gpus] == ["0000:05:00.0", "0000:06:00.0", None]
    assert lost(machine) == [(2, None)]
    assert machine.missing["gpus[2]"] == "Unknown Error"


def test_in_the_text_an_address_stands_in_its_order() -> None:
    machine = text(TEXT.format("05"), TEXT.format("C1"), f"{NO_HANDLE}GPU0000:81:00.0: Unknown Error\n")
    assert lost(machine) == [(1, "0000:81:00.0")]


def test_in_the_text_a_gpu_that_answered_before_is_lost() -> None:
    machine = text(TEXT.format("05"), f"{NO_HANDLE}GPU0000:05:00.0: Unknown Error\n")
    assert lost(machine) == [(0, "0000:05:00.0")]
