"""Which buffers each way of a window uses, and how it is cut: ways that share a buffer get parts of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.copies.copies import Job, Way
from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.card import Card
from gputopo.probes.cuda.chunks import Piece, messages, piece_at_once, piece_staged, pieces
from gputopo.probes.cuda.host_memory import HostArea, HostMemory
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.transfer import STEPS, Chase, PageableTransfer, StagedTransfer, Transfer
from gputopo.probes.cuda.verify import Span
from gputopo.values.bandwidth import gpu_of

# Of one window of a latency: enough for the event clock (0.5 us), few enough for a held stream.
_LATENCY_COPIES = 256
_LATENCY_COPIES_STAGED = 64
# Messages below this go several times in one window; one alone would be as short as the event clock's steps.
_SMALL_BYTES = 2**20
_SMALL_REPEATS = 16

Part = tuple[int, int]  # (which, of how many)


def gpus_of(way: Way) -> tuple[int, ...]:
    """Give the GPUs of a way, each once, the source first."""
    places = (gpu_of(way.source), gpu_of(way.destination))
    return tuple(dict.fromkeys(gpu for gpu in places if gpu is not None))


def acting_gpu(way: Way) -> int:
    """Give the GPU whose copy engine or kernel does it. Between GPUs the source pushes, but `kernel_read`."""
    gpus = gpus_of(way)
    return gpus[-1] if way.kind == "p2p_staged" or way.method == "kernel_read" else gpus[0]


def host_gpu(way: Way) -> int | None:
    """Give the GPU whose host memory a way uses: near the source if staged; None: it uses none."""
    return gpus_of(way)[0] if way.kind in ("h2d", "d2h", "p2p_staged") else None


def parts(ways: Sequence[Way]) -> tuple[dict[int, Part], dict[int, Part]]:
    """Tell which part of the destination's buffer each way gets, and which of the host memory on its node.

    By the ways' numbers. What is read on a GPU is shared by all.
    """
    device: dict[object, list[int]] = {}
    host: dict[object, list[int]] = {}
    for number, way in enumerate(ways):
        if gpu_of(way.destination) is not None:
            device.setdefault(way.destination, []).append(number)
        if host_gpu(way) is not None:
            area = (way.numa_node, way.pinned is False, way.kind == "h2d")  # sends or receives there
            host.setdefault(area, []).append(number)
    return _numbered(device), _numbered(host)


class Places(NamedTuple):
    """The memory that one way uses. `through`: host memory that a staged way goes through."""

    acting: Card
    origin: Span
    target: Span
    through: Span | None = None


def host_nodes(ways: Sequence[Way], *, pinned: bool) -> set[int | None]:
    """Give the nodes on which ways need host memory, None for one that is not told."""
    return {
        way.numa_node for way in ways if host_gpu(way) is not None and (way.pinned is not False) == pinned
    }


def places(
    job: Job,
    number: int,
    cards: Mapping[int, Card],
    host: HostMemory,
    node_cpus: Mapping[int, Sequence[int]],
) -> Places:
    """Take the memory that one way of a job needs. Raises CudaError."""
    way = job.ways[number]
    used = [cards[gpu] for gpu in gpus_of(way)]
    for card in used:
        card.take_buffers()
    acting = cards[acting_gpu(way)]
    if way.method != "copy_engine" and acting.take_kernels() is None:
        assert acting.no_kernels is not None
        raise acting.no_kernels
    on_device, on_host = parts(job.ways)
    source, target = used[0], used[-1]
    origin = Span(source, source.source, source.source_room, False)
    room, shift = _part(target.destination_room, on_device.get(number, (0, 1)))
    destination = Span(target, target.destination + shift, room, False)
    if host_gpu(way) is None:
        return Places(acting, origin, destination)
    area: HostArea
    if way.pinned is False:
        area = host.pageable(way.numa_node)
    else:
        cpus = None if way.numa_node is None else node_cpus.get(way.numa_node)
        at_once = len(host_nodes(job.ways, pinned=True))
        area = host.pinned(source.ordinal, way.numa_node, cpus, at_once)
    if way.kind == "h2d":
        room, shift = _part(area.send_room, on_host[number])
        return Places(acting, Span(source, area.send + shift, room, True), destination)
    room, shift = _part(area.receive_room, on_host[number])
    received = Span(source, area.receive + shift, room, True)
    if way.kind == "d2h":
        return Places(acting, origin, received)
    return Places(acting, origin, destination, received)


def transfer(job: Job, number: int, size: int, seed: int, there: Places) -> Transfer:
    """Cut one way of a job into pieces of the memory that it has. Raises CudaError."""
    way = job.ways[number]
    size = max(8, size // 8 * 8)
    if job.kind == "latency" and way.method != "copy_engine":
        return _chase(way, there, seed)
    if way.kind == "p2p_staged":
        return _staged(job, way, size, seed, there)
    return _plain(job, way, size, seed, there)


def _chase(way: Way, there: Places, seed: int) -> Transfer:
    if way.method != "kernel_read":
        raise CudaError("CUDA_ERROR_NOT_SUPPORTED", "a latency is that of reading; a write is not waited for")
    found = Chase(way, there.acting, (there.origin, there.target), (Piece(0, 0, 8),), seed)
    found.repeats = STEPS
    return found


def _staged(job: Job, way: Way, size: int, seed: int, there: Places) -> Transfer:
    assert there.through is not None
    half, second = _part(there.through.room, (1, 2))
    bounce = (there.through.address, there.through.address + second)
    rooms = there.origin.room, there.target.room
    latency = job.kind == "latency"
    if latency:
        cut = messages(size, min(*rooms, half), _LATENCY_COPIES_STAGED)
    else:
        cut = pieces(size, *rooms, piece_staged(size, half))
    spans = there.origin, there.target
    found = StagedTransfer(way, there.acting, spans, cut, seed, bounce, overlap=not latency)
    found.repeats = len(cut) if latency else 1
    return found


def _plain(job: Job, way: Way, size: int, seed: int, there: Places) -> Transfer:
    rooms = there.origin.room, there.target.room
    pageable = way.pinned is False
    if pageable and len(job.ways) > 1:
        raise CudaError(
            "CUDA_ERROR_NOT_SUPPORTED", "copies of pageable memory wait in the call, so no two run at once"
        )
    kind = PageableTransfer if pageable else Transfer
    repeats = 1
    if job.kind == "latency":
        repeats = _LATENCY_COPIES_STAGED if pageable else _LATENCY_COPIES
    elif len(job.ways) == 1 and size < _SMALL_BYTES:
        repeats = _SMALL_REPEATS
    if repeats > 1:
        cut = messages(size, min(rooms), repeats)
    else:
        cut = pieces(size, *rooms, piece_at_once(size) if len(job.ways) > 1 else None)
    found = kind(way, there.acting, (there.origin, there.target), cut, seed)
    found.repeats = repeats
    return found


def _part(room: int, part: Part) -> tuple[int, int]:
    """Give the bytes of one part, whole blocks, and where it begins. Raises CudaError if nothing is left."""
    which, count = part
    each = room // count // BLOCK_BYTES * BLOCK_BYTES
    if not each:
        raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", f"{room} bytes are too few for {count} copies at once")
    return each, which * each


def _numbered(users: Mapping[object, Sequence[int]]) -> dict[int, Part]:
    return {
        number: (index, len(numbers)) for numbers in users.values() for index, number in enumerate(numbers)
    }
