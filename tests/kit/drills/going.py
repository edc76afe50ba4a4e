"""Runs a box: a run's watch reads the GPUs through the double of NVML, and its events give the result."""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from gputopo.probes import HostReader, RunWatch
from gputopo.report import document_text, run_document
from gputopo.runs import summarise
from gputopo.values.run.events import (
    Event,
    HostLoad,
    RankFailed,
    RunFinished,
    RunStarted,
    Sample,
    Step,
    WarmupDone,
    decode_line,
    encode_line,
    gpu_key,
)
from gputopo.values.run.result import Result
from tests.invented_runs import BEGAN_S
from tests.kit.drills.box import CORES, Box, Card, Host
from tests.kit.machines import WatchHere
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.specs import GpuSpec, LinkSpec, ProcessSpec

CORE_MHZ, MEMORY_MHZ = 1800, 4000
_OTHER_PIDS = (1, 2, 3)  # processes that exist but are not children of this one
_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0}
_MIB = 1 << 20


class _HostReader(HostReader):
    """Reads the load of the simulated host."""

    def __init__(self) -> None:
        self.load = HostLoad(time_s=0.0, seconds=1.0)

    def note(self) -> None:
        """Nothing to note."""

    def read(self) -> HostLoad:
        return self.load


class Watched:
    """The watch of a run over the double. `at`: the time; `show` sets what the double answers."""

    def __init__(self, box: Box) -> None:
        self._box = box
        several = len({device.rank for device in box.devices}) > 1
        # The GPUs of several hosts are the GPUs of one box, in order; their samples are split by host.
        self._gpus = {
            place: place if several else device.gpu
            for place, device in enumerate(box.devices)
            if device.gpu is not None
        }
        self._machine = replace(
            SCENARIOS["four"],
            gpus=tuple(
                replace(SCENARIOS["four"].gpus[0], address=f"0000:{16 + gpu:02x}:00.0", uuid=f"GPU-{gpu}")
                for gpu in range(1 + max(self._gpus.values(), default=0))
            ),
        )
        self.fake = FakeNvml(self._machine)
        self.fake.now = lambda: self.at
        self.at = 0.0
        self.wall_s = BEGAN_S
        self._host = _HostReader()
        self._shown: tuple[Card, ...] = ()
        gpus = list(self._gpus.values())

        def opened(asked: Sequence[int], others: Sequence[int]) -> Any:
            return WatchHere(asked, now=lambda: self.wall_s, clock=lambda: self.at)

        self._open = partial(RunWatch, gpus, host=self._host, open_gpus=opened)

    def open(self) -> None:
        """Start to watch, while the double is installed."""
        self.show(0)
        self.watch = self._open()

    def show(self, step: int) -> None:
        """Set the machine to its state in a step."""
        cards = tuple(self._box.card(tower, step) for tower in range(len(self._box.devices)))
        if cards != self._shown:
            gpus = list(self._machine.gpus)
            for place, gpu in self._gpus.items():
                gpus[gpu] = shown(gpus[gpu], cards[place])
            self.fake.scenario = replace(self._machine, gpus=tuple(gpus))
            self._shown = cards
        self._host.load = load_of(self._box.host(step), self.wall_s)

    def samples(self, until: float, step: int) -> Iterator[Event]:
        """Yield the samples that are due until this time, in a step."""
        while (due := self.at + self.watch.every_s) <= until:
            self.at = due
            self.wall_s = self._box.time_s(due, step) + self._box.skew_s
            self.show(step)
            if step not in self._box.unsampled:
                for event in self.watch.look():  # without GPUs it would read this machine's clock
                    event = msgspec.structs.replace(event, time_s=self.wall_s)
                    yield from self._of_hosts(event, step) if isinstance(event, Sample) else (event,)

    def _of_hosts(self, sample: Sample, step: int) -> Iterator[Sample]:
        """Yield the sample of each host, with the GPU numbers of that host."""
        for rank in sorted({device.rank for device in self._box.devices}):
            own = {
                gpu: self._box.devices[place].gpu or 0
                for place, gpu in self._gpus.items()
                if self._box.devices[place].rank == rank
            }
            load = load_of(self._box.load(rank, step), self.wall_s)
            yield msgspec.structs.replace(
                sample,
                rank=rank,
                gpus=tuple(
                    msgspec.structs.replace(one, gpu=own[one.gpu]) for one in sample.gpus if one.gpu in own
                ),
                host=None if sample.host is None else load,
                xids=tuple(
                    msgspec.structs.replace(one, gpu=own[one.gpu]) for one in sample.xids if one.gpu in own
                ),
            )


