"""A process that measures with the real engine on whatever libcuda.so.1 it finds; JSON in, JSON out."""

import contextlib
import sys
from collections.abc import Mapping
from functools import partial

import msgspec

from gputopo.probes.copy_jobs import CopyJob, CopyWindow
from gputopo.probes.cuda import blocking
from gputopo.probes.cuda import engine as engine_module
from gputopo.probes.cuda.door import Cuda, CudaError, NoCudaError
from gputopo.probes.cuda.engine import Engine
from gputopo.probes.cuda.gpus import SMALL_BYTES, EngineGpu
from gputopo.probes.cuda.host_memory import PINNED_BYTES
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.start import open_cuda
from gputopo.values.bandwidth import Failure
from gputopo.values.schema import as_text, from_text
from tests.kit.cuda.clock import double_now


def _on_device(card: EngineGpu) -> int:
    taken = card.source_bytes + card.destination_bytes
    return taken + SMALL_BYTES if taken else 0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured: jobs and the bytes of each copy, in order. `ordinals` empty: as CUDA counts.

    `interrupts`: jobs during whose copies Ctrl-C is pressed; after it, what there is is reported. `apart_s`:
    how far apart the streams of a GPU begin in each window, which the double cannot show. `spin_s`: the time
    after which a kernel that holds a stream ends by itself.
    """

    jobs: tuple[CopyJob, ...] = ()
    sizes: tuple[int, ...] = ()
    ordinals: Mapping[int, int] = {}
    node_cpus: Mapping[int, tuple[int, ...]] = {}
    patience_s: float = 5.0
    pinned_bytes: int = PINNED_BYTES
    interrupts: tuple[int, ...] = ()
    apart_s: float | None = None
    spin_s: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. `refused`: (reason, what, remedy) where CUDA does not start."""

    refused: tuple[str, str, str] | None = None
    driver_version: str | None = None
    devices: tuple[tuple[int, str | None, str, int], ...] = ()
    windows: tuple[CopyWindow, ...] = ()
    asked: tuple[int, ...] = ()  # how often each window called while_running
    hung: bool = False
    interrupted: bool = False
    unreturned: tuple[Failure, ...] = ()
    left: Mapping[int, int] = {}  # free bytes of each GPU after the engine gave everything back
    device_bytes: Mapping[int, int] = {}
    pinned_bytes: int = 0
    free_bytes: Mapping[int, int] = {}
    kernels: Mapping[int, str | None] = {}
    peers: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    ends: tuple[float, ...] = ()  # the double's clock after each window


def main() -> None:
    """Do one task from standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task, dec_hook=from_text)
    try:
        report = measured(task)
    except NoCudaError as error:
        report = Report(refused=(error.reason, error.what, error.hint))
    sys.stdout.buffer.write(msgspec.json.encode(report, enc_hook=as_text))


def measured(task: Task) -> Report:
    """Do a task. Raises NoCudaError."""
    if (apart_s := task.apart_s) is not None:
        vars(engine_module)["starts_apart_s"] = lambda _: apart_s
    if task.spin_s is not None:
        vars(blocking)["SPIN_S"] = task.spin_s
    windows: list[CopyWindow] = []
    asked: list[int] = []
    ends: list[float] = []
    with open_cuda() as cuda:
        ordinals = task.ordinals or {device.ordinal: device.ordinal for device in cuda.devices}
        with Engine(cuda, ordinals, task.node_cpus, task.patience_s, task.pinned_bytes) as engine:
            interrupted = False
            try:
                for number, (job, size) in enumerate(zip(task.jobs, task.sizes, strict=True)):
                    asked.append(0)
                    sizes = [size] * len(job.copies)
                    windows.append(engine.measure(job, sizes, partial(_asked, task, asked, number)))
                    ends.append(double_now())
            except KeyboardInterrupt:
                interrupted = True
            report = Report(
                driver_version=cuda.driver_version,
                devices=tuple((d.ordinal, d.pci_address, d.name, d.memory_bytes) for d in cuda.devices),
                windows=tuple(windows),
                ends=tuple(ends),
                notes=tuple(engine.notes),
                asked=tuple(asked),
                hung=engine.hung,
                interrupted=interrupted,
                unreturned=tuple(engine.unreturned),
                device_bytes={gpu: _on_device(card) for gpu, card in engine._gpus.of.items()},
                pinned_bytes=engine._gpus.host.pinned_bytes + BLOCK_BYTES * len(engine._gpus.of),
                free_bytes={gpu: engine.free_bytes(gpu) for gpu in ordinals},
                kernels={gpu: engine.supports(gpu, "kernel_read") for gpu in ordinals},
                peers=tuple((a, b) for a in ordinals for b in ordinals if engine.peer_access(a, b)),
            )
        return msgspec.structs.replace(report, left=_left(cuda, ordinals))


def _asked(task: Task, asked: list[int], number: int) -> None:
    asked[number] += 1
    if number in task.interrupts:
        raise KeyboardInterrupt


def _left(cuda: Cuda, ordinals: Mapping[int, int]) -> dict[int, int]:
    left: dict[int, int] = {}
    for gpu, ordinal in ordinals.items():
        with contextlib.suppress(CudaError):
            cuda.use(ordinal)
            left[gpu] = cuda.free_and_total()[0]
    return left


if __name__ == "__main__":
    main()
