"""What changed since the last screen of a device: speed, verdict, and readings."""

from gputopo.runs.verdict.words import at_least
from gputopo.values.run.several_runs import GpuReading, ScreenDevice, Under
from gputopo.values.words import percent

# Not measured; chosen because a clock that moves by less follows the temperature from run to run.
CLOCK_PERCENT = 2.0
# Not measured; chosen because a slightly warmer room, or a GPU that starts warm, is no change.
TEMPERATURE_C = 10.0
# Not measured; chosen because it is above the difference between starts; power limits move by 5% and more.
POWER_PERCENT = 10.0


def changes(then: ScreenDevice, now: ScreenDevice, since: Under | None) -> tuple[str, ...]:
    """Return what changed since the last screen. `since`: percent below it, with bounds."""
    words = []
    if since is not None and since.low is not None and since.low > 0:
        words.append(f"{percent(since.percent)}% slower (at least {at_least(since.low)}%)")
    if since is not None and since.high is not None and since.high < 0:
        words.append(f"{percent(-since.percent)}% faster (at least {at_least(-since.high)}%)")
    if then.word != now.word:
        words.append(f"{now.word}, was {then.word}")
    return (*words, *_changed_readings(then.reading, now.reading))


def _changed_readings(then: GpuReading, now: GpuReading) -> list[str]:
    words = [
        f"{name} {new:,.0f} {unit}, was {old:,.0f} {unit}"
        for name, unit, old, new, least in (
            ("core clock", "MHz", then.graphics_mhz, now.graphics_mhz, CLOCK_PERCENT),
            ("memory clock", "MHz", then.memory_mhz, now.memory_mhz, CLOCK_PERCENT),
            ("power", "W", then.power_w, now.power_w, POWER_PERCENT),
        )
        if old and new is not None and 100 * abs(new / old - 1) >= least
    ]
    if then.temperature_c is not None and now.temperature_c is not None:
        warmer = now.temperature_c - then.temperature_c
        if abs(warmer) >= TEMPERATURE_C:
            words.append(f"{abs(warmer):.0f} \N{DEGREE SIGN}C {'warmer' if warmer > 0 else 'cooler'}")
    if _link(then) != _link(now) and None not in (_link(then), _link(now)):
        words.append(f"link {_link(now)}, was {_link(then)}")
    return words


def _link(reading: GpuReading) -> str | None:
    if reading.pcie_gen is None or reading.pcie_width is None:
        return None
    return f"gen{reading.pcie_gen:g} x{reading.pcie_width:g}"
