"""A process that measures with the real engine on whatever libcuda.so.1 it finds; JSON in, JSON out."""

import contextlib
import sys
from collections.abc import Mapping
from functools import partial

import msgspec

from gputopo.probes import CopyJob, CopyWindow
from gputopo.probes.cuda import BLOCK_BYTES, Cuda, CudaError, Engine, NoCudaError, open_cuda
from gputopo.values.bandwidth import Failure
from gputopo.values.schema import as_text, from_text


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured: jobs and the bytes of each copy, in order. `ordinals` empty: as CUDA counts.

    `interrupts`: jobs during whose copies Ctrl-C is pressed; after it, what there is is reported. `apart_s`:
    how far apart events are that happen at once in the double, such as the starts of streams.
    """

    jobs: tuple[CopyJob, ...] = ()
    sizes: tuple[int, ...] = ()
    ordinals: Mapping[int, int] = {}
    node_cpus: Mapping[int, tuple[int, ...]] = {}
    patience_s: float = 5.0
    interrupts: tuple[int, ...] = ()
    apart_s: float = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. `refused`: (reason, what, remedy) where CUDA does not start."""

    refused: tuple[str, str, str] | None = None
    driver_version: str | None = None
    devices: tuple[tuple[int, str | None], ...] = ()
    windows: tuple[CopyWindow, ...] = ()
    asked: tuple[int, ...] = ()  # how often each window called while_running
    hung: bool = False
    interrupted: bool = False
    unreturned: tuple[Failure, ...] = ()
    left: Mapping[int, int] = {}  # free bytes of each GPU after the engine gave everything back
    pinned_bytes: int = 0
    free_bytes: Mapping[int, int] = {}
    kernels: Mapping[int, str | None] = {}
    peers: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()


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
    windows: list[CopyWindow] = []
    asked: list[int] = []
    with open_cuda() as cuda:
        if task.apart_s:
            _begin_apart(cuda, task.apart_s)
        ordinals = task.ordinals or {device.ordinal: device.ordinal for device in cuda.devices}
        with Engine(cuda, ordinals, task.node_cpus, task.patience_s) as engine:
            interrupted = False
            try:
                for number, (job, size) in enumerate(zip(task.jobs, task.sizes, strict=True)):
                    asked.append(0)
                    sizes = [size] * len(job.copies)
                    windows.append(engine.measure(job, sizes, partial(_asked, task, asked, number)))
            except KeyboardInterrupt:
                interrupted = True
            report = Report(
                driver_version=cuda.driver_version,
                devices=tuple((device.ordinal, device.pci_address) for device in cuda.devices),
                windows=tuple(windows),
                notes=tuple(engine.notes),
                asked=tuple(asked),
                hung=engine.hung,
                interrupted=interrupted,
                unreturned=tuple(engine.unreturned),
                pinned_bytes=engine.gpus.host.pinned_bytes + BLOCK_BYTES * len(engine.gpus.by_index),
                free_bytes={gpu: engine.free_bytes(gpu) for gpu in ordinals},
                kernels={gpu: engine.supports(gpu, "kernel_read") for gpu in ordinals},
                peers=tuple((a, b) for a in ordinals for b in ordinals if engine.peer_access(a, b)),
            )
        return msgspec.structs.replace(report, left=_left(cuda, ordinals))


def _begin_apart(cuda: Cuda, seconds: float) -> None:
    between = cuda.seconds_between
    vars(cuda)["seconds_between"] = lambda first, second: (
        between(first, second) or (0.0 if first is second else seconds)
    )


def _asked(task: Task, asked: list[int], number: int) -> None:
    asked[number] += 1
    if number in task.interrupts:
        raise KeyboardInterrupt


def _left(cuda: Cuda, ordinals: Mapping[int, int]) -> dict[int, int]:
    left: dict[int, int] = {}
    for gpu, ordinal in ordinals.items():
        with contextlib.suppress(CudaError):
            cuda.use(ordinal)
            left[gpu] = cuda.free_bytes()
    return left


if __name__ == "__main__":
    main()
