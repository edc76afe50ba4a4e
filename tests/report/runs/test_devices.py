"""The table of the devices on screens of any width."""

import re

import pytest

from gputopo.report import document_text, run_document
from gputopo.runs import summarise
from tests.invented_runs import InventedRun, Noise, cpu_devices, gpu_devices, stream

QUIET = Noise(own=0.01, stalls=0.0)


def rows_of(width: int, *, gpus: bool) -> tuple[list[str], list[list[str]]]:
    """The lines of a report at that width, and the words of each device's rows, those of its name first."""
    devices = gpu_devices(3) if gpus else cpu_devices(3)
    result = summarise(stream(devices, InventedRun(3, slow={1: 0.3}, noise=QUIET).steps(30)))
    lines = document_text(run_document(result), width).splitlines()
    of_each = [
        [
            word
            for line in lines
            if re.match(rf"{device.label} +(?!costs|\()", line)
            for word in line.split()[2:]
        ]
        for device in devices
    ]
    return lines, of_each


@pytest.mark.parametrize(("width", "gpus"), [(40, True), (60, False)])
def test_no_screen_is_too_narrow_for_whole_numbers_and_names(width: int, *, gpus: bool) -> None:
    lines, narrow = rows_of(width, gpus=gpus)
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)
    _, wide = rows_of(200, gpus=gpus)
    for some, all_of_it in zip(narrow, wide, strict=True):
        # A card's name may be folded: its other words stand in lines of their own.
        assert [word for word in all_of_it if word in some] == some
        assert {word for word in all_of_it if word[0].isdigit() and word not in ("1070",)} <= set(some)
    assert [("!" in words) for words in narrow] == [False, True, False]
