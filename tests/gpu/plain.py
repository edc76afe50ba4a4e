"""Copies timed as nvbandwidth does, and by the engine alone: `python -m tests.gpu.plain MACHINE TASK`.

MACHINE is a recording. TASK: `devices` (those of CUDA), `rates SECONDS` (after which no other copy begins),
`hold` (how streams are held back), `engine`, or `load` (copies inside the first GPU until it is ended).
"""

import contextlib
import ctypes
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from gputopo.probes import Copy, CopyJob
from gputopo.probes.cuda import Cuda, CudaError, Engine, NoCudaError, grid, open_cuda
from gputopo.probes.nvml import Monitor
from gputopo.values.ends import End
from gputopo.values.index_ranges import parse_cpus
from gputopo.values.machine import Gpu, Machine
from gputopo.values.schema import decode

MIB = 2**20
DOUBLE = os.environ.get("GPUTOPO_DOUBLE")  # the machine of the kit, where copies cost the host's time
# As nvbandwidth has them.
BYTES, LOOPS, SAMPLES = (512 * MIB, 16, 3) if DOUBLE is None else (64 * MIB, 8, 1)
_REPEATS = 9 if DOUBLE is None else 2
_RELEASES = 20

Way = tuple[int, Callable[[Any], None]]  # CUDA's number of the GPU that acts, a copy in a stream of it


def timed(cuda: Cuda, ways: Sequence[Way]) -> float:
    """Return the GB/s of all ways at once: the median of three times 16 copies, after one more time."""
    streams = []
    for acting, _ in ways:
        cuda.use(acting)
        streams.append((cuda.new_stream(), cuda.new_event(), cuda.new_event()))
    found: list[float] = []
    for _ in range(SAMPLES + 1):
        for (acting, move), (stream, start, end) in zip(ways, streams, strict=True):
            cuda.use(acting)
            cuda.ask("cuEventRecord", start, stream)
            for _ in range(LOOPS):
                move(stream)
            cuda.ask("cuEventRecord", end, stream)
        while not all(cuda.happened(end) for _, _, end in streams):
            time.sleep(0.001)
        found.append(sum(LOOPS * BYTES / cuda.seconds_between(start, end) / 1e9 for _, start, end in streams))
    return median(found[1:])


class Plain:
    """Buffers of one GPU, and its copies with the host (`up`, `down`) and `inside` its memory."""

    def __init__(self, cuda: Cuda, ordinal: int, gpu: Gpu) -> None:
        self.cuda, self.ordinal = cuda, ordinal
        with contextlib.suppress(OSError):  # host memory near the GPU, as nvbandwidth takes it
            os.sched_setaffinity(0, parse_cpus(gpu.cpu_affinity or "") or os.sched_getaffinity(0))
        cuda.use(ordinal)
        self.source, self.target = cuda.allocate(BYTES), cuda.allocate(BYTES)
        sent, received = cuda.allocate_host(BYTES), cuda.allocate_host(BYTES)
        self.kernel = cuda.load_kernels()[1]["gputopo_copy"]
        self.up = self._way("cuMemcpyHtoDAsync", self.target, sent)
        self.down = self._way("cuMemcpyDtoHAsync", received, self.source)
        self.inside = self._way("cuMemcpyDtoDAsync", self.target, self.source)

    def _way(self, function: str, to: int, source: int) -> Way:
        return self.ordinal, lambda stream: self.cuda.ask(function, to, source, BYTES, stream)

    def to(self, other: "Plain", method: str) -> Way:
        """Return the copy to another GPU by a method, whose peer access is opened. Raises CudaError."""
        acting, reached = (other, self) if method.endswith("_read") else (self, other)
        self.cuda.open_peer(acting.ordinal, reached.ordinal)
        if method.startswith("kernel"):
            chip = next(one for one in self.cuda.devices if one.ordinal == acting.ordinal)
            words, threads = BYTES // 8, grid(chip.multiprocessors, BYTES // 8)
            given = (other.target, self.source, words)
            return acting.ordinal, lambda stream: self.cuda.launch(acting.kernel, stream, given, threads)
        ends = (other.ordinal, other.target), (self.ordinal, self.source)
        return acting.ordinal, lambda stream: self.cuda.copy_to_peer(*ends, BYTES, stream)


