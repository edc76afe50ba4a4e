"""What a measuring session copies, as an ordered list of jobs: the most important first. Pure.

What has no time is left out from the end of the list, and an interrupted session has the beginning of it.
Every direction of every pair is a separate job, so that a link that is bad in one direction only is not
hidden behind its good direction.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

import msgspec

from gputopo.copies.copies import Copy, CopyKind, Job
from gputopo.copies.sharing import CHANGED_SHARE, fair_rates, shared
from gputopo.values.bandwidth import Level, Method, NotMeasured, Path, Sample

LATENCY_BYTES = 16  # two of the words that the check of a copy compares
KIB = 1024
# 4 KiB to 512 MiB: powers of four, and the end.
SWEEP_BYTES = (*(4 * KIB << shift for shift in range(0, 17, 2)), 512 * 1024 * KIB)
_UP_AND_DOWN: tuple[CopyKind, ...] = ("h2d", "d2h")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for: which GPUs (None: all), how much, and which node the host memory is to lie on
    (None: each GPU's own)."""

    gpus: tuple[int, ...] | None = None
    level: Level = "quick"
    numa: int | None = None


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which copies there are.

    `gpus`: indices of the machine, those that are measured. `nodes` and `far_nodes`: each GPU's near and
    farthest NUMA node where known. `peers`: (a, b) where the driver lets `a` reach the memory of `b`.
    `no_kernels`: GPUs on which no kernel can run, with the reason.
    """

    gpus: tuple[int, ...]
    level: Level = "quick"
    nodes: Mapping[int, int] = {}
    far_nodes: Mapping[int, int] = {}
    peers: frozenset[tuple[int, int]] = frozenset()
    no_kernels: Mapping[int, str] = {}


def gpu_place(gpu: int) -> str:
    """Write the place of a GPU: `gpu:3`."""
    return f"gpu:{gpu}"


def group_name(what: str, gpus: Sequence[int]) -> str:
    """Write the name of copies that ran at the same time: `h2d gpus:0,1,2`."""
    return f"{what} gpus:{','.join(map(str, gpus))}"


def jobs(setting: Setting) -> tuple[Job, ...]:
    """Return all copies of a session that are known beforehand, the most important first."""
    return (
        *_alone(setting),
        *_all_at_once(setting),
        *_staged(setting),
        *_direct(setting, ("copy_engine",)),
        *_inside(setting),
        *_both_directions_with_host(setting),
        *_pageable(setting),
        *_latencies(setting),
        *_pairs_both_directions(setting),
        *_direct(setting, ("kernel_read", "kernel_write")),
        *(_far(setting) if setting.level == "full" else ()),
        *(_sweep(setting) if setting.level == "full" else ()),
    )


def next_jobs(
    done: Sequence[Sample], setting: Setting, tried: frozenset[str] = frozenset()
) -> tuple[Job, ...]:
    """Return the copies that the results so far call for: they find the GPUs that share an uplink.

    Where GPUs are slower with all at once than alone, each pair of them is copied to at once. Where what the
    pairs share does not explain all of it (an uplink that two of them cannot fill), all but one are copied
    to, for each GPU that is slower than explained. `tried`: names of groups that are not to be given again.
    """
    wanted: list[Job] = []
    for kind in _UP_AND_DOWN:
        alone = _rates(done, kind, None)
        whole = _largest_group(done, kind)
        slowed = _slower(whole, alone)
        if len(slowed) < 2 or len(whole) < 3:
            continue
        pairs = [_group(kind, pair, setting) for pair in combinations(slowed, 2)]
        missing = [job for job in pairs if job.group not in tried]
        if not missing:
            together = {frozenset(rates): rates for job in pairs if (rates := _rates(done, kind, job.group))}
            unexplained = _slower(
                whole, fair_rates({gpu: alone[gpu] for gpu in whole if gpu in alone}, shared(alone, together))
            )
            smaller = [tuple(gpu for gpu in whole if gpu != out) for out in unexplained]
            missing = [
                job
                for gpus in smaller
                if len(smaller) > 1 and len(gpus) > 2
                if (job := _group(kind, gpus, setting)).group not in tried
            ]
        wanted += missing
    return tuple(wanted)


def not_possible(setting: Setting) -> tuple[NotMeasured, ...]:
    """Return which copies between GPUs the driver does not allow, and which need a kernel that cannot run."""
    refused = [pair for pair in permutations(setting.gpus, 2) if pair not in setting.peers]
    refusals: list[NotMeasured] = []
    if refused:
        pairs = ", ".join(f"{a}->{b}" for a, b in refused)
        refusals.append(
            NotMeasured(
                what=f"direct copies between GPUs {pairs}",
                reason="the driver allows no peer access (P2P); they were measured through the host",
            )
        )
    for gpu, reason in setting.no_kernels.items():
        refusals.append(NotMeasured(what=f"copies by a kernel on {gpu_place(gpu)}", reason=reason))
    return tuple(refusals)


def without(job: Job, places: frozenset[str] | set[str], copies: Sequence[Copy] = ()) -> Job | None:
    """The job without the copies that touch `places` or are among `copies`; None where nothing is left.

    Two copies at least must be left of a group; one of two directions is no longer both.
    """
    left = tuple(
        copy
        for copy in job.copies
        if copy not in copies and not {copy.source, copy.destination} & set(places)
    )
    if left == job.copies:
        return job
    if job.group is None or len(left) < 2:
        return None
    gpus = [index for copy in left for index in gpus_of(copy)]
    return msgspec.structs.replace(job, copies=left, group=group_name(job.kind, gpus))


def gpus_of(copy: Copy) -> tuple[int, ...]:
    """Return the GPUs that a copy touches, each once, the source first."""
    numbers = [
        int(place.removeprefix("gpu:"))
        for place in (copy.source, copy.destination)
        if place.startswith("gpu:")
    ]
    return tuple(dict.fromkeys(numbers))


def describe(job: Job) -> str:
    """Return what a job copies: `h2d host -> gpu:0`, `h2d gpus:0,1`."""
    if job.group is not None:
        return job.group
    copy = job.copies[0]
    arrow = "<->" if job.kind == "bidirectional" else "->"
    words = [job.kind, f"{copy.source} {arrow} {copy.destination}"]
    if copy.pinned is False:
        words.append("pageable")
    if job.kind in ("bidirectional", "latency") and path_of(job):
        words.append(str(path_of(job)))
    if copy.method != "copy_engine":
        words.append(copy.method)
    if job.bytes is not None and job.kind != "latency":
        words.append(f"{job.bytes} bytes")
    return " ".join(words)


def path_of(job: Job) -> Path | None:
    """Return how a pair of GPUs is joined in `bidirectional` and `latency`; None for all other jobs."""
    if job.kind not in ("bidirectional", "latency"):
        return None
    paths: dict[CopyKind, Path] = {"p2p_direct": "direct", "p2p_staged": "staged"}
    return paths.get(job.copies[0].kind)


def _host_copy(
    kind: CopyKind, gpu: int, setting: Setting, *, pinned: bool = True, node: int | None = None
) -> Copy:
    place = gpu_place(gpu)
    return Copy(
        kind=kind,
        source="host" if kind == "h2d" else place,
        destination=place if kind == "h2d" else "host",
        pinned=pinned,
        numa_node=setting.nodes.get(gpu) if node is None else node,
    )


def _pair_copy(kind: CopyKind, a: int, b: int, setting: Setting, method: Method = "copy_engine") -> Copy:
    """Return a copy between two GPUs. A staged one takes host memory near its source."""
    return Copy(
        kind=kind,
        source=gpu_place(a),
        destination=gpu_place(b),
        method=method,
        numa_node=setting.nodes.get(a) if kind == "p2p_staged" else None,
    )


def _job(copy: Copy, size: int | None = None) -> Job:
    return Job(kind=copy.kind, copies=(copy,), bytes=size)


def _group(kind: CopyKind, gpus: Sequence[int], setting: Setting) -> Job:
    copies = tuple(_host_copy(kind, gpu, setting) for gpu in gpus)
    return Job(kind=kind, copies=copies, group=group_name(kind, gpus))


def _alone(setting: Setting) -> Iterator[Job]:
    yield from (_job(_host_copy(kind, gpu, setting)) for gpu in setting.gpus for kind in _UP_AND_DOWN)


def _all_at_once(setting: Setting) -> Iterator[Job]:
    if len(setting.gpus) > 1:
        yield from (_group(kind, setting.gpus, setting) for kind in _UP_AND_DOWN)


def _staged(setting: Setting) -> Iterator[Job]:
    yield from (_job(_pair_copy("p2p_staged", a, b, setting)) for a, b in permutations(setting.gpus, 2))


def _direct(setting: Setting, methods: Sequence[Method]) -> Iterator[Job]:
    for method in methods:
        for a, b in permutations(setting.gpus, 2):
            if _allowed(method, a, b, setting):
                yield _job(_pair_copy("p2p_direct", a, b, setting, method))


def _allowed(method: Method, source: int, destination: int, setting: Setting) -> bool:
    """Return whether bytes may go straight between two GPUs: the one that acts must reach the other."""
    acting, reached = (destination, source) if method == "kernel_read" else (source, destination)
    if method != "copy_engine" and acting in setting.no_kernels:
        return False
    return (acting, reached) in setting.peers


def _inside(setting: Setting) -> Iterator[Job]:
    for gpu in setting.gpus:
        yield _job(Copy(kind="d2d_local", source=gpu_place(gpu), destination=gpu_place(gpu)))


def _both_directions_with_host(setting: Setting) -> Iterator[Job]:
    for gpu in setting.gpus:
        yield Job(kind="bidirectional", copies=tuple(_host_copy(kind, gpu, setting) for kind in _UP_AND_DOWN))


def _pageable(setting: Setting) -> Iterator[Job]:
    for gpu in setting.gpus:
        yield from (_job(_host_copy(kind, gpu, setting, pinned=False)) for kind in _UP_AND_DOWN)


def _latencies(setting: Setting) -> Iterator[Job]:
    def latency(copy: Copy) -> Job:
        return Job(kind="latency", copies=(copy,), bytes=LATENCY_BYTES)

    yield from (latency(_host_copy("h2d", gpu, setting)) for gpu in setting.gpus)
    for a, b in permutations(setting.gpus, 2):
        if _allowed("kernel_read", a, b, setting):
            yield latency(_pair_copy("p2p_direct", a, b, setting, "kernel_read"))
        yield latency(_pair_copy("p2p_staged", a, b, setting))


def _pairs_both_directions(setting: Setting) -> Iterator[Job]:
    for a, b in combinations(setting.gpus, 2):
        kinds: tuple[CopyKind, ...] = ("p2p_staged",)
        if (a, b) in setting.peers and (b, a) in setting.peers:
            kinds = ("p2p_direct", "p2p_staged")
        for kind in kinds:
            copies = (_pair_copy(kind, a, b, setting), _pair_copy(kind, b, a, setting))
            yield Job(kind="bidirectional", copies=copies)


def _far(setting: Setting) -> Iterator[Job]:
    for gpu, node in setting.far_nodes.items():
        yield from (_job(_host_copy(kind, gpu, setting, node=node)) for kind in _UP_AND_DOWN)


def _sweep(setting: Setting) -> Iterator[Job]:
    for size in SWEEP_BYTES:
        for gpu in setting.gpus:
            yield from (_job(_host_copy(kind, gpu, setting), size) for kind in _UP_AND_DOWN)
    for size in SWEEP_BYTES:
        for a, b in permutations(setting.gpus, 2):
            if _allowed("copy_engine", a, b, setting):
                yield _job(_pair_copy("p2p_direct", a, b, setting), size)
            yield _job(_pair_copy("p2p_staged", a, b, setting), size)


def _rates(done: Sequence[Sample], kind: CopyKind, group: str | None) -> dict[int, float]:
    """Return GB/s by GPU of pinned copies in a group; alone (None), the first one: near memory, no sweep."""
    found: dict[int, float] = {}
    for sample in done:
        if (sample.kind, sample.group, sample.pinned) != (kind, group, True) or not sample.median_gb_per_s:
            continue
        place = sample.destination if kind == "h2d" else sample.source
        found.setdefault(int(place.removeprefix("gpu:")), sample.median_gb_per_s)
    return found


def _largest_group(done: Sequence[Sample], kind: CopyKind) -> dict[int, float]:
    """Return the rates of all GPUs at once, those left out that failed in it."""
    groups = {sample.group for sample in done if sample.kind == kind and sample.group is not None}
    return max((_rates(done, kind, group) for group in sorted(groups)), key=len, default={})


def _slower(now: Mapping[int, float], before: Mapping[int, float]) -> list[int]:
    return [gpu for gpu, rate in now.items() if gpu in before and rate < (1 - CHANGED_SHARE) * before[gpu]]
