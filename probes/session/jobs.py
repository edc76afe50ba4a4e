"""What a measuring session copies, as a list of jobs, the most important first.

If time is short, jobs at the end of the list are skipped. An interrupted session has the jobs at its start.
Every direction of every pair is a separate job, so that a link that is bad in only one direction is not
hidden by its good direction.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations

from msgspec.structs import replace

from gputopo.copies import next_sets
from gputopo.probes.copy_jobs import Copy, CopyJob, CopyKind, Setting, group_name
from gputopo.values.bandwidth import HOST_KINDS, KERNELS, READING, CopyRate, Kind, Method, NotMeasured
from gputopo.values.ends import HOST, End

MIB = 2**20
# The size of a copy within a GPU's memory: at least four times the L2 cache, so that no cache contains the
# data it reads and writes. L2 caches have up to 126 MB (B200).
LOCAL_BYTES = 256 * MIB
LOCAL_CACHES = 4
# Limit of one GPU's peers without an NVSwitch (CUDA C++ Programming Guide, Peer-to-Peer Memory Access).
MAX_PEERS = 8
LATENCY_BYTES = 16  # two of the words that the check of a copy compares
KIB = 1024
# 4 KiB to 512 MiB: powers of four, and the largest.
SWEEP_BYTES = (*(4 * KIB << shift for shift in range(0, 17, 2)), 512 * 1024 * KIB)
_PATHS: tuple[tuple[CopyKind, bool], ...] = (("p2p_direct", True), ("p2p_staged", False))
# Methods that programs do not use: they copy with the source's copy engine, which writes.
_UNLIKE_PROGRAMS: tuple[Method, ...] = ("copy_engine_read", *KERNELS)


def jobs(setting: Setting) -> tuple[CopyJob, ...]:
    """Return all copies of a session that are known in advance, the most important first."""
    full = setting.level == "full"
    every = (
        *_used_by_programs(setting),
        *_derivable(setting),
        *(_host_copies(setting, setting.far_nodes) if full else ()),
        *(_one_and_all(setting) if full else ()),
        *(_both_directions_by_kernels(setting) if full else ()),
        *(_sweep(setting) if full and not setting.sizes else ()),
    )
    return tuple(_sized(every, setting.sizes))


def _used_by_programs(setting: Setting) -> Iterator[CopyJob]:
    """Yield the copies that programs make: on each link, in the memory, and on each pair's usual path."""
    gpus, ordered = setting.gpus, pairs(setting.gpus)
    yield from _host_copies(setting, dict.fromkeys(gpus))
    if len(gpus) > 1:
        yield from (_group(kind, gpus, setting) for kind in HOST_KINDS)
    yield from _inside(setting)
    for kind, direct in _PATHS:
        yield from (
            _job(_pair_copy(kind, *pair, setting)) for pair in ordered if (pair in setting.peers) == direct
        )
    yield from _fabric(setting)
    for gpu in gpus:
        copies = tuple(_host_copy(kind, gpu, setting) for kind in HOST_KINDS)
        yield CopyJob(kind="bidirectional", copies=copies)
    chasing = [gpu for gpu in gpus if gpu not in setting.no_kernels]  # they follow a chain of pointers
    yield from (_latency(_host_copy("h2d", gpu, setting, method="kernel_read")) for gpu in chasing)
    yield from (_latency(_host_copy("h2d", gpu, setting)) for gpu in gpus)  # a small engine copy
    for a, b in ordered:
        if _allowed("kernel_read", a, b, setting):
            yield _latency(_pair_copy("p2p_direct", a, b, setting, "kernel_read"))
    for gpu in gpus:
        yield from (_job(_host_copy(kind, gpu, setting, pinned=False)) for kind in HOST_KINDS)


