"""A simulated trainer with faults that are scripted over its steps, for tests and the benchmark."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gputopo.values.run.events import (
    Device,
    Event,
    HostLoad,
    PhaseBegun,
    RunStarted,
    Sample,
    Step,
    TowerMarks,
    WarmupDone,
)
from tests.invented_runs import BEGAN_S, gpu_devices

Factor = Callable[[int], float]  # of the time to compute, by step from 1


def always(percent: float) -> Factor:
    """Slower by so many percent of pace."""
    return lambda step: 1 / (1 - percent / 100)


def since(step: int, percent: float, *, ramp: int = 1) -> Factor:
    """Slower from a step on, reached within `ramp` steps."""
    return lambda now: 1 / (1 - percent / 100 * min(1.0, max(0.0, (now - step + 1) / ramp)))


def levels(*of: tuple[int, float]) -> Factor:
    """Slower by so many percent from each of some steps on."""
    return lambda now: 1 / (1 - next((percent for step, percent in reversed(of) if now >= step), 0.0) / 100)


def hogged(share: Factor, towers: int) -> Factor:
    """Slower by a program that takes a share of all the CPU's time from the part of one of the towers."""
    return lambda step: 1 / (1 - min(0.9, towers * share(step)))


def flapping(period: int, slow: int, percent: float) -> Factor:
    """Slower in the last `slow` steps of each period."""
    return lambda step: 1 / (1 - percent / 100) if step % period >= period - slow else 1.0


@dataclass
class Trainer:
    """Synchronous towers that compute `compute_s` with noise of shares; `slow`: factors by tower.

    `noise`: own, per step and tower; `common`: of a step; `memory`: correlation of the own noise between
    steps; `bursts`: chance that a burst of up to 15 steps with 1.5 times the time begins in a tower.
    `pauses`: steps before which a phase is begun, and that take three times as long. `gone`: last step with
    marks of a tower. `other_cpu`: share of all `cores` that other programs take, by step.
    """

    devices: Sequence[Device] = field(default_factory=lambda: gpu_devices(4))
    compute_s: float = 0.1
    noise: float = 0.01
    common: float = 0.03
    memory: float = 0.0
    bursts: float = 0.0
    slow: dict[int, Factor] = field(default_factory=dict)
    waits_s: dict[int, Callable[[int], float]] = field(default_factory=dict)
    pauses: frozenset[int] = frozenset()
    gone: dict[int, int] = field(default_factory=dict)
    other_cpu: Factor | None = None
    cores: int = 8
    clock_skew_s: Callable[[int], float] = lambda step: 0.0
    seed: int = 0

    def events(self, count: int) -> Iterator[Event]:
        """The events of a run with so many counted steps."""
        rng = random.Random(self.seed)
        state = [rng.gauss(0, self.noise) for _ in self.devices]
        burst = [0] * len(self.devices)
        now = BEGAN_S
        yield RunStarted(time_s=now, host="somewhere", spec={}, devices=tuple(self.devices), backend="gpu")
        yield WarmupDone(time_s=now, steps=0, seconds=0.0)
        for step in range(1, count + 1):
            paused = step in self.pauses
            if paused:
                yield PhaseBegun(time_s=now, phase="evaluation")
            one = self._step(step, rng, state, burst, 3.0 if paused else 1.0)
            now += one.seconds
            yield one
            if self.other_cpu is not None and step % 5 == 0:
                load = HostLoad(
                    time_s=now, seconds=1.0, cores=self.cores, other_cpu_share=self.other_cpu(step)
                )
                yield Sample(time_s=now, gpus=(), host=load)

    def _step(
        self, number: int, rng: random.Random, state: list[float], burst: list[int], times: float
    ) -> Step:
        common = times * math.exp(rng.gauss(0, self.common))
        marks = []
        for place, device in enumerate(self.devices):
            fresh = self.noise * math.sqrt(1 - self.memory**2)
            state[place] = self.memory * state[place] + rng.gauss(0, fresh)
            if rng.random() < self.bursts:
                burst[place] = rng.randrange(1, 16)
            burst[place] = max(0, burst[place] - 1)
            tower = device.tower
            factor = self.slow[tower](number) if tower in self.slow else 1.0
            compute_s = (
                self.compute_s * common * factor * math.exp(state[place]) * (1.5 if burst[place] else 1)
            )
            waits_s = 0.1 * self.compute_s * math.exp(rng.gauss(0, self.noise))
            waits_s += self.waits_s[tower](number) if tower in self.waits_s else 0.0
            if number <= self.gone.get(tower, number):
                marks.append(TowerMarks(tower=tower, start_s=0.0, weights_s=waits_s, compute_s=compute_s))
        seconds = max(mark.weights_s + mark.compute_s for mark in marks) + 0.1 * self.compute_s
        return Step(
            time_s=BEGAN_S + number * self.compute_s + self.clock_skew_s(number),
            step=number,
            seconds=seconds,
            images=64 * len(self.devices),
            loss=1.0,
            marks=tuple(marks),
        )
