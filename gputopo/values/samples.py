"""Samples of a machine over time: changing facts of each GPU, and the machine at each sample.

A changing ("passing") fact is a state (current link, error counts, fabric) or volatile (load, clocks, power).
All other facts last. `Sample.gpus` has facts by their paths within a GPU: `{"index": 0, "power_w.draw":
27.6}`.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from gputopo.values.fields import Field, fields_of
from gputopo.values.machine import Gpu, Machine, Sample

Facts = Mapping[str, Any]

_FIELDS = fields_of(Gpu)
_LEAVES: dict[str, Field] = {  # a list of values (processes, NVLinks) is one fact
    path: field
    for path, field in _FIELDS.items()
    if "[]" not in path and (field.leaf or f"{path}[]" in _FIELDS) and path != "index"
}
_values_of = attrgetter(*_LEAVES)

PASSING = frozenset(
    path for path, field in _LEAVES.items() if field.counter or field.stability in ("state", "volatile")
)
COUNTERS = frozenset(path for path, field in _LEAVES.items() if field.counter)
# Passing facts that depend on the load: values of two times would describe a GPU that never existed.
OF_LOAD = frozenset(path for path in PASSING if _LEAVES[path].stability == "volatile") | {"pcie.gen_now"}
# Settings that nvidia-smi reports: if one differs, it was changed in between. (For other settings, such as a
# NUMA node, two tools may differ at the same time.)
SETTINGS = frozenset(
    path
    for path, field in _LEAVES.items()
    if path not in PASSING and field.stability == "setting" and field.smi is not None
)


def facts_of(gpu: Gpu) -> dict[str, Any]:
    """Return all known facts of a GPU by path, as in JSON."""
    return {
        path: _plain(value)
        for (path, field), value in zip(_LEAVES.items(), _values_of(gpu), strict=True)
        if value is not None and field.is_known(value)
    }


def of_sample(facts: Facts) -> dict[str, Any]:
    """Return the facts that a sample has: passing facts and settings."""
    return {path: value for path, value in facts.items() if path in PASSING or path in SETTINGS}


def without_settings(sample: Sample, lasting: Mapping[int, Facts]) -> Sample:
    """Return a sample without settings that equal the machine's. `lasting`: the machine's facts by GPU."""
    return msgspec.structs.replace(
        sample,
        gpus=tuple(
            {
                path: value
                for path, value in facts.items()
                if path not in SETTINGS or not same(path, value, lasting[facts["index"]].get(path, value))
            }
            for facts in sample.gpus
        ),
    )


def same(path: str, a: Any, b: Any) -> bool:
    """Return whether two captures report the same value of a fact; for NVLinks, of those in both."""
    if path != "nvlinks":
        return bool(a == b or _LEAVES[path].same(a, b))
    links = {link["link"]: link for link in b}
    pairs = [(link, links[link["link"]]) for link in a if link["link"] in links]
    unknown: tuple[Any, ...] = (None, {})
    return all(
        left[fact] == right[fact] or left[fact] in unknown or right[fact] in unknown
        for left, right in pairs
        for fact in left.keys() & right.keys()
    )


def gpu_with(index: int, facts: Facts) -> Gpu:
    """Return the GPU with these facts. Raises msgspec.ValidationError if one has the wrong type."""
    nested: dict[str, Any] = {"index": index}
    for path, value in facts.items():
        if path not in _LEAVES:
            continue
        part = nested
        *names, last = path.split(".")
        for name in names:
            part = part.setdefault(name, {})
        part[last] = value
    return msgspec.convert(nested, Gpu)


def at_samples(machine: Machine, counters: Mapping[int, Facts] | None = None) -> tuple[Machine, ...]:
    """Return the machine at each of its samples: passing facts from the sample, all others from the machine.

    A setting that differed at a sample has the value of that time. Each machine has at most one sample. A
    machine without samples is returned unchanged. `counters`: facts by GPU that replace the sample's.
    """
    if len(machine.samples) < 2:
        return (machine,)
    lasting = {
        gpu.index: {path: value for path, value in facts_of(gpu).items() if path not in PASSING}
        for gpu in machine.gpus
    }
    more = counters or {}
    return tuple(
        msgspec.structs.replace(
            machine,
            gpus=tuple(
                gpu_with(index, {**facts, **_of_gpu(sample, index), **more.get(index, {})})
                for index, facts in lasting.items()
            ),
            samples=(Sample(source=sample.source, time=sample.time),),
        )
        for sample in machine.samples
    )


def seconds(time: str | None) -> float | None:
    """Return the seconds since the epoch for a sample's time; None if it has none or it is invalid."""
    try:
        return None if time is None else datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError, OSError):  # an edited recording
        return None


def _of_gpu(sample: Sample, index: int) -> dict[str, Any]:
    facts: Iterable[dict[str, Any]] = (gpu for gpu in sample.gpus if gpu["index"] == index)
    return next(iter(facts), {})


def _plain(value: Any) -> Any:
    """Return a value as JSON returns it."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
