"""Faults of the CUDA double in words, as `--cuda` takes them: `wrong@h2d:3+lost@4=719,10+far=0.4`.

Words are joined by `+`; each is NAME[@WHERE][=VALUE]. WHERE is a GPU (`3`), a pair (`0-5`, from 0 to 5), or a
WAY: `h2d:3`, `d2h:3` (pinned and pageable), `local:3`, `memory:3`, `p2p:0-5` (copy engines and kernels),
`engine:0-5` (only copy engines), `pull:0-5` (the destination's copy engine), `read:0-5`, `write:0-5`,
`staged:0-5` (the driver's own path without peer access). Without the number, `h2d` is this way of all GPUs.

- `wrong@WAY[=N]`: after N correct copies, one byte of each copy arrives wrong; `once@WAY[=N]`: of only one
  copy
- `fail@WAY=CODE[,N]`: the call returns the code; `late@WAY=CODE[,N]`: the event returns it, not the call
- `hang@WAY[=N]`: the copy never ends
- `rate@WAY=GB/s`: the rate of a single copy; `far=PART`: of host memory on another node
- `lost@GPU[=CODE[,N]]`: after N copies (3), every call returns the code (46)
- `nomem@GPU[=BYTES]`: larger allocations (than 1 MiB) are refused; `memory=BYTES`: the memory of each card
- `nop2p[@A-B]`: no peer access, in both directions
- `oldsymbols[=NAME,...]`: a driver without some calls (cuStreamWaitValue32)
- `init=CODE`: what cuInit returns
- `driver=NUMBER`, `polls=N`, `depth=N`, `start=US`, `peers=N`, `memoryon=NODE`, `memops=refused|ignored`:
  see `Settings`
- `cache[@GPU]=BYTES`: size of the L2
- `spare=BYTES`: faults of ways do not affect smaller copies, such as those with which a program reads its
  results
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tests.kit.cuda.scenario import (
    HOST_KINDS,
    CudaGpu,
    CudaSpec,
    Fault,
    FaultKind,
    MemoryOperations,
    PathKind,
    Route,
)

_OF_GPU: dict[str, tuple[PathKind, ...]] = {
    "h2d": ("h2d", "h2d_pageable"),
    "d2h": ("d2h", "d2h_pageable"),
    "local": ("local",),
    "memory": ("memory",),
}
_OF_PAIR: dict[str, tuple[PathKind, ...]] = {
    "p2p": ("p2p", "pull", "read", "write"),
    "engine": ("p2p", "pull"),
    "pull": ("pull",),
    "read": ("read",),
    "write": ("write",),
    "staged": ("staged",),
}
_OLD = ("cuStreamWaitValue32",)


class _Word(NamedTuple):
    name: str
    where: str
    value: str


def spoilt(spec: CudaSpec, words: Iterable[str]) -> CudaSpec:
    """Return the box with faults. Raises ValueError for an unknown word, or one that does not fit the box."""
    for text in words:
        name, _, value = text.partition("=")
        name, _, where = name.partition("@")
        change = _CHANGES.get(name)
        if change is None:
            raise ValueError(f"no CUDA fault {text!r}; there are {', '.join(_CHANGES)}")
        try:
            spec = change(spec, _Word(name, where, value))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"the CUDA fault {text!r} does not go with this machine: {error}") from error
    return spec


def _routes(spec: CudaSpec, where: str) -> Iterator[tuple[PathKind, int, int]]:
    """Return the keys of the routes of a way. Raises ValueError if there are none."""
    name, _, rest = where.partition(":")
    pair = name in _OF_PAIR
    kinds = _OF_PAIR[name] if pair else _OF_GPU.get(name, ())
    numbers = [int(number) for number in rest.split("-")] if rest else []
    if not kinds or (rest and len(numbers) != (2 if pair else 1)):
        raise ValueError("a way is like h2d:3 or p2p:0-5")
    keys = [key for key in spec.routes if key[0] in kinds and list(key[1 : 1 + len(numbers)]) == numbers]
    if not keys:
        raise ValueError("there is no such way")
    yield from keys


def _numbers(value: str, *usual: int) -> list[int]:
    given = [int(number) for number in value.split(",")] if value else []
    return [*given, *usual[len(given) :]]


def _fault(what: FaultKind) -> Callable[[CudaSpec, _Word], CudaSpec]:
    def apply(spec: CudaSpec, word: _Word) -> CudaSpec:
        coded = what in ("fail", "late")
        if coded and not word.value:
            raise ValueError("it wants a code, as fail@h2d:2=700")
        code, after = _numbers(word.value, 0, 0) if coded else (0, *_numbers(word.value, 0))
        keys = {(kind, a, None if kind in HOST_KINDS else b) for kind, a, b in _routes(spec, word.where)}
        faults = tuple(Fault(what, kind, a, b, code, after) for kind, a, b in sorted(keys, key=str))
        return replace(spec, faults=spec.faults + faults)

    return apply


def _limited(spec: CudaSpec, keys: Iterable[tuple[PathKind, int, int]], name: str, part: float) -> CudaSpec:
    """Return the box with a narrow resource on the routes that only they use."""
    if part <= 0:
        raise ValueError("a rate is above 0")
    resources, routes = dict(spec.resources), dict(spec.routes)
    for key in keys:
        place = f"{name} {' '.join(map(str, key))}"
        resources[place] = spec.rate(*key) * part
        routes[key] = Route((*routes[key].over, (place, 1.0)), routes[key].latency_us, routes[key].chase_ns)
    return replace(spec, resources=resources, routes=routes)


def _rate(spec: CudaSpec, word: _Word) -> CudaSpec:
    """Set the rate of a single copy on a path: wider resources stay, narrower ones are widened."""
    wanted = float(word.value) * 1e9
    for key in _routes(spec, word.where):
        needed = {name: wanted * weight for name, weight in spec.routes[key].over}
        wide = {name: max(rate, needed.get(name, 0.0)) for name, rate in spec.resources.items()}
        spec = replace(spec, resources=wide)
        spec = _limited(spec, [key], f"rate {len(spec.resources)}", wanted / spec.rate(*key))
    return spec


def _far(spec: CudaSpec, word: _Word) -> CudaSpec:
    """Scale the resources of the routes to other nodes, which `derive` marks; pageable routes follow."""
    part = float(word.value)
    resources = dict(spec.resources)
    for (kind, gpu, node), route in spec.routes.items():
        name = f"far {kind} {gpu} {node}"
        if name in resources:
            near = min(resources[step] / weight for step, weight in route.over if not _apart(step))
            resources[name] = near * part
    return replace(spec, resources=resources)


def _apart(resource: str) -> bool:
    return resource.startswith(("far ", "socket "))


def _cards(spec: CudaSpec, where: str) -> list[int]:
    chosen = [int(where)] if where else list(range(len(spec.gpus)))
    if not all(0 <= gpu < len(spec.gpus) for gpu in chosen):
        raise ValueError(f"there is no GPU {where}")
    return chosen


def _changed(spec: CudaSpec, where: str, change: Callable[[CudaGpu], CudaGpu]) -> CudaSpec:
    chosen = _cards(spec, where)
    gpus = tuple(change(gpu) if index in chosen else gpu for index, gpu in enumerate(spec.gpus))
    return replace(spec, gpus=gpus)


def _lost(spec: CudaSpec, word: _Word) -> CudaSpec:
    code, after = _numbers(word.value, 46, 3)
    return _changed(spec, word.where, lambda gpu: replace(gpu, lost_code=code, lost_after=after))


def _no_memory(spec: CudaSpec, word: _Word) -> CudaSpec:
    (most,) = _numbers(word.value, 1 << 20)
    return _changed(spec, word.where, lambda gpu: replace(gpu, refuse_above=most))


def _memory(spec: CudaSpec, word: _Word) -> CudaSpec:
    most = int(word.value)
    return _changed(
        spec,
        word.where,
        lambda gpu: replace(
            gpu, memory_bytes=min(most, gpu.memory_bytes), used_bytes=min(gpu.used_bytes, most // 8)
        ),
    )


def _cache(spec: CudaSpec, word: _Word) -> CudaSpec:
    return _changed(spec, word.where, lambda gpu: replace(gpu, l2_bytes=int(word.value)))


def _no_peers(spec: CudaSpec, word: _Word) -> CudaSpec:
    if not word.where:
        return replace(spec, peers=frozenset())
    a, b = (int(number) for number in word.where.split("-"))
    if not {(a, b), (b, a)} & spec.peers:
        raise ValueError("this pair has no peer access anyway")
    return replace(spec, peers=spec.peers - {(a, b), (b, a)})


def _setting(name: str, read: Callable[[str], Any]) -> Callable[[CudaSpec, _Word], CudaSpec]:
    return lambda spec, word: replace(spec, settings=replace(spec.settings, **{name: read(word.value)}))


def _memory_operations(value: str) -> MemoryOperations:
    if value not in ("refused", "ignored"):
        raise ValueError("it wants refused or ignored, as memops=refused")
    return "refused" if value == "refused" else "ignored"


_CHANGES: dict[str, Callable[[CudaSpec, _Word], CudaSpec]] = {
    "wrong": _fault("wrong"),
    "once": _fault("once"),
    "fail": _fault("fail"),
    "late": _fault("late"),
    "hang": _fault("hang"),
    "rate": _rate,
    "far": _far,
    "lost": _lost,
    "nomem": _no_memory,
    "memory": _memory,
    "nop2p": _no_peers,
    "oldsymbols": _setting("lacks", lambda value: tuple(value.split(",")) if value else _OLD),
    "init": _setting("init_code", int),
    "driver": _setting("driver", int),
    "polls": _setting("polls", int),
    "depth": _setting("depth", int),
    "spare": _setting("spare_bytes", int),
    "start": _setting("start_us", float),
    "peers": _setting("peer_limit", int),
    "memoryon": _setting("memory_on", int),
    "memops": _setting("memory_operations", _memory_operations),
    "cache": _cache,
}