def shown(spec: GpuSpec, card: Card) -> GpuSpec:
    """Return what NVML reports about a GPU in this state, under load."""
    core, memory = round(CORE_MHZ * card.core), round(MEMORY_MHZ * card.memory)
    others = [ProcessSpec(pid, "compute", 500 * _MIB) for pid in _OTHER_PIDS[: card.others]]
    total = spec.memory_bytes[0]
    return replace(
        spec,
        clocks=(core, core, memory, core),
        throttle=card.throttle,
        link=LinkSpec(_GT_PER_S[card.gen], card.width, 8.0, 16),
        processes=(ProcessSpec(os.getpid(), "compute", card.used_mib * _MIB), *others),
        temperature=card.temperature,
        memory_bytes=(total, card.used_mib * _MIB, total - card.used_mib * _MIB),
        replays=card.replays,
        lost="calls" if card.lost else None,
        power_mw=round(180_000 * card.core),
    )


def load_of(host: Host, time_s: float) -> HostLoad:
    """Return the host's load as in a sample."""
    return HostLoad(
        time_s=time_s,
        seconds=1.0,
        cores=CORES,
        run_cpu_share=min(host.run_cpu, 1 - min(1.0, host.other_cpu)),
        other_cpu_share=host.other_cpu,
        run_queue=host.queue,
        memory_available_share=host.memory_available,
        swap_in_bytes_per_s=host.swap_bytes_per_s,
        swap_out_bytes_per_s=host.swap_bytes_per_s,
    )


def events_of(box: Box, seed: int) -> Iterator[Event]:
    """Yield the events of a run as its launcher gets them, from worker and watch, in order."""
    yield RunStarted(
        time_s=BEGAN_S,
        host="box",
        spec=_spec(box),
        devices=tuple(box.devices),
        backend=box.backend,
        known=box.known,
    )
    watched = Watched(box)
    with installed(watched.fake):
        watched.open()
        with watched.watch:
            for now, event in box.trained(random.Random(seed)):
                step = event.step if isinstance(event, Step) else 0
                yield from watched.samples(now, step)
                yield event
                if step == 0 and isinstance(event, Step):
                    yield WarmupDone(time_s=event.time_s, steps=box.warmup, seconds=now)
                if step == box.ends_at:
                    yield RankFailed(
                        time_s=event.time_s,
                        kind="error",
                        cause="device kernel image is invalid: GPU is lost",
                        remedy="see worker.log in the run folder",
                        exit_code=3,
                    )


def _spec(box: Box) -> dict[str, Any]:
    clocks = {"graphics": CORE_MHZ, "memory": MEMORY_MHZ}
    return {
        "model": "resnet50",
        "task": "train",
        "variable_update": "parameter_server",
        "ps_device": box.devices[0].device,
        "batch_size": 64,
        "num_batches": box.steps,
        "max_clocks_mhz": {gpu_key(one.rank, one.gpu): clocks for one in box.devices},
        "devices": msgspec.to_builtins(box.devices),
        "data": {"source": "python" if box.waited_s(box.steps) else "gpu"},
    }


def went(box: Box, seed: int) -> tuple[Result, str]:
    """Run the box; return the result, and the report's text with spaces for line breaks."""
    events = [decode_line(encode_line(event)) for event in events_of(box, seed)]
    failed = next((event for event in events if isinstance(event, RankFailed)), None)
    ended = RunFinished(
        time_s=events[-1].time_s,
        status="complete" if failed is None else "failed",
        exit_code=0 if failed is None else failed.exit_code,
        wall_s=events[-1].time_s - BEGAN_S,
    )
    result = summarise([*events, ended])
    return result, " ".join(document_text(run_document(result), 120).split())
