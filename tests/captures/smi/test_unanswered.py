"""Lines of `nvidia-smi` about GPUs that it counted and got no handle of, in its CSV and its text."""

import pytest

from gputopo.captures import read_text
from gputopo.values.machine import Machine

NO_HANDLE = "Unable to determine the device handle for "
HEAD = "index, pci.bus_id, name\n"
ROWS = ("0, 00000000:01:00.0, A\n", "2, 00000000:C1:00.0, B\n")
TEXT = "GPU 00000000:{}:00.0\n    Clocks\n        Graphics    : 1695 MHz\n"


def read(*lines: str) -> Machine:
    return read_text("".join(lines), origin="x")


def lost(machine: Machine) -> list[tuple[int, str | None]]:
    return [(gpu.index, gpu.pci_address) for gpu in machine.gpus if gpu.lost]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("GPU3: 0000:04:00.0: Unknown Error", (3, "0000:04:00.0", "Unknown Error")),
        ("GPU 00000000:C1:00.0: GPU is lost.  Reboot it", (None, "0000:c1:00.0", "GPU is lost. Reboot it")),
        ("GPU0000:02:00.0: Unknown Error", (None, "0000:02:00.0", "Unknown Error")),
        ("GPU2: Unknown Error", (2, None, "Unknown Error")),
        ("GPU2", (2, None, "no answer")),
    ],
)
def test_a_line_shows_number_address_both_or_neither(
    said: str, expected: tuple[int | None, str | None, str]
) -> None:
    number, address, reason = expected
    machine = read(f"  {NO_HANDLE}{said}\n")
    assert lost(machine) == [(number or 0, address)]
    assert machine.missing[f"gpus[{number or 0}]"] == reason
    assert ("gpus[0].index" in machine.missing) == (number is None)


@pytest.mark.parametrize(("gpu", "place"), [("GPU0000:02:00.0", 0), ("GPU1: 0000:02:00.0", 3)])
def test_a_gpu_without_an_answer_is_lost_wherever_the_line_stands(gpu: str, place: int) -> None:
    lines = [HEAD, *ROWS]
    lines.insert(place, f"{NO_HANDLE}{gpu}: Unknown Error\n")
    machine = read(*lines)
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
    assert lost(machine) == [(1, "0000:02:00.0")]
    assert machine.missing["gpus[1]"] == "Unknown Error"
    assert machine.unread == ()


def silent(gpu: str) -> str:
    return f"{NO_HANDLE}{gpu}: Unknown Error\n"


BARE = ("name, temperature.gpu\n", "A, 41\n", "B, 42\n")
FIVE, SIX, LAST = TEXT.format("05"), TEXT.format("06"), TEXT.format("C1")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((HEAD, *ROWS, silent("GPU3")), [(3, None)]),  # a number alone is the index
        ((*BARE, silent("GPU1")), [(1, None)]),
        ((HEAD, *ROWS, silent("GPU2: 0000:D1:00.0")), [(3, "0000:d1:00.0")]),  # another GPU has the number
        (
            (HEAD, *ROWS, *(silent(f"GPU0000:{bus}:00.0") for bus in ("D1", "02", "D1"))),
            [(1, "0000:02:00.0"), (3, "0000:d1:00.0")],
        ),
        ((HEAD, *ROWS, silent("GPU 0000:C1:00.0"), ROWS[0]), [(2, "0000:c1:00.0")]),  # it answered first
        ((HEAD, silent("GPU 0000:C1:00.0"), *ROWS), [(2, "0000:c1:00.0")]),
        ((FIVE, SIX, silent("GPU2")), [(2, None)]),
        ((FIVE, LAST, silent("GPU0000:81:00.0")), [(1, "0000:81:00.0")]),  # in the order of addresses
        ((FIVE, silent("GPU0000:05:00.0")), [(0, "0000:05:00.0")]),
    ],
)
def test_number_and_address_place_a_gpu_that_does_not_answer(
    lines: tuple[str, ...], expected: list[tuple[int, str | None]]
) -> None:
    machine = read(*lines)
    assert lost(machine) == expected
    assert {machine.missing[f"gpus[{index}]"] for index, _ in expected} == {"Unknown Error"}
    assert all(gpu.lost or gpu.name or gpu.clocks_mhz.graphics.now for gpu in machine.gpus)


def test_without_number_and_place_it_is_counted_last_and_the_reason_is_reported() -> None:
    machine = read(*BARE, silent("GPU0000:02:00.0"))
    assert lost(machine) == [(2, "0000:02:00.0")]
    assert "does not show its number" in machine.missing["gpus[2].index"]