def rates(
    cuda: Cuda, machine: Machine, ordinals: Mapping[int, int], seconds: float
) -> Iterator[dict[str, object]]:
    """Yield the rate of every copy for which there is time."""
    names = ("kind", "source", "destination", "method", "gb_per_s")
    until = time.monotonic() + seconds
    gpus: dict[int, Plain] = {}
    for gpu in machine.gpus:
        if gpu.index not in ordinals or time.monotonic() > until:
            continue
        index, one = gpu.index, Plain(cuda, ordinals[gpu.index], gpu)
        gpus[index] = one
        place, engine = End.of_gpus(index), "copy_engine"
        yield dict(zip(names, ("h2d", "host", place, engine, timed(cuda, [one.up])), strict=True))
        yield dict(zip(names, ("d2h", place, "host", engine, timed(cuda, [one.down])), strict=True))
        both = timed(cuda, [one.up, one.down])
        yield dict(zip(names, ("bidirectional", "host", place, engine, both), strict=True))
        inside = 2 * timed(cuda, [one.inside])
        yield dict(zip(names, ("d2d_local", place, place, engine, inside), strict=True))
    for (a, one), (b, other) in itertools.permutations(gpus.items(), 2):
        for method in ("copy_engine", "copy_engine_read", "kernel_read", "kernel_write"):
            if time.monotonic() > until:
                return
            with contextlib.suppress(CudaError):  # no peer access: nothing to compare
                rate = timed(cuda, [one.to(other, method)])
                ends = End.of_gpus(a), End.of_gpus(b)
                yield dict(zip(names, ("p2p_direct", *ends, method, rate), strict=True))


