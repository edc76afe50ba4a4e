"""Decides which buffers each copy of a window uses, and cuts it: copies share a buffer by parts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.probes.copy_jobs import Copy, CopyJob
from gputopo.probes.cuda.chunking import Chunk, chunk_at_once, chunk_staged, chunks, messages
from gputopo.probes.cuda.door import CudaError
from gputopo.probes.cuda.gpus import CHAIN_BYTES, EngineGpu
from gputopo.probes.cuda.host_memory import HostMemory
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.transfer import STEPS, Chase, PageableTransfer, StagedTransfer, Transfer
from gputopo.probes.cuda.verify import Span
from gputopo.values.bandwidth import KERNELS

# Copies in one window of a latency: enough for the event clock (0.5 us), few enough for a blocked stream.
_LATENCY_COPIES = 256
_LATENCY_COPIES_STAGED = 64
# For a staged copy. With two buffers, each copy starts only after the other stream reports an end, some us
# later.
_BOUNCE_BUFFERS = 4
# Smaller messages are sent several times in one window: one message is too short for the event clock.
_SMALL_BYTES = 2**20
_SMALL_REPEATS = 16

Part = tuple[int, int]  # (index of the part, number of parts)


def parts(copies: Sequence[Copy]) -> tuple[dict[int, Part], dict[int, Part]]:
    """Return each copy's part of the destination's buffer, and its part of the host memory on its node.

    Both by the copies' numbers. All copies share the buffer that is read on a GPU.
    """
    device: dict[object, list[int]] = {}
    host: dict[object, list[int]] = {}
    for number, copy in enumerate(copies):
        if copy.destination.gpu is not None:
            device.setdefault(copy.destination, []).append(number)
        if copy.near_gpu is not None:
            area = (copy.numa_node, copy.pinned is False, copy.kind == "h2d")  # sends or receives there
            host.setdefault(area, []).append(number)
    return _numbered(device), _numbered(host)


class Places(NamedTuple):
    """The memory that one copy uses. `through`: the host memory for a staged copy."""

    acting: EngineGpu
    origin: Span
    target: Span
    through: Span | None = None


def host_nodes(copies: Sequence[Copy], *, pinned: bool) -> set[int | None]:
    """Return the nodes on which copies need host memory. An unknown node is None."""
    return {
        copy.numa_node
        for copy in copies
        if copy.near_gpu is not None and (copy.pinned is not False) == pinned
    }


def places(
    job: CopyJob,
    number: int,
    cards: Mapping[int, EngineGpu],
    host: HostMemory,
    node_cpus: Mapping[int, Sequence[int]],
) -> Places:
    """Return the memory for one copy of a job, and allocate it if needed. Raises CudaError."""
    copy = job.copies[number]
    used = [cards[gpu] for gpu in copy.gpus]
    for card in used:
        card.allocate_buffers()
    acting = cards[copy.acting_gpu]
    if copy.method in KERNELS and acting.load_kernels() is None:
        assert acting.no_kernels is not None
        raise acting.no_kernels
    on_device, on_host = parts(job.copies)
    source, target = used[0], used[-1]
    origin = Span(source, source.source, source.source_bytes, False)
    capacity, shift = _part(target.destination_bytes, on_device.get(number, (0, 1)))
    destination = Span(target, target.destination + shift, capacity, False)
    if copy.near_gpu is None:
        return Places(acting, origin, destination)
    if copy.pinned is False:
        area = host.pageable(copy.numa_node)
    else:
        cpus = None if copy.numa_node is None else node_cpus.get(copy.numa_node)
        at_once = len(host_nodes(job.copies, pinned=True))
        area = host.pinned(source.ordinal, copy.numa_node, cpus, at_once)
    if copy.kind == "h2d":
        capacity, shift = _part(area.send_bytes, on_host[number])
        return Places(acting, Span(source, area.send + shift, capacity, True), destination)
    capacity, shift = _part(area.receive_bytes, on_host[number])
    received = Span(source, area.receive + shift, capacity, True)
    if copy.kind == "d2h":
        return Places(acting, origin, received)
    return Places(acting, origin, destination, received)


def cut(job: CopyJob, number: int, size: int, seed: int, memory: Places) -> Transfer:
    """Cut one copy of a job into chunks that fit its memory. Raises CudaError."""
    copy = job.copies[number]
    size = max(8, size // 8 * 8)
    if job.kind == "latency" and copy.method in KERNELS:
        return _chase(copy, memory, seed)
    if copy.kind == "p2p_staged":
        return _staged(job, copy, size, seed, memory)
    transfer = _plain(job, copy, size, seed, memory)
    by_kernels = [other.acting_gpu for other in job.copies if other.method in KERNELS]
    transfer.kernels_at_once = max(by_kernels.count(copy.acting_gpu), 1)
    return transfer


def _chase(copy: Copy, memory: Places, seed: int) -> Transfer:
    if copy.method != "kernel_read":
        raise CudaError(
            "CUDA_ERROR_NOT_SUPPORTED",
            "latency is only measured for reads, because writes are not waited for",
        )
    if memory.origin.on_host and memory.origin.capacity < CHAIN_BYTES:
        raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "too little host memory for a chain of pointers")
    return Chase(copy, memory.acting, (memory.origin, memory.target), (Chunk(0, 0, 8),), seed, STEPS)


def _staged(job: CopyJob, copy: Copy, size: int, seed: int, memory: Places) -> Transfer:
    assert memory.through is not None
    count = min(_BOUNCE_BUFFERS, memory.through.capacity // BLOCK_BYTES)
    bounce_bytes, _ = _part(memory.through.capacity, (0, count))
    bounce = tuple(memory.through.address + place * bounce_bytes for place in range(count))
    capacities = memory.origin.capacity, memory.target.capacity
    spans = memory.origin, memory.target
    if job.kind != "latency":
        pieces = chunks(size, *capacities, chunk_staged(size, bounce_bytes))
        return StagedTransfer(copy, memory.acting, spans, pieces, seed, bounce=bounce)
    pieces = messages(size, min(*capacities, bounce_bytes), _LATENCY_COPIES_STAGED)
    return StagedTransfer(copy, memory.acting, spans, pieces, seed, len(pieces), bounce=bounce[:1])


def _plain(job: CopyJob, copy: Copy, size: int, seed: int, memory: Places) -> Transfer:
    capacities = memory.origin.capacity, memory.target.capacity
    pageable = copy.pinned is False
    if pageable and len(job.copies) > 1:
        raise CudaError(
            "CUDA_ERROR_NOT_SUPPORTED",
            "copies of pageable memory block in the call, so they cannot run at the same time",
        )
    if pageable and copy.method in KERNELS:  # a kernel that touches it ends the context of its GPU
        raise CudaError("CUDA_ERROR_NOT_SUPPORTED", "kernels copy page-locked host memory only")
    kind = PageableTransfer if pageable else Transfer
    repeats = 1
    if job.kind == "latency":
        repeats = _LATENCY_COPIES_STAGED if pageable else _LATENCY_COPIES
    elif len(job.copies) == 1 and size < _SMALL_BYTES:
        repeats = _SMALL_REPEATS
    if repeats > 1:
        pieces = messages(size, min(capacities), repeats)
    else:
        pieces = chunks(size, *capacities, chunk_at_once(size) if len(job.copies) > 1 else None)
    return kind(copy, memory.acting, (memory.origin, memory.target), pieces, seed, repeats)


def _part(capacity: int, part: Part) -> tuple[int, int]:
    """Return the size of one part, in whole blocks, and its offset, in bytes.

    Raises CudaError if nothing is left.
    """
    index, count = part
    part_bytes = capacity // count // BLOCK_BYTES * BLOCK_BYTES
    if not part_bytes:
        raise CudaError(
            "CUDA_ERROR_OUT_OF_MEMORY", f"{capacity} bytes are too few for {count} copies at once"
        )
    return part_bytes, index * part_bytes


def _numbered(users: Mapping[object, Sequence[int]]) -> dict[int, Part]:
    return {
        number: (index, len(numbers)) for numbers in users.values() for index, number in enumerate(numbers)
    }
