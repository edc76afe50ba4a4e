"""Published decisions: one job on one machine with several placements, by one author (`decisions.csv`).

Sources were listed before the choice was changed; no constant was fitted to them. `beats_rules` has what the
choice of `plan` and four rules of one line lose of the fastest placement that was measured.
"""

import csv
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from gputopo.planner import Request, plan
from gputopo.reference import expected_gpu
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.run.plan import Candidate

KINDS = ("nccl", "copy", "spread", "first", "cpu")
"""Columns: NCCL; replicas that add without it; variables over all GPUs, on the first one, on the CPU."""
NEAR = 0.02  # a choice this close to the best is a good one


class PublishedDecision(NamedTuple):
    """A row. `speeds`: by kind of placement, in any unit."""

    source: str
    machine: Machine
    model: str
    batch: int | None
    precision: str
    speeds: Mapping[str, float]

    @property
    def has_peer_access(self) -> bool:
        """Whether the GPUs copy directly to one another, as stated or assumed."""
        return self.machine.links[0].p2p_read == "OK"

    @property
    def is_before_volta(self) -> bool:
        """Whether the GPUs are of an architecture before Volta."""
        row = expected_gpu(self.machine.gpus[0].name)
        return row is not None and row.architecture in ("Fermi", "Kepler", "Maxwell", "Pascal")

    def loss(self, kind: str) -> float:
        """Return the share that a placement loses of the best; the next kind if it was not measured."""
        order = {"cpu": ("cpu", "nccl"), "copy": ("copy", "spread", "first", "nccl", "cpu")}.get(
            kind, (kind,)
        )
        measured = next(one for one in (*order, *KINDS) if one in self.speeds)
        return 1 - self.speeds[measured] / max(self.speeds.values())


@cache
def published_decisions() -> tuple[PublishedDecision, ...]:
    """Return the rows of `decisions.csv`."""
    with (Path(__file__).parent / "decisions.csv").open(newline="") as file:
        return tuple(map(_decision, csv.DictReader(file)))


def _decision(row: Mapping[str, str]) -> PublishedDecision:
    peers, count = "OK" if row["peer"] == "yes" else "CNS", int(row["count"])
    nvlinks = 1 if row["links"] == "NVLink" else 0
    links = (
        Link(a=a, b=b, hop=Hop.PHB, nvlinks=nvlinks, p2p_read=peers, p2p_write=peers)
        for a, b in combinations(range(count), 2)
    )
    machine = Machine(
        source=row["source"],
        gpus=tuple(Gpu(index=index, name=row["gpu"]) for index in range(count)),
        links=tuple(links),
    )
    speeds = {kind: float(row[kind]) for kind in KINDS if row[kind]}
    batch = int(row["batch_per_gpu"]) if row["batch_per_gpu"] else None
    return PublishedDecision(row["source"], machine, row["model"], batch, row["precision"], speeds)


def choice_of(one: PublishedDecision) -> str:
    """Return the kind of placement that `plan` chooses for a decision, knowing its job and machine."""
    precision = "fp16" if one.precision == "fp16" else "fp32"
    job = Request(num_gpus=len(one.machine.gpus), model=one.model, batch_size=one.batch, precision=precision)
    try:
        return kind_of(plan(one.machine, job, keep=1).choice)
    except UsageError:  # a model that gputopo does not have: nothing is predicted
        return kind_of(plan(one.machine, Request(num_gpus=len(one.machine.gpus)), keep=1).choice)


def kind_of(candidate: Candidate) -> str:
    """Return the column of a placement."""
    device = candidate.ps_device
    if device is None:
        return "nccl" if candidate.all_reduce == "nccl" else "copy"
    return device if device == "cpu" else "spread" if device == "gpu:spread" else "first"


RULES: Mapping[str, Callable[[PublishedDecision], str]] = {
    "plan": choice_of,
    "always NCCL": lambda one: "nccl",
    "always replicated without NCCL": lambda one: "copy",
    "CPU server": lambda one: "cpu",
    "the rule": lambda one: "cpu" if one.is_before_volta and not one.has_peer_access else "nccl",
}
