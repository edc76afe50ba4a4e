"""The state of the GPUs while copies run: NVML readings, and whether they were taken in the timed window."""

import contextlib
import functools
import operator
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, Self

from gputopo.probes.nvml import Monitor
from gputopo.probes.nvml.door import NotReadError
from gputopo.reference import decode_clock_events
from gputopo.values.bandwidth import Conditions
from gputopo.values.run.events import GpuSample

# A clock below this share of its value in the counted windows was still rising. A loaded GPU's boost clock
# moves by one to three steps of 15 MHz (NVIDIA, GPU Boost): about 3 % of 1500 MHz.
RISING_BELOW = 0.92
# A GPU that is idle for this long may have lowered its clocks. Not measured; chosen because GPUs wait longer.
_RESTS_S = 1.0
# A reading of one GPU uses a core for up to some milliseconds, so there is a pause between two readings.
_PAUSE_S = 0.003
_DURATIONS = 15  # the number of last readings whose median predicts the duration of the next
_CLOCK_S = 20e-6  # the streams start this much before or after the host notes their release


class GpuSampler(Protocol):
    """Samples one GPU, as `gputopo.probes.nvml.monitor.Monitor` does."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Return a sample for each GPU. Never raises."""

    def close(self) -> None:
        """Close the sampler."""


class WindowReading(NamedTuple):
    """What NVML reported about a GPU, and whether all copies of the window ran during the whole reading."""

    sample: GpuSample
    inside: bool = True


WindowReadings = Mapping[int, tuple[WindowReading, ...]]  # of one timed window, by GPU, in the order of time


