"""Small programs over real `cuda.bindings` calls: `python -m tests.kit.cuda.driving PROGRAM JSON`.

Each runs in its own process that finds the double, and prints what it saw as JSON. `Box` gives answers
of calls without their code, and raises `Refused` with the code's number.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cuda.bindings import driver

MIB = 1 << 20
MASK = 2**64 - 1
PTX = ".version 6.4\n.target sm_50\n.address_size 64\n" + "".join(
    f".visible .entry {name}() {{ ret; }}\n"
    for name in ("gputopo_fill", "gputopo_check", "gputopo_copy", "gputopo_chase")
)


class Refused(Exception):  # noqa: N818 - it is an answer here
    """A call that returned another code than 0."""


def asked(answer: Sequence[Any]) -> Any:
    if int(answer[0]):
        raise Refused(int(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


def refused(call: Callable[[], Any]) -> int:
    """Return the code with which something is refused, 0 if it is not."""
    try:
        call()
    except Refused as code:
        return int(code.args[0])
    return 0


class Box:
    """All GPUs with a context and a stream each, and a word of pinned memory that holds streams."""

    def __init__(self) -> None:
        asked(driver.cuInit(0))
        self.devices = [asked(driver.cuDeviceGet(gpu)) for gpu in range(asked(driver.cuDeviceGetCount()))]
        self.contexts = [asked(driver.cuDevicePrimaryCtxRetain(device)) for device in self.devices]
        self.use(0)
        self.flag = int(asked(driver.cuMemHostAlloc(4096, 1)))
        self.released(0)

    def use(self, gpu: int) -> None:
        asked(driver.cuCtxSetCurrent(self.contexts[gpu]))

    def released(self, value: int) -> None:
        ctypes.c_uint32.from_address(self.flag).value = value

    def stream(self, gpu: int, held: bool = False) -> Any:
        self.use(gpu)
        stream = asked(driver.cuStreamCreate(1))
        if held:
            asked(driver.cuStreamWaitValue32(stream, self.flag, 1, 1))
        return stream

    def memory(self, gpu: int, size: int) -> Any:
        self.use(gpu)
        return asked(driver.cuMemAlloc(size))

    def pinned(self, size: int) -> int:
        return int(asked(driver.cuMemHostAlloc(size, 1)))

    def copy(self, way: Sequence[Any], size: int, stream: Any) -> None:
        """Ask for a copy over a path: ["h2d", 0], ["d2h", 0], ["p2p", 0, 1] or ["local", 0]."""
        kind, first = way[0], int(way[1])
        self.use(first)
        if kind == "h2d":
            asked(driver.cuMemcpyHtoDAsync(self.memory(first, size), self.pinned(size), size, stream))
        elif kind == "d2h":
            asked(driver.cuMemcpyDtoHAsync(self.pinned(size), self.memory(first, size), size, stream))
        elif kind == "local":
            asked(driver.cuMemcpyDtoDAsync(self.memory(first, size), self.memory(first, size), size, stream))
        else:
            second = int(way[2])
            from_memory, to_memory = self.memory(first, size), self.memory(second, size)
            self.use(first)
            ends = self.contexts[second], self.contexts[first]
            asked(driver.cuMemcpyPeerAsync(to_memory, ends[0], from_memory, ends[1], size, stream))

    def timed(self, ways: Sequence[Sequence[Any]], size: int, held: bool = True) -> list[float]:
        """Return the rate of each path in bytes a second, all released at once."""
        marks = []
        for way in ways:
            stream = self.stream(int(way[1]), held)
            first, last = asked(driver.cuEventCreate(0)), asked(driver.cuEventCreate(0))
            asked(driver.cuEventRecord(first, stream))
            self.copy(way, size, stream)
            self.use(int(way[1]))
            asked(driver.cuEventRecord(last, stream))
            marks.append((first, last))
        self.released(1)
        for _, last in marks:
            asked(driver.cuEventSynchronize(last))
        self.released(0)
        return [1e3 * size / asked(driver.cuEventElapsedTime(first, last)) for first, last in marks]

    def open_peers(self, a: int, b: int) -> None:
        self.use(a)
        asked(driver.cuCtxEnablePeerAccess(self.contexts[b], 0))


def rates(ways: list[list[Any]], size: int, held: bool = True, times: int = 1) -> list[list[float]]:
    """Time the paths `times` times, all of one time at once."""
    box = Box()
    for way in ways:
        if way[0] == "p2p":
            refused(lambda way=way: box.open_peers(int(way[1]), int(way[2])))  # type: ignore[misc]
    return [box.timed(ways, size, held) for _ in range(times)]


def polls() -> dict[str, Any]:
    """Ask for an event and a stream that are held, and then while the copy runs."""
    box = Box()
    stream = box.stream(0, held=True)
    event = asked(driver.cuEventCreate(0))
    box.copy(["h2d", 0], MIB, stream)
    asked(driver.cuEventRecord(event, stream))
    held = [int(driver.cuEventQuery(event)[0]) for _ in range(8)]
    early = refused(lambda: asked(driver.cuEventElapsedTime(event, event)))
    box.released(1)
    other = asked(driver.cuEventCreate(0))
    box.copy(["h2d", 0], MIB, stream)
    asked(driver.cuEventRecord(other, stream))
    running = [int(driver.cuEventQuery(other)[0]) for _ in range(4)]
    return {
        "held": held,
        "early": early,
        "running": running,
        "stream": int(driver.cuStreamQuery(stream)[0]),
        "first": int(driver.cuEventQuery(event)[0]),
    }


def bytes_moved(way: list[Any], size: int) -> int:
    """Count the bytes that differ after a round over a GPU, a pair of GPUs or a local copy."""
    box = Box()
    stream = box.stream(int(way[1]))
    start, end = box.pinned(size), box.pinned(size)
    pattern = bytes(index * 7 % 251 for index in range(size))
    ctypes.memmove(start, pattern, size)
    first = box.memory(int(way[1]), size)
    asked(driver.cuMemcpyHtoDAsync(first, start, size, stream))
    if len(way) == 3:
        second = box.memory(int(way[2]), size)
        ends = box.contexts[int(way[2])], box.contexts[int(way[1])]
        asked(driver.cuMemcpyPeerAsync(second, ends[0], first, ends[1], size, stream))
        first = second
    asked(driver.cuMemcpyDtoHAsync(end, first, size, stream))
    asked(driver.cuStreamSynchronize(stream))
    seen = ctypes.string_at(end, size)
    return sum(a != b for a, b in zip(pattern, seen, strict=True))


def host_function(size: int) -> dict[str, Any]:
    """Let a host function of a thread of the double's own hold two streams, and an event order them."""
    import threading

    box = Box()
    gate, threads = threading.Event(), []

    def hold(_: Any) -> None:
        threads.append(threading.get_ident())
        gate.wait(10)

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(hold)
    address = ctypes.cast(function, ctypes.c_void_p).value
    first, second = box.stream(0), box.stream(1)
    box.use(0)
    asked(driver.cuLaunchHostFunc(first, driver.CUhostFn(address), 0))
    done = asked(driver.cuEventCreate(2))
    asked(driver.cuEventRecord(done, first))
    box.use(1)
    asked(driver.cuStreamWaitEvent(second, done, 0))
    box.copy(["h2d", 1], size, second)
    held = [int(driver.cuStreamQuery(second)[0]) for _ in range(6)]
    gate.set()
    asked(driver.cuStreamSynchronize(second))
    return {"held": held, "own_thread": threads == [threading.get_ident()], "calls": len(threads)}


