"""How the temperature of a GPU went in a run: steady, warming or cooling. Pure.

A temperature is no cause: a warm GPU is not slow, and a cool one not fast. What heat costs is in its clock
and in the reasons that throttle it (`rules`).
"""

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

# Between the first and the last third of the samples: less is steady. Ours, by thermal logs of trainings on
# eight machines: in their steady parts GPUs that had reached their temperature moved by up to 4.5 degrees.
MIN_CHANGE_C = 5.0
MIN_SAMPLES = 6  # two in each third
WARMING, COOLING, STEADY = "warming", "cooling", "steady"


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """The mean temperatures of the first and the last third, in degrees C, and their `word`."""

    first_c: float
    last_c: float

    @property
    def word(self) -> str:
        """Warming, cooling or steady."""
        change = self.last_c - self.first_c
        if abs(change) < MIN_CHANGE_C:
            return STEADY
        return WARMING if change > 0 else COOLING

    def says(self, name: str) -> str:
        """Return it in words: "GPU 1 became 8 °C warmer (76 to 84 °C)"."""
        if self.word == STEADY:
            return f"{name} stayed at {self.last_c:.0f} °C"
        more = "warmer" if self.word == WARMING else "cooler"
        change = abs(self.last_c - self.first_c)
        return f"{name} became {change:.0f} °C {more} ({self.first_c:.0f} to {self.last_c:.0f} °C)"


def heat(values: Sequence[float]) -> Heat | None:
    """Return how temperatures went, in their order; NaN: not known. None of too few."""
    known = [value for value in values if not math.isnan(value)]
    third = len(known) // 3
    if len(known) < MIN_SAMPLES:
        return None
    return Heat(first_c=fmean(known[:third]), last_c=fmean(known[-third:]))
