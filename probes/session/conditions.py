"""State of the GPUs while copies run: NVML readings inside the timed window."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, Self

from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.sampler import Monitor
from gputopo.reference.clock_events import decode
from gputopo.values.bandwidth import Conditions
from gputopo.values.run.events import GpuSample

# A clock below this share of what it is in the windows that count was still rising. Boost clocks of a GPU
# under load move by one to three steps of 15 MHz (NVIDIA, GPU Boost): about 3 % of 1500 MHz.
RISING_BELOW = 0.92
# A GPU that is idle for so long may have lowered its clocks. Ours: they wait for longer.
_RESTS_S = 1.0
# A reading of one GPU takes NVML up to some milliseconds of a core, so there is a pause between two.
_PAUSE_S = 0.003


class Sampler(Protocol):
    """What one GPU is asked through; `gputopo.probes.sampler.Monitor` is one."""

    def sample(self) -> tuple[GpuSample, ...]:
        """Return one sample a GPU. Never raises."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class WindowReadings(NamedTuple):
    """The readings of one timed window: by GPU, in the order they were taken."""

    by_gpu: Mapping[int, tuple[GpuSample, ...]] = {}

    def of(self, gpu: int) -> tuple[GpuSample, ...]:
        """Return the readings of one GPU."""
        return self.by_gpu.get(gpu, ())