class Meter:
    """Takes readings of chosen GPUs while copies run. `reason`: why it cannot, or None if it can.

    `open_sampler` opens a sampler of one GPU, and raises NotReadError if NVML cannot be used. Close the
    meter, or use it in a `with` block.
    """

    def __init__(
        self,
        gpus: Iterable[int],
        *,
        open_sampler: Callable[[int], GpuSampler] = lambda gpu: Monitor([gpu]),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.now = now
        self._open = contextlib.ExitStack()
        self._samplers: dict[int, GpuSampler] = {}
        self._full: dict[int, GpuSample] = {}  # the reading of each GPU at its highest clocks
        self._asked_s: dict[int, float] = {}
        self.reason: str | None = None
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._first = 0  # the GPU that is read first in the next window
        for gpu in gpus:
            try:
                sampler = open_sampler(gpu)
            except NotReadError as error:
                self.reason = error.reason
                continue
            self._samplers[gpu] = sampler
            self._open.callback(sampler.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def window(self, gpus: Sequence[int], *, counts: bool = True) -> "WindowSampler":
        """Start the readings of one timed window of these GPUs.

        `counts`: whether the window's rates are used. If so, a short window reads only one GPU, and the next
        window another. Otherwise every GPU is read, however long that takes.
        """
        self._asked_s |= dict.fromkeys(gpus, self.now())
        read = [gpu for gpu in gpus if gpu in self._samplers]
        first = self._first % len(read) if read else 0
        self._first += 1
        samplers = {gpu: self._samplers[gpu] for gpu in (*read[first:], *read[:first])}
        return WindowSampler(samplers, self.now, self._durations, 1 if counts else len(samplers))

    @property
    def reading_s(self) -> float:
        """The seconds that a reading of one GPU takes, or 0 before the first."""
        return statistics.median(self._durations) if self._durations else 0.0

    def was_idle(self, gpus: Sequence[int]) -> bool:
        """Return whether a GPU was idle long enough to have lowered its clocks."""
        now = self.now()
        return any(gpu in self._full and now - self._asked_s.get(gpu, now) > _RESTS_S for gpu in gpus)

    def learn(self, readings: WindowReadings) -> None:
        """Store the GPUs' clocks at the end of a window if they are the highest so far."""
        for gpu, last in _last(readings):
            if gpu not in self._full or not _is_slower(last, self._full[gpu]):
                self._full[gpu] = last

    def in_ramp_up(self, readings: WindowReadings) -> bool:
        """Return whether a GPU's clocks at the end of a window were lower than its highest so far."""
        return any(gpu in self._full and _is_slower(last, self._full[gpu]) for gpu, last in _last(readings))

    def accept(self, readings: WindowReadings) -> None:
        """Accept the clocks of a window as the highest: something else throttles the GPUs."""
        self._full |= dict(_last(readings))


class WindowSampler:
    """Collects the readings of one timed window. `take` is called repeatedly while the copies run.

    A call reads `at_once` GPUs. With one GPU, the end of the copies is noticed soon. `durations` collects the
    durations of readings.
    """

    def __init__(
        self,
        samplers: Mapping[int, GpuSampler],
        now: Callable[[], float],
        durations: deque[float],
        at_once: int = 1,
    ) -> None:
        self._samplers = samplers
        self._now = now
        self._durations = durations
        self._at_once = at_once
        self._round = list(samplers)
        self._next_s: float | None = None
        self._taken: dict[int, list[tuple[float, float, GpuSample]]] = {gpu: [] for gpu in samplers}

    def take(self) -> None:
        """Read the next GPU, or all GPUs. After a round of all GPUs, wait for a pause to pass."""
        if not self._round:
            if self._next_s is not None and self._now() < self._next_s:
                return
            self._round = list(self._samplers)
        for gpu in self._round[: self._at_once]:
            begun = self._now()
            samples = self._samplers[gpu].sample()
            ended = self._now()
            self._durations.append(ended - begun)
            self._taken[gpu] += [(begun, ended, sample) for sample in samples]
            self._next_s = ended + _PAUSE_S
        del self._round[: self._at_once]

    def readings(self, span: tuple[float, float] | None) -> WindowReadings:
        """Return the readings. `span`: when all copies ran; None: with interruptions, or unknown."""
        first, last = (span[0] - _CLOCK_S, span[1] + _CLOCK_S) if span else (0.0, -1.0)
        return {
            gpu: tuple(
                WindowReading(sample, inside=first <= begun and ended <= last)
                for begun, ended, sample in taken
            )
            for gpu, taken in self._taken.items()
        }


def conditions(gpus: Iterable[int], windows: Sequence[WindowReadings]) -> tuple[Conditions, ...]:
    """Return the conditions of each GPU in the counted windows: medians of the readings in them.

    If no reading is in a window, uses the readings next to them. The reasons of throttling are all reasons in
    any of these readings. A change of the link is used only in a window: between windows a link may be idle.
    """
    return tuple(_conditions(gpu, windows) for gpu in gpus)


def _conditions(gpu: int, windows: Sequence[WindowReadings]) -> Conditions:
    inside, beside = (
        [
            [reading.sample for reading in window.get(gpu, ()) if reading.inside == is_inside]
            for window in windows
        ]
        for is_inside in (True, False)
    )
    answers_inside, answers_beside = (
        [sample for window in samples for sample in window if not sample.silent]
        for samples in (inside, beside)
    )
    answers = answers_inside or answers_beside
    masks = [sample.throttle_mask for sample in answers if sample.throttle_mask is not None]
    mask = functools.reduce(operator.or_, masks) if masks else None
    pstates = [sample.pstate for sample in answers if sample.pstate is not None]
    powers = [sample.power_w for sample in answers if sample.power_w is not None]

    def middle(fact: str) -> int | None:
        known = [value for sample in answers if (value := getattr(sample, fact)) is not None]
        return statistics.median_low(known) if known else None

    return Conditions(
        gpu=gpu,
        pstate=max(pstates, key=lambda state: (pstates.count(state), _number(state))) if pstates else None,
        graphics_mhz=middle("graphics_mhz"),
        memory_mhz=middle("memory_mhz"),
        pcie_gen=middle("pcie_gen"),
        pcie_width=middle("pcie_width"),
        link_changes=sum(map(_link_changes, inside if answers_inside else beside)),
        power_w=statistics.median(powers) if powers else None,
        temperature_c=middle("temperature_c"),
        throttle_mask=mask,
        throttle_reasons=None if mask is None else decode_clock_events(mask),
        readings=len(answers_inside),
        readings_beside=len(answers_beside),
    )


def _last(readings: WindowReadings) -> list[tuple[int, GpuSample]]:
    return [(gpu, taken[-1].sample) for gpu, taken in readings.items() if taken]


def still_rising(windows: Sequence[WindowReadings]) -> int:
    """Return how many of the first windows were taken during clock ramp-up.

    Clocks ramp up in a window whose first reading of a GPU shows a slower P-state, lower clocks or an older
    link generation than the last reading of that GPU. Only the first windows are checked: clocks that fall
    later are part of the result.
    """
    rising = 0
    for gpu in {gpu for window in windows for gpu in window}:
        read = [(number, taken) for number, window in enumerate(windows) if (taken := window.get(gpu))]
        for number, taken in read[:-1]:
            then, now = taken[0].sample, read[-1][1][-1].sample
            if not (_under(then.graphics_mhz, now.graphics_mhz) or _is_slower(then, now)):
                break
            rising = max(rising, number + 1)
    return rising


def _is_slower(then: GpuSample, now: GpuSample) -> bool:
    """Return whether memory or link, which copies need, was slower. Core clocks follow the load."""
    return (
        _under(then.memory_mhz, now.memory_mhz)
        or (then.pcie_gen is not None and now.pcie_gen is not None and then.pcie_gen < now.pcie_gen)
        or _number(then.pstate) > _number(now.pstate) >= 0
    )


def _under(then: int | None, now: int | None) -> bool:
    return then is not None and now is not None and then < RISING_BELOW * now


def _number(pstate: str | None) -> int:
    """Return 2 for `P2`, or -1 if there is no P-state. P0 is the fastest."""
    digits = (pstate or "").removeprefix("P")
    return int(digits) if digits.isdecimal() else -1


def _link_changes(window: Sequence[GpuSample]) -> int:
    links = [
        (sample.pcie_gen, sample.pcie_width)
        for sample in window
        if sample.pcie_gen is not None and sample.pcie_width is not None
    ]
    return sum(before != after for before, after in pairwise(links))
