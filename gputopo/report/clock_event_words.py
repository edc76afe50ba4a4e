"""The reasons for which clocks are held down, in the words of the reports. That a GPU is idle is no news."""

from collections.abc import Iterable
from typing import NamedTuple

from gputopo.reference.clock_events import unnamed


class _Words(NamedTuple):
    """`short`: a word or two, for a column."""

    full: str
    short: str


_WORDS = {
    "applications_clocks_setting": _Words("application clocks are set", "set clocks"),
    "sw_power_cap": _Words("power limit reached (software power cap)", "power limit"),
    "hw_slowdown": _Words("hardware slowdown", "hardware slowdown"),
    "sync_boost": _Words("sync boost with other GPUs", "sync boost"),
    "sw_thermal_slowdown": _Words("too warm (software thermal slowdown)", "warm"),
    "hw_thermal_slowdown": _Words("too hot (hardware thermal slowdown)", "HOT"),
    "hw_power_brake_slowdown": _Words("external power brake", "power brake"),
    "display_clock_setting": _Words("display clocks are set", "display clocks"),
    "board_limit": _Words("board limit", "board limit"),
    "reliability": _Words("reliability limit", "voltage limit"),
}


def full_words(reasons: Iterable[str]) -> list[str]:
    """Give clock event reasons in words."""
    return [
        _WORDS[reason].full if reason in _WORDS else f"reason without a name ({unnamed(reason)})"
        for reason in reasons
        if reason != "gpu_idle"
    ]


def short_words(reasons: Iterable[str]) -> list[str]:
    """Give clock event reasons in a word or two each; one without a name by its bit."""
    return [
        _WORDS[reason].short if reason in _WORDS else unnamed(reason)
        for reason in reasons
        if reason != "gpu_idle"
    ]