def _derivable(setting: Setting) -> Iterator[CopyJob]:
    """Yield copies whose rates mostly follow from others: both directions, staged besides direct."""
    ordered = pairs(setting.gpus)
    pairs_both_ways = [(a, b, {(a, b), (b, a)} <= setting.peers) for a, b in ordered[::2]]
    for kind, direct in _PATHS:
        yield from (
            _exchange(kind, a, b, setting) for a, b, is_direct in pairs_both_ways if is_direct == direct
        )
    yield from (_job(_pair_copy("p2p_staged", *pair, setting)) for pair in ordered if pair in setting.peers)
    yield from (_latency(_pair_copy("p2p_staged", *pair, setting)) for pair in ordered)
    yield from (_exchange("p2p_staged", a, b, setting) for a, b, is_direct in pairs_both_ways if is_direct)
    for method in _UNLIKE_PROGRAMS:
        for a, b in ordered:
            if _allowed(method, a, b, setting):
                yield _job(_pair_copy("p2p_direct", a, b, setting, method))


def next_jobs(
    done: Sequence[CopyRate], setting: Setting, tried: Collection[tuple[Kind, tuple[int, ...]]]
) -> tuple[CopyJob, ...]:
    """Return the copies that the results so far require, to find the GPUs that share an uplink.

    `tried`: the kind and the GPUs of groups that must not be returned again.
    """
    sets = next_sets(done, tried)
    return tuple(_sized((_group(kind, gpus, setting) for kind, gpus in sets), setting.sizes))


def soak_jobs(setting: Setting) -> tuple[CopyJob, ...]:
    """Return the copies of one round of a soak. Each job loads all GPUs at once.

    All GPUs copy with the host in both directions. Every GPU copies to the next GPU, then to the one after
    it, and so on, on the pair's usual path. All GPUs copy within their memory.
    """
    gpus = setting.gpus
    host = tuple(_host_copy(kind, gpu, setting) for kind in HOST_KINDS for gpu in gpus)
    rounds = [CopyJob(kind="bidirectional", copies=host, group=group_name("host and", gpus))]
    for step in range(1, len(gpus)):
        ends = [(gpu, gpus[(place + step) % len(gpus)]) for place, gpu in enumerate(gpus)]
        copies = tuple(
            _pair_copy("p2p_direct" if pair in setting.peers else "p2p_staged", *pair, setting)
            for pair in ends
        )
        rounds.append(
            CopyJob(kind=copies[0].kind, copies=copies, group=group_name(f"pairs {step} apart,", gpus))
        )
    inside = list(_inside(setting))
    if inside:
        copies = tuple(job.copies[0] for job in inside)
        group = group_name("d2d_local", gpus)
        min_bytes = max(job.min_bytes for job in inside)
        rounds.append(CopyJob(kind="d2d_local", copies=copies, group=group, min_bytes=min_bytes))
    return tuple(rounds)


def not_possible(setting: Setting) -> tuple[NotMeasured, ...]:
    """Return the copies between GPUs that the driver does not allow, or whose kernel cannot run."""
    refused = [pair for pair in permutations(setting.gpus, 2) if pair not in setting.peers]
    refusals: list[NotMeasured] = []
    if refused:
        named = ", ".join(f"{a}->{b}" for a, b in refused)
        refusals.append(
            NotMeasured(
                what=f"direct copies between GPUs {named}",
                reason="the driver allows no peer access (P2P); they were measured through the host",
            )
        )
    if setting.level == "full" and len(setting.gpus) > MAX_PEERS + 1:
        what = "copies of one GPU to all others at once, and from all others"
        refusals.append(
            NotMeasured(
                what=what, reason=f"without NVSwitch a GPU has peer access to {MAX_PEERS} others only"
            )
        )
    for gpu, reason in setting.no_kernels.items():
        refusals.append(NotMeasured(what=f"copies by a kernel on gpu:{gpu}", reason=reason))
    for gpu, reason in setting.no_local.items():
        refusals.append(NotMeasured(what=f"d2d_local gpu:{gpu} -> gpu:{gpu}", reason=reason))
    return tuple(refusals)


def min_local_bytes(l2_bytes: int) -> int:
    """Return the minimum bytes of a copy within a GPU's memory, so that it does not measure the L2 cache."""
    return max(LOCAL_BYTES, LOCAL_CACHES * l2_bytes)


