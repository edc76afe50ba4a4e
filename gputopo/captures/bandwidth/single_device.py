"""Which GPU each run of a program is of that sees one device and calls it 0: `bandwidthTest`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from gputopo.captures import matching
from gputopo.captures.matching import SINGLE_DEVICE
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine

SOURCE = SINGLE_DEVICE

_IN_NAME = re.compile(
    r"(?:gpu|device|dev|cuda|bandwidth_?test)[ _.-]?(\d{1,3})(?!\d)", re.IGNORECASE | re.ASCII
)
_COUNTED = re.compile(r"(.*?)(\d{1,3})(?:\.\w+)*", re.ASCII)
_OF_RUNS = re.compile(
    r"(?:run|pass|iter(?:ation)?|trial|attempt|node|host|machine|server|before|after)[ _.-]?$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `visible`: the GPU by CUDA_VISIBLE_DEVICES; `label`: a number near it; `printed`: its own."""

    visible: int | None
    label: int | None
    printed: int
    name: str | None


def numbers(runs: Sequence[Run]) -> tuple[list[int], list[str]]:
    """Return each run's GPU, and what was assumed.

    In this order: CUDA_VISIBLE_DEVICES; their own numbers, where one is above 0; the numbers beside
    them, where each has one; their order, where they are of GPUs of different names; else GPU 0 for all.
    """
    own = [run.printed if run.visible is None else run.visible for run in runs]
    if len(runs) < 2 or any(own) or all(run.visible is not None for run in runs):
        said = "CUDA_VISIBLE_DEVICES names the GPU of each run" if any(run.visible for run in runs) else None
        return own, [said] if said else []
    labels = [run.label for run in runs if run.label is not None]
    if len(labels) == len(runs) and len(set(labels)) > 1:
        return labels, [
            f"{SOURCE} calls its only device 0; the GPUs are numbered as the lines above the runs"
        ]
    if len({run.name for run in runs} - {None}) < 2:
        return own, []
    return list(range(len(runs))), [
        f"{SOURCE} calls its only device 0 in each of {len(runs)} runs; the GPUs' names differ, so they are "
        f"taken as GPUs 0 to {len(runs) - 1} in their order"
    ]


def renumbered(sources: Sequence[str], machines: Sequence[Machine]) -> list[Machine]:
    """Number the single devices of captures that are read together.

    By the number in each file's name where all have one (of a GPU, or counting them from 0), else by the
    order of the files where their GPUs have different names, else all are of GPU 0. One file alone keeps its
    GPU 0; beside captures of a machine with several GPUs the number in its name counts.
    """
    single = [position for position, machine in enumerate(machines) if _is_single(machine)]
    larger = any(len(machine.gpus) > 1 for machine in machines)
    given = list(machines)
    if not single or (len(single) < 2 and not larger):
        return given
    named = _numbers_in([PurePath(sources[position]).name for position in single])
    if None not in named and (len(set(named)) > 1 or larger):
        new = [number for number in named if number is not None]
        how = "the number in its file's name"
    elif len({machines[position].gpus[0].name for position in single} - {None}) < 2:
        return given
    else:
        new = list(range(len(single)))
        how = "its place among the files, whose names do not number them"
    for position, index in zip(single, new, strict=True):
        given[position] = _as(machines[position], index, how)
    return given


def _is_single(machine: Machine) -> bool:
    return machine.source == SOURCE and [gpu.index for gpu in machine.gpus] == [0]


def _numbers_in(names: Sequence[str]) -> list[int | None]:
    """Return the number of a GPU in each name, or that by which names count from 0: result-0, result-1."""
    found = [_IN_NAME.findall(name) for name in names]
    if all(found):
        return [int(one[-1]) for one in found]
    counted = [match for name in names if (match := _COUNTED.fullmatch(name))]
    numbers = [int(match[2]) for match in counted]
    stems = {match[1] for match in counted}
    if len(stems) == 1 and sorted(numbers) == [*range(len(names))] and not _OF_RUNS.search(min(stems)):
        return [*numbers]
    return [int(one[-1]) if one else None for one in found]


def _as(machine: Machine, index: int, how: str) -> Machine:
    bandwidth = matching.renumbered_bandwidth(machine.bandwidth or Bandwidth(source=SOURCE), {0: index})
    note = f"{SOURCE} calls its only device 0; it is taken as GPU {index} by {how}"
    return msgspec.structs.replace(
        machine,
        gpus=(msgspec.structs.replace(machine.gpus[0], index=index),),
        bandwidth=msgspec.structs.replace(bandwidth, notes=(*bandwidth.notes, note)),
    )