def engine_alone(engine: Engine, gpu: int) -> dict[str, float]:
    """Return how far apart streams begin, the rates in and beyond the L2, and beside readings of NVML."""
    place, cache = End.of_gpus(gpu), engine.l2_bytes(gpu) or 0
    up = Copy(kind="h2d", source=End("host"), destination=place, pinned=True)
    down = Copy(kind="d2h", source=place, destination=End("host"), pinned=True)
    both = CopyJob(kind="bidirectional", copies=(up, down))
    inside = CopyJob(kind="d2d_local", copies=(Copy(kind="d2d_local", source=place, destination=place),))
    windows = [engine.measure(both, (64 * MIB, 64 * MIB)) for _ in range(_REPEATS)]

    def rate(size: int, while_running: Callable[[], None] | None = None) -> float:
        found = [engine.measure(inside, (size,), while_running) for _ in range(_REPEATS)]
        return median(one.copies[0].gb_per_s for one in found)

    beyond = max(256 * MIB, 4 * cache)
    with Monitor([gpu]) as monitor:

        def sample() -> None:
            monitor.sample()

        read = rate(beyond, sample)
    skew = max(one.skew_s / one.copies[0].seconds for one in windows)
    return {
        "gpu": gpu,
        "skew": skew,
        "alone": rate(beyond),
        "read": read,
        "small": rate(max(cache // 2, MIB)),
    }


def holding(cuda: Cuda, gpu: int, ordinal: int) -> dict[str, object]:
    """Return how the engine holds the streams of a GPU back, and how long each way takes to release one."""
    up = Copy(kind="h2d", source=End("host"), destination=End.of_gpus(gpu), pinned=True)
    with Engine(cuda, {gpu: ordinal}) as engine:
        (copy,) = engine.measure(CopyJob(kind="h2d", copies=(up,)), (MIB,)).copies
        notes = engine.notes
    refused = copy.failure and copy.failure.says
    by_kernel = any(note.startswith("streams were held back by a kernel") for note in notes)
    way = None if refused else "a kernel" if by_kernel else "cuStreamWaitValue32"
    cuda.use(ordinal)
    word = cuda.allocate_host(4096, mapped=True)
    view, stream, event = cuda.device_view(word), cuda.new_stream(), cuda.new_event()

    def released_us(block: Callable[[int], None]) -> float:
        times = []
        for value in range(1, _RELEASES + 1):
            ctypes.c_uint32.from_address(word).value = 0
            block(value)
            cuda.ask("cuEventRecord", event, stream)
            time.sleep(0.002)  # so that the stream waits
            begun = time.perf_counter()
            ctypes.c_uint32.from_address(word).value = value
            while not cuda.happened(event):
                pass
            times.append(1e6 * (time.perf_counter() - begun))
        return median(times)

    ways: dict[str, Callable[[int], None]] = {
        "cuStreamWaitValue32": lambda value: cuda.wait_for_word(stream, view, value)
    }
    with contextlib.suppress(CudaError):
        hold = cuda.load_kernels()[1]["gputopo_hold"]
        ways["a kernel"] = lambda value: cuda.launch(hold, stream, (view, value, 10**9), (1, 1))
    released: dict[str, float] = {}
    for name, block in ways.items():
        with contextlib.suppress(CudaError):
            released[name] = released_us(block)
    return {"gpu": gpu, "way": way, "refused": refused, "notes": [*notes], "released_us": released}


def devices(cuda: Cuda) -> dict[str, object]:
    """Return the devices that CUDA shows."""
    found = msgspec.to_builtins(cuda.devices)
    return {"refused": None, "driver": cuda.driver_version, "doubt": cuda.doubt, "devices": found}


def load(cuda: Cuda, ordinal: int) -> None:
    """Copy inside a GPU until this process is ended."""
    cuda.use(ordinal)
    source, target, stream = cuda.allocate(BYTES), cuda.allocate(BYTES), cuda.new_stream()
    print("begun", flush=True)
    while True:
        cuda.ask("cuMemcpyDtoDAsync", target, source, BYTES, stream)
        cuda.ask("cuStreamSynchronize", stream)


def _double(name: str | None) -> contextlib.AbstractContextManager[object]:
    """Put the double of NVML in place of the driver, for a machine of the kit."""
    if name is None:
        return contextlib.nullcontext()
    from tests.kit.cuda.layouts import named
    from tests.kit.nvml import FakeNvml, installed

    return installed(FakeNvml(named(name)))


def found_by(task: str, cuda: Cuda, machine: Machine, seconds: float) -> object:
    """Run a task and return what it found."""
    by_address = {device.pci_address: device.ordinal for device in reversed(cuda.devices)}
    gpus = [gpu for gpu in machine.gpus if gpu.pci_address in by_address]
    ordinals = {gpu.index: by_address[gpu.pci_address] for gpu in gpus}
    if task == "load":
        load(cuda, next(iter(ordinals.values())))
    if task == "devices":
        return devices(cuda)
    if task == "rates":
        return list(rates(cuda, machine, ordinals, seconds))
    if task == "hold":
        return [holding(cuda, gpu, ordinal) for gpu, ordinal in ordinals.items()]
    with Engine(cuda, ordinals) as engine:
        return [engine_alone(engine, gpu) for gpu in ordinals]


def main(recording: str, task: str, seconds: str = "inf") -> None:
    """Run one task, and print what it found as JSON."""
    machine = decode(Path(recording).read_bytes(), Machine, origin=recording)
    try:
        with _double(DOUBLE), open_cuda() as cuda:
            print(json.dumps(found_by(task, cuda, machine, float(seconds))))
    except NoCudaError as error:
        if task != "devices":
            raise
        print(json.dumps({"refused": error.says}))


if __name__ == "__main__":
    main(*sys.argv[1:])