def pairs(gpus: Sequence[int]) -> list[tuple[int, int]]:
    """Return all ordered pairs of GPUs. At the start of the list, all GPUs occur equally often.

    Each pair is followed by its other direction. With many GPUs, pairs within blocks of MAX_PEERS come first,
    then pairs between two blocks, so that few pairs need their peer access enabled again.
    """
    count = len(gpus)

    def order(places: tuple[int, int]) -> tuple[bool, int, int, int, int]:
        blocks = sorted(place // MAX_PEERS for place in places) if count > MAX_PEERS + 1 else [0, 0]
        a, b = places
        return blocks[0] != blocks[1], blocks[0], blocks[1], min(b - a, count - b + a), a

    both = sorted(combinations(range(count), 2), key=order)
    return [(gpus[x], gpus[y]) for a, b in both for x, y in ((a, b), (b, a))]


def without(job: CopyJob, gpus: Collection[int], copies: Sequence[Copy] = ()) -> CopyJob | None:
    """Return the job without the copies that use `gpus` or are in `copies`, or None if nothing is left.

    A group needs at least two copies, and a job of both directions needs both.
    """
    left = tuple(copy for copy in job.copies if copy not in copies and set(gpus).isdisjoint(copy.gpus))
    if left == job.copies:
        return job
    if job.group is None or len(left) < 2:
        return None
    name, job_left = job.group.partition(" gpus:")[0], replace(job, copies=left)
    return replace(job_left, group=group_name(name, job_left.gpus))


def _host_copy(
    kind: CopyKind,
    gpu: int,
    setting: Setting,
    *,
    pinned: bool = True,
    node: int | None = None,
    method: Method = "copy_engine",
) -> Copy:
    ends = (HOST, End.of_gpus(gpu))
    source, destination = ends if kind == "h2d" else ends[::-1]
    return Copy(
        kind=kind,
        source=source,
        destination=destination,
        pinned=pinned,
        method=method,
        numa_node=setting.nodes.get(gpu) if node is None else node,
    )


def _pair_copy(kind: CopyKind, a: int, b: int, setting: Setting, method: Method = "copy_engine") -> Copy:
    """Return a copy between two GPUs. A staged copy uses host memory near its source."""
    return Copy(
        kind=kind,
        source=End.of_gpus(a),
        destination=End.of_gpus(b),
        method=method,
        numa_node=setting.nodes.get(a) if kind == "p2p_staged" else None,
    )


def _job(copy: Copy, size: int | None = None) -> CopyJob:
    return CopyJob(kind=copy.kind, copies=(copy,), bytes=size)


def _group(kind: CopyKind, gpus: Sequence[int], setting: Setting) -> CopyJob:
    copies = tuple(_host_copy(kind, gpu, setting) for gpu in gpus)
    return CopyJob(kind=kind, copies=copies, group=group_name(kind, gpus))


def _host_copies(setting: Setting, nodes: Mapping[int, int | None]) -> Iterator[CopyJob]:
    for gpu, node in nodes.items():
        yield from (_job(_host_copy(kind, gpu, setting, node=node)) for kind in HOST_KINDS)


def _exchange(kind: CopyKind, a: int, b: int, setting: Setting) -> CopyJob:
    copies = (_pair_copy(kind, a, b, setting), _pair_copy(kind, b, a, setting))
    return CopyJob(kind="bidirectional", copies=copies)


def _allowed(method: Method, source: int, destination: int, setting: Setting) -> bool:
    """Return whether a direct copy between two GPUs is possible: the acting GPU needs access to the other."""
    acting, reached = (destination, source) if method in READING else (source, destination)
    if method in KERNELS and acting in setting.no_kernels:
        return False
    return (acting, reached) in setting.peers


def _inside(setting: Setting) -> Iterator[CopyJob]:
    for gpu in setting.gpus:
        if gpu not in setting.no_local:
            copy = Copy(kind="d2d_local", source=End.of_gpus(gpu), destination=End.of_gpus(gpu))
            size = min_local_bytes(setting.l2_bytes.get(gpu, 0))
            yield CopyJob(kind=copy.kind, copies=(copy,), min_bytes=size)


def _latency(copy: Copy) -> CopyJob:
    return CopyJob(kind="latency", copies=(copy,), bytes=LATENCY_BYTES)


def _at_once(what: str, ends: Sequence[tuple[int, int]], setting: Setting) -> CopyJob:
    """Return copies between GPUs at once: direct if all pairs have a direct path, otherwise staged."""
    direct = all(_allowed("copy_engine", a, b, setting) for a, b in ends)
    kind: CopyKind = "p2p_direct" if direct else "p2p_staged"
    gpus = sorted({gpu for pair in ends for gpu in pair})
    copies = tuple(_pair_copy(kind, a, b, setting) for a, b in ends)
    return CopyJob(kind=kind, copies=copies, group=group_name(what, gpus))


def _fabric(setting: Setting) -> Iterator[CopyJob]:
    """Yield the jobs that show whether all GPUs reach their rates at once.

    In one, each GPU sends to the next and receives from the one before, as in collective operations. In the
    other, each GPU of one half exchanges data with a GPU of the other half, which fills the links between the
    halves.
    """
    gpus, half = setting.gpus, len(setting.gpus) // 2
    if len(gpus) > 2:
        yield _at_once("ring", list(zip(gpus, (*gpus[1:], gpus[0]), strict=True)), setting)
    if half > 1:
        halves = zip(gpus, gpus[half : 2 * half], strict=False)
        yield _at_once("bisection", [way for a, b in halves for way in ((a, b), (b, a))], setting)


def _one_and_all(setting: Setting) -> Iterator[CopyJob]:
    """Yield copies from each GPU to all others at once, and from all others, within the limit of peers."""
    if not 2 < len(setting.gpus) <= MAX_PEERS + 1:
        return
    for gpu in setting.gpus:
        others = [other for other in setting.gpus if other != gpu]
        yield _at_once(f"gpu:{gpu} to all", [(gpu, other) for other in others], setting)
        yield _at_once(f"all to gpu:{gpu}", [(other, gpu) for other in others], setting)


def _both_directions_by_kernels(setting: Setting) -> Iterator[CopyJob]:
    """Yield copies in both directions at once by kernels, for each GPU with the host and for each pair."""
    for gpu in setting.gpus:
        if gpu not in setting.no_kernels:
            up = _host_copy("h2d", gpu, setting, method="kernel_read")
            down = _host_copy("d2h", gpu, setting, method="kernel_write")
            yield from (_job(up), _job(down), CopyJob(kind="bidirectional", copies=(up, down)))
    for method in KERNELS:
        for a, b in pairs(setting.gpus)[::2]:
            if _allowed(method, a, b, setting) and _allowed(method, b, a, setting):
                ways = (_pair_copy("p2p_direct", x, y, setting, method) for x, y in ((a, b), (b, a)))
                yield CopyJob(kind="bidirectional", copies=tuple(ways))


def _sized(wanted: Iterable[CopyJob], sizes: Sequence[int]) -> Iterator[CopyJob]:
    """Yield each job once for each size, or unchanged if no sizes are given."""
    for job in wanted:
        if not sizes or job.bytes is not None:
            yield job
        else:
            yield from (replace(job, bytes=size, min_bytes=0) for size in sizes)


def _sweep(setting: Setting) -> Iterator[CopyJob]:
    for size in SWEEP_BYTES:
        for gpu in setting.gpus:
            yield from (_job(_host_copy(kind, gpu, setting), size) for kind in HOST_KINDS)
    for size in SWEEP_BYTES:
        for a, b in permutations(setting.gpus, 2):
            if _allowed("copy_engine", a, b, setting):
                yield _job(_pair_copy("p2p_direct", a, b, setting), size)
            yield _job(_pair_copy("p2p_staged", a, b, setting), size)
