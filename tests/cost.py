"""What something costs beside a fixed piece of Python at the same time: a busy machine slows both down."""

import time
from collections.abc import Callable

_NUMBERS = 60_000  # so many take about 10 ms on a quiet core of 2023


def cost_of(act: Callable[[], object], *, rounds: int = 5) -> float:
    """Return the CPU time of `act` in units of the fixed code, about 10 ms: minimum of each, alternating."""
    times = [(_cpu_s(act), _cpu_s(_piece)) for _ in range(rounds)]
    return min(own for own, _ in times) / min(unit for _, unit in times)


def _piece() -> int:
    return sum(len(str(number)) for number in range(_NUMBERS))


def _cpu_s(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun
