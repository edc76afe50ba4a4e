"""A simulated training on a box whose physical state is scripted over its steps.

The pace follows from the state, by physics that the rules do not know: how much a lower clock costs, how much
another program takes. NVML shows the state, not the pace.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

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
from gputopo.values.run.verdict import Known
from tests.invented_runs import BEGAN_S, gpu_devices

POWER_CAP, THERMAL = 0x4, 0x20


@dataclass(frozen=True)
class Card:
    """State of a GPU in a step. Clocks are shares of the maximum; `hidden`: a factor of its pace.

    `busy`: share of its time that other programs take; `others`: their number; `link`: share of its PCIe rate
    that it does not share, whatever its width; `late_s`: additional seconds until its weights arrive.
    """

    core: float = 1.0
    memory: float = 1.0
    throttle: int = 0
    gen: int = 3
    width: int = 16
    link: float = 1.0
    busy: float = 0.0
    others: int = 0
    hidden: float = 1.0
    late_s: float = 0.0
    temperature: int = 66
    used_mib: int = 6000
    replays: int = 0
    lost: bool = False

    def pace(self, alpha: float, beta: float) -> float:
        """The pace as a share of a healthy card's; `alpha`, `beta`: as in a Box."""
        clocks = math.pow(self.core, alpha) * math.pow(self.memory, beta)
        return clocks * (1 - self.busy) * self.hidden


@dataclass(frozen=True)
class Host:
    """Load of the host in a step: shares of all cores, and what waits for them."""

    other_cpu: float = 0.01
    run_cpu: float = 0.30
    queue: float = 2.0
    memory_available: float = 0.60
    swap_bytes_per_s: float = 0.0


HEALTHY, IDLE = Card(), Host()
Cards = Callable[[int], Card]  # by step
CORES = 8
FULL_LINK = 3 * 16  # generation times width of a healthy card


def since(step: int, card: Card, until: int | None = None) -> Cards:
    """Return healthy cards, but `card` from a step on, until another one."""
    return lambda now: card if step <= now and (until is None or now < until) else HEALTHY


def always(card: Card) -> Cards:
    """Return the same card in all steps."""
    return lambda now: card


@dataclass
class Box:
    """What trains on what. Seconds are for a healthy card; noise is a standard deviation of logarithms.

    `alpha`, `beta`: share of a lower core or memory clock that is lost. `weights_s`: by tower. `waited_s`,
    `rest_s`, `host`: by step. `noise`: of each tower, with the share `memory` carried from step to step;
    `common`: of all towers of a step. `bursts`: chance that a burst of up
    to 15 steps starts in a tower. `collected`: steps between two garbage collections of a tower (0: none),
    each of which takes `collects_s`. `phases`: by the step that they precede. `ends_at`: the worker fails
    after this step. `unsampled`: steps without samples.
    `clock_set_s`: by step, how far the host's clock was set. `hosts`: load of the hosts of other ranks;
    default: `host`. `robbed`: a CPU device from whose share of the cores other programs take all their time.
    `known`: what the launcher knows of the box before the run.
    """

    devices: Sequence[Device] = field(default_factory=lambda: gpu_devices(4))
    backend: str = "gpu"
    steps: int = 400
    compute_s: float = 0.12
    speeds: Sequence[float] = ()
    alpha: float = 0.85
    beta: float = 0.1
    weights_s: float | Sequence[float] = 0.012
    rest_s: Callable[[int], float] = lambda step: 0.010
    waited_s: Callable[[int], float] = lambda step: 0.0
    noise: float = 0.01
    memory: float = 0.0
    common: float = 0.02
    bursts: float = 0.0
    collected: int = 0
    collects_s: float = 0.4
    phases: Mapping[int, str] = field(default_factory=dict)
    cards: Mapping[int, Cards] = field(default_factory=dict)
    host: Callable[[int], Host] = lambda step: IDLE
    hosts: Mapping[int, Callable[[int], Host]] = field(default_factory=dict)
    marks_end: Mapping[int, int] = field(default_factory=dict)
    ends_at: int | None = None
    unsampled: range = range(0)
    clock_set_s: Callable[[int], float] = lambda step: 0.0
    warmup: int = 5
    robbed: int | None = None
    known: Known = field(default_factory=Known)

    def card(self, tower: int, step: int) -> Card:
        """The state of a tower's GPU in a step."""
        return self.cards[tower](step) if tower in self.cards else HEALTHY

    def load(self, rank: int, step: int) -> Host:
        """The load of a host in a step."""
        return self.hosts.get(rank, self.host)(step)

    def trained(self, rng: random.Random) -> Iterator[tuple[float, Event]]:
        """Yield seconds since the start, and the event that the worker reports at that time."""
        state = [rng.gauss(0, self.noise) for _ in self.devices]
        burst = [0] * len(self.devices)
        now = 0.0
        for step in count(1 - self.warmup):
            if step > self.steps or (self.ends_at is not None and step > self.ends_at):
                return
            phase = self.phases.get(step)
            if phase is not None:
                yield now, PhaseBegun(time_s=self.time_s(now, step), phase=phase)
                now += 2.5
            for tower in range(len(state)):
                fresh = rng.gauss(0, self.noise) * math.sqrt(1 - self.memory**2)
                state[tower] = self.memory * state[tower] + fresh
                begins = rng.random() < self.bursts
                burst[tower] = rng.randrange(2, 16) if begins else max(0, burst[tower] - 1)
            one = self._step(step, rng, state, burst, 2.5 if phase is not None else 1.0)
            now += one.seconds
            yield now, msgspec.structs.replace(one, time_s=self.time_s(now, step))

    def time_s(self, now: float, step: int) -> float:
        """Seconds since the epoch by the host's clock."""
        return BEGAN_S + now + self.clock_set_s(step)

    def _step(
        self, step: int, rng: random.Random, state: Sequence[float], burst: Sequence[int], after_phase: float
    ) -> Step:
        common = math.exp(rng.gauss(0, self.common)) * after_phase
        marks, ends = [], [0.0]
        for tower, device in enumerate(self.devices):
            card = self.card(tower, step)
            compute_s = self._compute_s(tower, card) * common * math.exp(state[tower])
            compute_s *= 1.3 if burst[tower] else 1.0
            if self.collected and (step + 17 * tower) % self.collected == 0:
                compute_s += self.collects_s
            compute_s += self._stolen_s(self.load(device.rank, step), rng)
            if tower == self.robbed:  # other programs take their time from this device's share of the cores
                compute_s /= 1 - min(0.9, len(self.devices) * self.host(step).other_cpu)
            weights_s = self._weights_s(tower, card) * math.exp(rng.gauss(0, self.noise))
            if step <= self.marks_end.get(tower, step):
                marks.append(
                    TowerMarks(tower=device.tower, start_s=0.0, weights_s=weights_s, compute_s=compute_s)
                )
            ends.append(weights_s + compute_s)
        waited_s = self.waited_s(step) * math.exp(rng.gauss(0, 0.1))
        rest_s = self.rest_s(step) * math.exp(rng.gauss(0, 0.05))
        return Step(
            time_s=0.0,
            step=step,
            seconds=waited_s + max(ends) + rest_s,
            images=64 * len(self.devices),
            loss=1.0,
            marks=tuple(marks),
            waited_s=waited_s,
        )

    def _compute_s(self, tower: int, card: Card) -> float:
        speed = self.speeds[tower] if self.speeds else 1.0
        return self.compute_s / speed / card.pace(self.alpha, self.beta)

    def _weights_s(self, tower: int, card: Card) -> float:
        own = self.weights_s if isinstance(self.weights_s, int | float) else self.weights_s[tower]
        return own * FULL_LINK / (card.gen * card.width) / card.link / (1 - card.busy) + card.late_s

    def _stolen_s(self, host: Host, rng: random.Random) -> float:
        """Seconds that a tower's threads wait for a core or for their pages."""
        full = host.other_cpu + host.run_cpu > 1
        stolen = self.compute_s * rng.expovariate(2.0) * host.other_cpu if full else 0.0
        return stolen + (rng.expovariate(1 / 0.05) if host.swap_bytes_per_s else 0.0)


