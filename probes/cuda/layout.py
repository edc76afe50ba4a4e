"""Which buffers each way of a window uses, and how it is cut: ways that share a buffer get parts of it."""

from collections.abc import Mapping, Sequence

from gputopo.bandwidth import gpu_of
from gputopo.links.copies import Job, Way
from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.card import Card
from gputopo.probes.cuda.chase import STEPS, Chase
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.pieces import Piece, piece_at_once, piece_staged, pieces
from gputopo.probes.cuda.transfer import PageableTransfer, StagedTransfer, Transfer
from gputopo.probes.cuda.verify import Span

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
    """Tell which part of the destination's buffer each way gets, and which of the receiving host memory.

    By the ways' numbers. Sources are only read, and shared by all.
    """
    device: dict[object, list[int]] = {}
    host: dict[object, list[int]] = {}
    for number, way in enumerate(ways):
        if gpu_of(way.destination) is not None:
            device.setdefault(way.destination, []).append(number)
        if way.kind in ("d2h", "p2p_staged"):
            host.setdefault((host_gpu(way), way.pinned is False), []).append(number)
    return _numbered(device), _numbered(host)


def transfer(
    job: Job,
    number: int,
    size: int,
    seed: int,
    cards: Mapping[int, Card],
    node_cpus: Mapping[int, Sequence[int]],
) -> Transfer:
    """Lay out one way of a job; takes the buffers it needs. Raises CudaError."""
    way = job.ways[number]
    used = [cards[gpu] for gpu in gpus_of(way)]
    for card in used:
        card.take_buffers()
    acting = cards[acting_gpu(way)]
    if way.method != "copy_engine" and acting.take_kernels() is None:
        assert acting.no_kernels is not None
        raise acting.no_kernels
    size = max(8, size // 8 * 8)
    on_device, on_host = parts(job.ways)
    source, target = used[0], used[-1]
    origin = Span(source, source.source, source.room, False)
    room, shift = _part(target.room, on_device.get(number, (0, 1)))
    destination = Span(target, target.destination + shift, room, False)
    if job.kind == "latency" and way.method != "copy_engine":
        return _chase(way, acting, (origin, destination), seed)
    host = _host_span(way, source, on_host.get(number, (0, 1)), node_cpus)
    if way.kind == "p2p_staged":
        assert host is not None
        return _staged(job, number, acting, (origin, destination), host, size, seed)
    if host is not None:
        origin, destination = (host, destination) if way.kind == "h2d" else (origin, host)
    return _plain(job, number, acting, (origin, destination), size, seed)


def _chase(way: Way, acting: Card, spans: tuple[Span, Span], seed: int) -> Transfer:
    if way.method != "kernel_read":
        raise CudaError("CUDA_ERROR_NOT_SUPPORTED", "a latency is that of reading; a write is not waited for")
    found = Chase(way, acting, spans, (Piece(0, 8),), seed)
    found.repeats = STEPS
    return found


def _staged(
    job: Job, number: int, acting: Card, spans: tuple[Span, Span], host: Span, size: int, seed: int
) -> Transfer:
    half, second = _part(host.room, (1, 2))
    bounce = (host.address, host.address + second)
    latency = job.kind == "latency"
    if latency:
        cut = (Piece(0, size),) * _LATENCY_COPIES_STAGED
    else:
        cut = pieces(size, min(spans[0].room, spans[1].room), piece_staged(size, half))
    way = job.ways[number]
    found = StagedTransfer(way, acting, spans, cut, seed, bounce, overlap=not latency)
    found.repeats = len(cut) if latency else 1
    return found


def _plain(job: Job, number: int, acting: Card, spans: tuple[Span, Span], size: int, seed: int) -> Transfer:
    way = job.ways[number]
    room = min(spans[0].room, spans[1].room)
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
        cut = (Piece(0, min(size, room)),) * repeats
    else:
        cut = pieces(size, room, piece_at_once(size) if len(job.ways) > 1 else None)
    found = kind(way, acting, spans, cut, seed)
    found.repeats = repeats
    return found


def _host_span(way: Way, card: Card, part: Part, node_cpus: Mapping[int, Sequence[int]]) -> Span | None:
    """Give the host side: for sending the whole half, shared by all; for receiving a part of it."""
    if host_gpu(way) is None:
        return None
    if way.pinned is False:
        area = card.pageable(way.numa_node)
    else:
        cpus = None if way.numa_node is None else node_cpus.get(way.numa_node)
        area = card.pinned(way.numa_node, cpus)
    if way.kind == "h2d":
        return Span(card, area.send, area.room, True)
    room, shift = _part(area.room, part)
    return Span(card, area.receive + shift, room, True)


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
