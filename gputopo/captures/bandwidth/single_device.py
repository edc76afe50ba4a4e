"""Which GPU each run of a program is of that sees one device and calls it 0: `bandwidthTest`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from gputopo.captures import places
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.machine import Machine

SOURCE = "bandwidthTest"

_IN_NAME = re.compile(r"(?:gpu|device|dev|cuda)[ _.-]?(\d{1,3})(?!\d)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `visible`: the GPU by CUDA_VISIBLE_DEVICES; `label`: a number near it; `printed`: its own."""

    visible: int | None
    label: int | None
    printed: int
    name: str | None
    samples: tuple[Sample, ...]


def numbers(runs: Sequence[Run]) -> tuple[list[int], list[str]]:
    """Return each run's GPU, and what was assumed.

    In this order: CUDA_VISIBLE_DEVICES; their own numbers, where one is above 0; the numbers beside
    them, where all differ; GPU 0 for all, where they complete one another; else their order.
    """
    own = [run.printed if run.visible is None else run.visible for run in runs]
    if len(runs) < 2 or any(own) or all(run.visible is not None for run in runs):
        said = "CUDA_VISIBLE_DEVICES names the GPU of each run" if any(run.visible for run in runs) else None
        return own, [said] if said else []
    labels = [run.label for run in runs if run.label is not None]
    if len(set(labels)) == len(runs):
        return labels, [
            f"{SOURCE} calls its only device 0; the GPUs are numbered as the lines above the runs"
        ]
    if are_of_one_gpu([(run.name, run.samples) for run in runs]):
        return own, []
    return list(range(len(runs))), [
        f"{SOURCE} calls its only device 0 in each of {len(runs)} runs; they are taken as GPUs 0 to "
        f"{len(runs) - 1} in their order"
    ]


def are_of_one_gpu(runs: Sequence[tuple[str | None, Sequence[Sample]]]) -> bool:
    """Return whether runs complete one another: cards of one name, and nothing measured twice."""
    measured = [key for _, samples in runs for key in {(s.kind, s.pinned, s.bytes) for s in samples}]
    return len({name for name, _ in runs}) == 1 and len(measured) == len(set(measured))


def renumbered(sources: Sequence[str], machines: Sequence[Machine]) -> list[Machine]:
    """Number the single devices of captures that are read together.

    By the number in each file's name where all have one and all differ, else by the order of the files. One
    file alone keeps its GPU 0; beside captures of a machine with several GPUs the number in its name counts.
    """
    single = [position for position, machine in enumerate(machines) if _is_single(machine)]
    larger = any(len(machine.gpus) > 1 for machine in machines)
    given = list(machines)
    if not single or (len(single) < 2 and not larger):
        return given
    named = [_number_in(sources[position]) for position in single]
    if None not in named and len(set(named)) == len(single):
        new = [number for number in named if number is not None]
        how = "the number in its file's name"
    elif len(single) < 2 or are_of_one_gpu([_name_and_samples(machines[position]) for position in single]):
        return given
    else:
        new = list(range(len(single)))
        how = "its place among the files, whose names do not number them"
    for position, index in zip(single, new, strict=True):
        given[position] = _as(machines[position], index, how)
    return given


def _is_single(machine: Machine) -> bool:
    return machine.source == SOURCE and [gpu.index for gpu in machine.gpus] == [0]


def _number_in(source: str) -> int | None:
    found = _IN_NAME.findall(PurePath(source).name)
    return int(found[-1]) if found else None


def _name_and_samples(machine: Machine) -> tuple[str | None, Sequence[Sample]]:
    return machine.gpus[0].name, machine.bandwidth.samples if machine.bandwidth else ()


def _as(machine: Machine, index: int, how: str) -> Machine:
    bandwidth = places.renumbered(machine.bandwidth or Bandwidth(source=SOURCE), {0: index})
    note = f"{SOURCE} calls its only device 0; it is taken as GPU {index} by {how}"
    return msgspec.structs.replace(
        machine,
        gpus=(msgspec.structs.replace(machine.gpus[0], index=index),),
        bandwidth=msgspec.structs.replace(bandwidth, notes=(*bandwidth.notes, note)),
    )
