"""Runs a box: a run's watch samples its GPUs, and the events of the run give the result."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gputopo.probes import HostReader, RunWatch
from gputopo.report import document_text, run_document
from gputopo.runs import summarise
from gputopo.values.run.events import (
    Event,
    GpuSample,
    HostLoad,
    MachineSample,
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

CORE_MHZ, MEMORY_MHZ = 1800, 4000
_WHOLE_EVERY = 4  # samples: what changes slowly is not in each of them


class _HostReader(HostReader):
    """Reads the load of the simulated host."""

    def __init__(self) -> None:
        self.load = HostLoad(time_s=0.0, seconds=1.0)

    def note(self) -> None:
        """Nothing to note."""

    def read(self) -> HostLoad:
        return self.load


class Watched:
    """The watch of a run. `at`: the time; `show` sets the states of cards and host."""

    stop = None  # as of a watch in a child process: no call hung

    def __init__(self, box: Box) -> None:
        self._box = box
        several = len({device.rank for device in box.devices}) > 1
        # The GPUs of several hosts are the GPUs of one box, in order; their samples are split by host.
        self._gpus = {
            place: place if several else device.gpu
            for place, device in enumerate(box.devices)
            if device.gpu is not None
        }
        self.at = 0.0
        self.wall_s = BEGAN_S
        self._host = _HostReader()
        self._number = 0
        self.show(0)
        self.watch = RunWatch(list(self._gpus.values()), host=self._host, open_gpus=self._opened)

    def _opened(self, gpus: Sequence[int], others: Sequence[int]) -> Any:
        return self

    def observe(self) -> MachineSample:
        """Return a sample of the cards."""
        self._number += 1
        cards = ((gpu, self._cards[place], place) for place, gpu in self._gpus.items())
        gpus = tuple(
            sample_of(gpu, card, is_whole=self._number == 1 or (self._number + place) % _WHOLE_EVERY == 0)
            for gpu, card, place in cards
        )
        return MachineSample(time_s=self.wall_s, gpus=gpus)

    def close(self) -> None:
        """Nothing is open."""

    def show(self, step: int) -> None:
        """Set the machine to its state in a step."""
        self._cards = [self._box.card(tower, step) for tower in range(len(self._box.devices))]
        self._host.load = load_of(self._box.host(step), self.wall_s)

    def samples(self, until: float, step: int) -> Iterator[Event]:
        """Yield the samples that are due until this time, in a step."""
        while (due := self.at + self.watch.every_s) <= until:
            self.at = due
            self.wall_s = self._box.time_s(due, step)
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


def sample_of(gpu: int, card: Card, *, is_whole: bool) -> GpuSample:
    """Return what a watch reports about a GPU in this state. `is_whole`: with what changes slowly."""
    if card.lost:
        return GpuSample(gpu=gpu, lost=True)
    sample = GpuSample(
        gpu=gpu,
        graphics_mhz=round(CORE_MHZ * card.core),
        memory_mhz=round(MEMORY_MHZ * card.memory),
        power_w=180 * card.core,
        throttle_mask=card.throttle,
        gpu_utilization_percent=0,
        pcie_gen=card.gen,
    )
    if not is_whole:
        return sample
    return msgspec.structs.replace(
        sample,
        pcie_width=card.width,
        temperature_c=card.temperature,
        pstate="P0",
        power_limit_w=400.0,
        memory_used_mib=card.used_mib,
        throttled_s={},
        pcie_replays=card.replays,
        processes=1 + card.others,
        other_processes=card.others,
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