class Kernels:
    """The kernels by name on one GPU; numbers are passed as 64-bit words."""

    def __init__(self, box: Box, gpu: int) -> None:
        box.use(gpu)
        self.box, self.gpu = box, gpu
        self.module = asked(driver.cuModuleLoadData(PTX.encode() + b"\0"))
        self.stream = box.stream(gpu)

    def run(self, name: str, *words: int) -> None:
        self.box.use(self.gpu)
        function = asked(driver.cuModuleGetFunction(self.module, name.encode()))
        values = (ctypes.c_uint64 * len(words))(*words)
        start = ctypes.addressof(values)
        places = (ctypes.c_void_p * len(words))(*(start + 8 * index for index in range(len(words))))
        asked(
            driver.cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, self.stream, ctypes.addressof(places), 0)
        )
        asked(driver.cuStreamSynchronize(self.stream))


def kernels(words: int) -> dict[str, Any]:
    """Copy between two GPUs without peer access by a kernel."""
    box = Box()
    own = Kernels(box, 0)
    memory, other = box.memory(0, 8 * words), box.memory(1, 8 * words)
    return {
        "forbidden": refused(lambda: own.run("gputopo_copy", int(memory), int(other), words)),
        "after": refused(lambda: asked(driver.cuCtxSynchronize())),
    }


def refusals(a: int, b: int) -> dict[str, Any]:
    """What is refused when somebody asks for peers, memory, a hold and a copy to GPU `a`."""
    box = Box()
    box.use(a)
    free, total = asked(driver.cuMemGetInfo())
    return {
        "can": int(asked(driver.cuDeviceCanAccessPeer(box.devices[a], box.devices[b]))),
        "open": refused(lambda: box.open_peers(a, b)),
        "again": refused(lambda: box.open_peers(a, b)),
        "small": refused(lambda: box.memory(a, 4096)),
        "large": refused(lambda: box.memory(a, 64 * MIB)),
        "more": refused(lambda: box.memory(a, total)),
        "used": total - free,
        "hold": refused(lambda: box.stream(a, held=True)),
        "copies": [refused(lambda: box.timed([["h2d", a]], MIB, held=False)) for _ in range(5)],
        "others": refused(lambda: box.timed([["h2d", b]], MIB, held=False)),
    }


def begin() -> dict[str, Any]:
    """What the first calls return."""
    code = int(driver.cuInit(0)[0])
    if code:
        return {"init": code}
    devices = [asked(driver.cuDeviceGet(gpu)) for gpu in range(asked(driver.cuDeviceGetCount()))]
    texts = [
        (asked(driver.cuDeviceGetPCIBusId(32, device)), asked(driver.cuDeviceGetName(64, device)))
        for device in devices
    ]
    try:
        driver.cuStreamWaitValue32(0, 0, 1, 1)
        waits = "there"
    except RuntimeError as error:
        waits = str(error)
    return {
        "init": code,
        "version": asked(driver.cuDriverGetVersion()),
        "gpus": [[text.split(b"\0")[0].decode() for text in pair] for pair in texts],
        "waits": waits,
        "error": asked(driver.cuGetErrorName(driver.CUresult(719))).decode(),
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
