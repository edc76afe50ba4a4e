"""Runs that never happened, as events: devices, steps with noise that is drawn from a seed, whole streams."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gputopo.runs import Judgement, Summary
from gputopo.values.run.events import (
    Device,
    Event,
    GpuSample,
    ModelBuilt,
    PlacementChecked,
    ReplicasCompared,
    RunFinished,
    RunStarted,
    Sample,
    Step,
    TowerMarks,
    WarmupDone,
)
from gputopo.values.run.verdict import Known

BEGAN_S = 1_700_000_000.0
SAYS = "A rehearsal of 7gforce on CPU devices."


def cpu_devices(count: int) -> tuple[Device, ...]:
    return tuple(
        Device(tower=tower, device=f"/CPU:{tower}", hop_to_variables="host" if tower else "local")
        for tower in range(count)
    )


def gpu_devices(count: int, name: str = "NVIDIA GeForce GTX 1070") -> tuple[Device, ...]:
    return tuple(
        Device(
            tower=tower,
            device=f"/GPU:{tower}",
            gpu=tower,
            gpu_name=name,
            hop_to_variables="PIX" if tower else "local",
        )
        for tower in range(count)
    )


def on_hosts(*of_each: Sequence[Device], hop: str | None = None) -> tuple[Device, ...]:
    """The devices of hosts n1, n2, ... in one run; `hop`: to the variables, of all."""
    devices = [(rank, number, one) for rank, own in enumerate(of_each) for number, one in enumerate(own)]
    return tuple(
        msgspec.structs.replace(
            one,
            tower=tower,
            device=f"/job:worker/task:{rank}/device:{one.device[1:4]}:{number}",
            rank=rank,
            host=f"n{rank + 1}",
            hop_to_variables=hop,
        )
        for tower, (rank, number, one) in enumerate(devices)
    )


def judged_events(
    devices: Sequence[Device],
    events: Iterable[Event],
    *,
    batches: Sequence[int] = (),
    mode: str | None = None,
    known: Known | None = None,
) -> Judgement:
    """The verdicts on the events of a run on these devices, after its start.

    `batches`: examples of each device; none: equal ones. `mode`: its `variable_update`.
    """
    spec = {"batch_size": list(batches), "variable_update": mode}
    summary = Summary()
    summary.add(
        RunStarted(
            time_s=BEGAN_S,
            host="somewhere",
            spec=spec,
            devices=tuple(devices),
            backend="gpu",
            known=known or Known(),
        )
    )
    for event in events:
        if not isinstance(event, RunStarted):
            summary.add(event)
    return summary.judgement()


def judged_steps(devices: Sequence[Device], steps: Sequence[Step], batches: Sequence[int] = ()) -> Judgement:
    """The verdicts on these steps. `batches`: examples of each device; none: equal ones."""
    return judged_events(devices, steps, batches=batches)


@dataclass(frozen=True)
class Noise:
    """Noise of one run: standard deviations of logarithms, except `stalls`, the chance of a tenfold time.

    `common`: of all towers in a step together; `own`: of each tower; `drift`: of each tower too, with a
    correlation of `memory` from one step to the next.
    """

    common: float = 0.3
    own: float = 0.05
    stalls: float = 0.02
    drift: float = 0.0
    memory: float = 0.0


@dataclass
class InventedRun:
    """Towers that compute 100 ms and wait 10 ms for weights; `slow`: share of pace lost, by tower."""

    towers: int
    slow: Mapping[int, float] = field(default_factory=dict)
    waits: Mapping[int, float] = field(default_factory=dict)  # by tower, seconds more
    noise: Noise = field(default_factory=Noise)
    seed: int = 0

    def steps(self, count: int, *, first: int = 1) -> list[Step]:
        rng = random.Random(self.seed)
        noise = self.noise
        drifts = [rng.gauss(0, noise.drift) for _ in range(self.towers)]
        steps = []
        for number in range(first, first + count):
            common = math.exp(rng.gauss(0, noise.common))
            fresh = noise.drift * math.sqrt(1 - noise.memory**2)
            drifts = [noise.memory * drift + rng.gauss(0, fresh) for drift in drifts]
            steps.append(step(number, [self._marks(t, common, drifts[t], rng) for t in range(self.towers)]))
        return steps

    def _marks(self, tower: int, common: float, drift: float, rng: random.Random) -> tuple[float, float]:
        compute = 0.1 * common * math.exp(rng.gauss(0, self.noise.own) + drift)
        if rng.random() < self.noise.stalls:
            compute *= 10
        weights = 0.01 * common * math.exp(rng.gauss(0, self.noise.own)) + self.waits.get(tower, 0.0)
        return weights, compute / (1 - self.slow.get(tower, 0.0))


def step(
    number: int,
    marks: Sequence[tuple[float, float]],
    *,
    seconds: float | None = None,
    images: int | None = None,
    time_s: float | None = None,
    loss: float | None = 1.0,
) -> Step:
    """One step from each tower's (weights, compute) in seconds. A step takes as long as its slowest tower."""
    took = max(map(sum, marks)) if seconds is None else seconds
    return Step(
        time_s=BEGAN_S + number if time_s is None else time_s,
        step=number,
        seconds=took,
        images=8 * len(marks) if images is None else images,
        loss=loss,
        marks=tuple(
            TowerMarks(tower=tower, start_s=0.0, weights_s=weights, compute_s=compute)
            for tower, (weights, compute) in enumerate(marks)
        ),
    )


