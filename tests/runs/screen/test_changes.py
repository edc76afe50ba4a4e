"""What is different from the last screen of a GPU."""

from typing import Any

import pytest

from gputopo.runs.screen import changes
from gputopo.values.run.several_runs import Reading, ScreenDevice, Under

WELL = {"graphics_mhz": 1900.0, "temperature_c": 70.0, "power_w": 150.0, "pcie_gen": 3.0, "pcie_width": 16.0}


def row(word: str = "even", **reading: Any) -> ScreenDevice:
    return ScreenDevice(number=1, word=word, says="", reading=Reading(**{**WELL, **reading}))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (row(), ()),
        (row(graphics_mhz=1880.0, temperature_c=76.0, power_w=140.0), ()),
        (row(graphics_mhz=1700.0), ("core clock 1,700 MHz, was 1,900 MHz",)),
        (row(temperature_c=83.0), ("13 \N{DEGREE SIGN}C warmer",)),
        (row(power_w=100.0), ("power 100 W, was 150 W",)),
        (row(pcie_width=1.0), ("link gen3 x1, was gen3 x16",)),
        (row(pcie_width=None), ()),
        (row("slow"), ("slow, was even",)),
    ],
)
def test_a_reading_that_moved_by_more_than_runs_differ_is_named(
    now: ScreenDevice, words: tuple[str, ...]
) -> None:
    assert changes(row(), now, None) == words


def test_a_speed_counts_beyond_the_noise_in_both_directions() -> None:
    assert changes(row(), row(), Under(percent=7.0, low=5.04, high=9.0)) == ("7.0 % slower (at least 5.0 %)",)
    assert changes(row(), row(), Under(percent=-7.0, low=-9.0, high=-5.04)) == (
        "7.0 % faster (at least 5.0 %)",
    )
    assert changes(row(), row(), Under(percent=2.0, low=-1.0, high=5.0)) == ()
    assert changes(row(), row(), Under(percent=2.0)) == ()