Factor = Callable[[int], float]  # of the time to compute, by step, counted from 1


def slower(percent: float) -> Factor:
    """Slower by `percent` of pace."""
    return lambda step: 1 / (1 - percent / 100)


def slower_since(step: int, percent: float, *, ramp: int = 1) -> Factor:
    """Slower from a step on, reached within `ramp` steps."""
    return lambda now: 1 / (1 - percent / 100 * min(1.0, max(0.0, (now - step + 1) / ramp)))


def levels(*of: tuple[int, float]) -> Factor:
    """Slower by a percentage of pace from each of some steps on."""
    return lambda now: 1 / (1 - next((percent for step, percent in reversed(of) if now >= step), 0.0) / 100)


def hogged(share: Factor, towers: int) -> Factor:
    """Slower because a program takes `share` of all the CPU's time from one tower's share of the cores."""
    return lambda step: 1 / (1 - min(0.9, towers * share(step)))


def flapping(period: int, slow: int, percent: float) -> Factor:
    """Slower in the last `slow` steps of each period."""
    return lambda step: 1 / (1 - percent / 100) if step % period >= period - slow else 1.0


@dataclass
class Trainer(Box):
    """A box without a watch. `slow`: factors of compute time by tower; `waits_s`: additional waits.

    `other_cpu`: share of all `cores` that other programs take, by step.
    """

    compute_s: float = 0.1
    weights_s: float | Sequence[float] = 0.01
    common: float = 0.03
    warmup: int = 0
    slow: dict[int, Factor] = field(default_factory=dict)
    waits_s: dict[int, Factor] = field(default_factory=dict)
    other_cpu: Factor | None = None
    cores: int = CORES
    seed: int = 0

    def card(self, tower: int, step: int) -> Card:
        """The state of a tower's GPU in a step."""
        factor = self.slow[tower](step) if tower in self.slow else 1.0
        late_s = self.waits_s[tower](step) if tower in self.waits_s else 0.0
        return Card(hidden=1 / factor, late_s=late_s)

    def events(self, count: int) -> Iterator[Event]:
        """The events of a run with `count` counted steps."""
        self.steps = count
        yield RunStarted(
            time_s=BEGAN_S, host="somewhere", spec={}, devices=tuple(self.devices), backend="gpu"
        )
        yield WarmupDone(time_s=BEGAN_S, steps=0, seconds=0.0)
        for _, event in self.trained(random.Random(self.seed)):
            yield event
            if isinstance(event, Step) and self.other_cpu is not None and event.step % 5 == 0:
                share, now = self.other_cpu(event.step), event.time_s
                load = HostLoad(time_s=now, seconds=1.0, cores=self.cores, other_cpu_share=share)
                yield Sample(time_s=now, gpus=(), host=load)