def stream(
    devices: Sequence[Device], steps: Sequence[Step], *, rehearsal: bool = False, status: str = "complete"
) -> Iterator[Event]:
    """All events of a run with these counted steps, after a warm-up of two; times follow from the steps."""
    gpu = devices[0].device.startswith("/GPU")
    spec = {
        "model": "alexnet",
        "variable_update": "parameter_server",
        "ps_device": devices[0].device,
        "batch_size": 8,
        "num_batches": len(steps),
        "num_warmup_batches": 2,
        "data_format": "NHWC",
        "max_clocks_mhz": {str(d.gpu): {"graphics": 2000, "memory": 4000} for d in devices},
    }
    now = BEGAN_S
    yield RunStarted(
        time_s=now,
        host="somewhere",
        spec=spec,
        devices=tuple(devices),
        backend="gpu" if gpu else "cpu",
        rehearsal_of="7gforce" if rehearsal else None,
        says=(SAYS,) if rehearsal else (),
        versions={"gputopo": "0.1.0"},
    )
    yield ModelBuilt(
        time_s=now + 4,
        parameters=61_842_345,
        parameter_bytes=247_369_380,
        import_s=3.0,
        build_s=1.0,
        versions={"tensorflow": "2.21.0"},
    )
    yield PlacementChecked(
        time_s=now + 9,
        variables={devices[0].device: 247_369_380},
        ops={device.device: 200 for device in devices},
        first_step_s=5.0,
    )
    now += 9
    for number in (-1, 0):
        now += 0.5
        yield step(number, [(0.1, 0.4)] * len(devices), time_s=now, loss=7.0)
    yield WarmupDone(time_s=now, steps=2, seconds=1.0)
    for counted in steps:
        now += counted.seconds
        yield msgspec.structs.replace(counted, time_s=now)
        if gpu:
            yield Sample(
                time_s=now,
                gpus=tuple(
                    GpuSample(gpu=d.gpu, graphics_mhz=1700, memory_mhz=3800)
                    for d in devices
                    if d.gpu is not None
                ),
            )
    if len(devices) > 1:
        yield ReplicasCompared(time_s=now, largest_difference=0.0)
    yield RunFinished(time_s=now, status=status, exit_code=0, wall_s=now - BEGAN_S)
