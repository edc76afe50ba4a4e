"""Pairs of GPUs by the path between them: what a nearer pair gains, by mode."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import msgspec

from gputopo.measurements.cells import Cell
from gputopo.measurements.conditions import RUN_TO_RUN, holds, key
from gputopo.topology.hops import links_by_pair
from gputopo.values.machine import Hop, Machine

_NEAREST_FIRST = tuple(Hop)


class PairRow(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one mode on pairs of two classes. `near`, `far`: numbers of cells; `mode` in short.

    `gain`: mean images/sec of the near pairs over that of the far ones; `noise`: standard error as a share.
    """

    mode: str
    near_path: str
    far_path: str
    near: tuple[int, ...]
    far: tuple[int, ...]
    gain: float
    noise: float
    holds: bool


class PairTable(msgspec.Struct, frozen=True, kw_only=True):
    """All modes of one job on pairs of one machine."""

    machine: str
    model: str
    rows: tuple[PairRow, ...]


def pair_tables(cells: Sequence[Cell], machines: Mapping[str, Machine]) -> tuple[PairTable, ...]:
    """Return the table of each job on pairs of different paths. `machines`: by name, for the paths."""
    jobs: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.of.n_gpus == 2 == len(cell.of.gpus) and cell.images_per_sec is not None:
            jobs[key(cell.of, ("gpus",))].append(cell)
    rows: dict[tuple[str, str], list[PairRow]] = defaultdict(list)
    for group in jobs.values():
        of = group[0].of
        machine = machines.get(of.machine or "")
        if machine is not None and (row := _row(group, machine)) is not None:
            rows[of.machine or "", of.model].append(row)
    return tuple(
        PairTable(machine=machine, model=model, rows=tuple(some)) for (machine, model), some in rows.items()
    )


def path_between(machine: Machine, gpus: Sequence[int]) -> str | None:
    """Return the farthest path between GPUs as nvidia-smi names it, `NVLink` where all pairs have it."""
    links = links_by_pair(machine)
    found = [links.get((min(pair), max(pair))) for pair in combinations(gpus, 2)]
    if not found or any(link is None for link in found):
        return None
    if all(link.nvlinks for link in found if link):
        return "NVLink"
    hops = [link.hop for link in found if link and link.hop is not None]
    return max(hops, key=_NEAREST_FIRST.index).value if len(hops) == len(found) else None


def _row(group: Sequence[Cell], machine: Machine) -> PairRow | None:
    by_path: dict[str, list[Cell]] = defaultdict(list)
    for cell in group:
        if (path := path_between(machine, cell.of.gpus)) is not None:
            by_path[path].append(cell)
    if len(by_path) < 2:
        return None
    order = ["NVLink", *(hop.value for hop in _NEAREST_FIRST)]
    near, *_, far = sorted(by_path, key=order.index)
    gain = _mean(by_path[near]) / _mean(by_path[far])
    noise = math.hypot(_noise(by_path[near]), _noise(by_path[far]))
    return PairRow(
        mode=group[0].of.mode,
        near_path=near,
        far_path=far,
        near=tuple(cell.number for cell in by_path[near]),
        far=tuple(cell.number for cell in by_path[far]),
        gain=gain,
        noise=noise,
        holds=holds(gain, noise),
    )


def _mean(cells: Sequence[Cell]) -> float:
    return fmean(cell.images_per_sec or 0.0 for cell in cells)


def _noise(cells: Sequence[Cell]) -> float:
    """Return the standard error of the mean of several cells, as a share."""
    return fmean(cell.noise or RUN_TO_RUN for cell in cells) / math.sqrt(len(cells))