class Meter:
    """Takes readings of chosen GPUs while copies run. `reason`: why it cannot, None where it can.

    `open_sampler` opens the readings of one GPU, and raises NotReadError where NVML cannot be used. Close
    it, or use it in a `with` block.
    """

    def __init__(
        self,
        gpus: Iterable[int],
        *,
        open_sampler: Callable[[int], Sampler] = lambda gpu: Monitor([gpu]),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.now = now
        self._open = contextlib.ExitStack()
        self._samplers: dict[int, Sampler] = {}
        self._full: dict[int, GpuSample] = {}  # the reading of each GPU at its highest clocks
        self._asked_s: dict[int, float] = {}
        self.reason: str | None = None
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

    def window(self, gpus: Sequence[int]) -> "Window":
        """Begin the readings of one timed window of these GPUs."""
        self._asked_s |= dict.fromkeys(gpus, self.now())
        return Window({gpu: self._samplers[gpu] for gpu in gpus if gpu in self._samplers}, self.now)

    def was_idle(self, gpus: Sequence[int]) -> bool:
        """Return whether one of the GPUs was idle so long that it may have lowered its clocks."""
        now = self.now()
        return any(gpu in self._full and now - self._asked_s.get(gpu, now) > _RESTS_S for gpu in gpus)

    def learn(self, readings: "WindowReadings") -> None:
        """Store the clocks of the GPUs at the end of a window, where they are the highest so far."""
        for gpu, taken in readings.by_gpu.items():
            if taken and (gpu not in self._full or not _is_slower(taken[-1], self._full[gpu])):
                self._full[gpu] = taken[-1]

    def in_ramp_up(self, readings: "WindowReadings") -> bool:
        """Return whether a GPU was slower at the end of a window than it was seen before."""
        return any(
            gpu in self._full and _is_slower(taken[-1], self._full[gpu])
            for gpu, taken in readings.by_gpu.items()
            if taken
        )

    def accept(self, readings: "WindowReadings") -> None:
        """Accept the clocks of a window as the highest there are: something else throttles the GPUs."""
        self._full |= {gpu: taken[-1] for gpu, taken in readings.by_gpu.items() if taken}


class Window:
    """Collects the readings of one timed window: `take` is called again and again while the copies run."""

    def __init__(self, samplers: Mapping[int, Sampler], now: Callable[[], float]) -> None:
        self._samplers = samplers
        self._now = now
        self._next_s: float | None = None
        self._taken: dict[int, list[GpuSample]] = {gpu: [] for gpu in samplers}

    def take(self) -> None:
        """Read each GPU once, unless the last reading was just now."""
        if not self._samplers or (self._next_s is not None and self._now() < self._next_s):
            return
        for gpu, sampler in self._samplers.items():
            self._taken[gpu] += sampler.sample()
        self._next_s = self._now() + _PAUSE_S

    @property
    def readings(self) -> WindowReadings:
        """What was read so far."""
        return WindowReadings({gpu: tuple(taken) for gpu, taken in self._taken.items()})


def conditions(gpus: Iterable[int], windows: Sequence[WindowReadings]) -> tuple[Conditions, ...]:
    """Return the conditions of each GPU over the windows that count: medians of all readings in them.

    Reasons of throttling are all that were seen in any reading. A change of the link counts within a window
    only: between two windows a link may rest.
    """
    return tuple(_of_gpu(gpu, [window.of(gpu) for window in windows]) for gpu in gpus)


def still_rising(windows: Sequence[WindowReadings]) -> int:
    """Return how many windows at the beginning were taken during clock ramp-up.

    Clocks ramp up in a window whose first reading shows a slower P-state, lower clocks or an older link
    generation than it has in the last window. Only the beginning is looked at: clocks that fall later on are
    part of the result.
    """
    sampled = [window for window in windows if any(window.by_gpu.values())]
    if not sampled:
        return 0
    full = sampled[-1]
    rising = 0
    for window in windows[:-1]:
        if not any(_below(window.of(gpu)[:1], full.of(gpu)) for gpu in full.by_gpu):
            break
        rising += 1
    return rising


def _below(first: Sequence[GpuSample], full: Sequence[GpuSample]) -> bool:
    if not first or not full:
        return False
    then, now = first[0], full[-1]
    return _under(then.graphics_mhz, now.graphics_mhz) or _is_slower(then, now)


def _is_slower(then: GpuSample, now: GpuSample) -> bool:
    """Return whether memory or link was slower, which copies need. Core clocks follow the load."""
    return (
        _under(then.memory_mhz, now.memory_mhz)
        or (then.pcie_gen is not None and now.pcie_gen is not None and then.pcie_gen < now.pcie_gen)
        or _number(then.pstate) > _number(now.pstate) >= 0
    )


def _under(then: int | None, now: int | None) -> bool:
    return then is not None and now is not None and then < RISING_BELOW * now


def _number(pstate: str | None) -> int:
    """Return the number of `P2`, -1 for none. P0 is the fastest."""
    digits = (pstate or "").removeprefix("P")
    return int(digits) if digits.isdecimal() else -1


def _of_gpu(gpu: int, windows: Sequence[Sequence[GpuSample]]) -> Conditions:
    readings = [sample for window in windows for sample in window if sample != GpuSample(gpu=sample.gpu)]
    masks = [sample.throttle_mask for sample in readings if sample.throttle_mask is not None]
    mask = None
    if masks:
        mask = 0
        for one in masks:
            mask |= one
    pstates = [sample.pstate for sample in readings if sample.pstate is not None]
    return Conditions(
        gpu=gpu,
        readings=len(readings),
        pstate=max(pstates, key=lambda state: (pstates.count(state), _number(state))) if pstates else None,
        graphics_mhz=_median(sample.graphics_mhz for sample in readings),
        memory_mhz=_median(sample.memory_mhz for sample in readings),
        pcie_gen=_median(sample.pcie_gen for sample in readings),
        pcie_width=_median(sample.pcie_width for sample in readings),
        link_changes=sum(map(_link_changes, windows)),
        power_w=_median_w(sample.power_w for sample in readings),
        temperature_c=_median(sample.temperature_c for sample in readings),
        throttle_mask=mask,
        throttle_reasons=None if mask is None else decode(mask),
    )


def _median(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return statistics.median_low(known) if known else None


def _median_w(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _link_changes(window: Sequence[GpuSample]) -> int:
    links = [
        (sample.pcie_gen, sample.pcie_width)
        for sample in window
        if sample.pcie_gen is not None and sample.pcie_width is not None
    ]
    return sum(before != after for before, after in pairwise(links))
