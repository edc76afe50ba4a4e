"""What decides where the variables are: measurements of this machine, else a rule, else a clear prediction.

Measurements are earlier runs of this job here, or the published measurements of a bundled machine. They are
used if at least two placements were measured under the same conditions.

The rule: every GPU has a copy of the variables, and NCCL adds the gradients, through host memory if there is
no peer access. Only GPUs before Volta without any peer access keep the variables on the CPU, because NCCL 1,
with which they were measured, is slow there. On published decisions this rule loses less than three other
rules of one line (`python -m tests.benchmarks.bench_decisions`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import log2
from typing import NamedTuple

from gputopo.captures import bundled_names, read_bundled
from gputopo.prediction import BY_NCCL, SAME_RUN, Paths, Placement
from gputopo.reference import expected_of, published_figures
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Evidence, MeasuredSpeed

BEFORE_VOLTA = ("Fermi", "Kepler", "Maxwell", "Pascal")


class Decision(NamedTuple):
    """A placement, its evidence and its reasons. `speeds`: measured images/sec on these GPUs and batch."""

    placing: Placement
    evidence: Evidence
    reasons: tuple[str, ...]
    speeds: Mapping[Placement, float] = {}


def rule(machine: Machine, paths: Paths, gpus: Sequence[int]) -> tuple[Placement, str]:
    """Return the placement of the rule for several GPUs, and why."""
    if paths.has_peer_access(gpus):
        return BY_NCCL, "by rule: a copy of the variables on each GPU, and NCCL adds the gradients"
    rows = [expected_of(gpu) for gpu in machine.gpus if gpu.index in gpus]
    if all(row is not None and row.architecture in BEFORE_VOLTA for row in rows):
        return Placement(
            "parameter_server", "cpu"
        ), "by rule: GPUs before Volta without peer access keep the variables on the CPU"
    return BY_NCCL, (
        "by rule: a copy of the variables on each GPU, and NCCL adds the gradients through host memory, "
        "because there is no peer access"
    )


def published_speeds(machine: Machine) -> tuple[MeasuredSpeed, ...]:
    """Return the published measurements of a bundled machine with several GPUs; none for other machines."""
    name = _bundled_name(machine)
    return tuple(
        MeasuredSpeed(
            model=row.model,
            precision=row.precision,
            batch=(row.batch or 0) / len(row.gpus) if row.batch_per_gpu is None else row.batch_per_gpu,
            gpus=row.gpus,
            variable_update=row.variable_update,
            ps_device=row.ps_device,
            all_reduce=row.all_reduce,
            images_per_sec=row.images_per_sec,
            conditions=f"{row.source} {row.program} {row.version} {row.batch_per_gpu or row.batch}",
            says=" ".join(filter(None, (row.program, row.version))),
        )
        for row in (published_figures() if name else ())
        if row.machine == name and len(row.gpus) > 1 and row.variable_update is not None
        if row.data == "synthetic" and not row.xla and not row.is_suspect
    )


def _bundled_name(machine: Machine) -> str | None:
    if not machine.source.startswith("bundled machine"):
        return None

    def identity(either: Machine) -> object:
        return [(gpu.name, gpu.pci_address) for gpu in either.gpus], either.host.cpu_model

    return next((name for name in bundled_names() if identity(read_bundled(name)) == identity(machine)), None)


def measured(
    speeds: Iterable[MeasuredSpeed], gpus: Sequence[int], batch: float, by_rule: Placement
) -> Decision | None:
    """Return the fastest measured placement of a job; None if there are not two to compare.

    `speeds`: of this model and precision, on GPUs with the same distances, in allowed placements. Batches
    within a factor of two are used. Measurements on these GPUs take precedence over those on other GPUs. If
    the difference is below SAME_RUN, the placement of the rule wins.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[Placement, MeasuredSpeed]] = defaultdict(dict)
    for speed in speeds:
        if abs(log2(speed.batch / batch)) <= 1:
            groups[speed.conditions, speed.gpus].setdefault(Placement.of(speed), speed)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return None

    def fit(group: Mapping[Placement, MeasuredSpeed]) -> tuple[object, ...]:
        first = next(iter(group.values()))
        return set(first.gpus) != set(gpus), abs(log2(first.batch / batch)), -len(group)

    group = min(several, key=fit)
    rates = {placing: speed.images_per_sec for placing, speed in group.items()}
    order = sorted(rates, key=rates.__getitem__, reverse=True)
    if rates.get(by_rule, 0.0) >= (1 - SAME_RUN) * rates[order[0]]:
        order.sort(key=lambda placing: placing != by_rule)
    best = group[order[0]]
    on_these = set(best.gpus) == set(gpus)
    where = "" if on_these else f" on GPUs {','.join(map(str, best.gpus))}"
    fastest, *others = (f"{placing.words} {rates[placing]:,.0f}" for placing in order[:3])
    job = f"{best.says}{where}, batch {best.batch:g}"
    reason = f"measured with {job}: {fastest} images/sec; {', '.join(others)}"
    return Decision(order[0], "measured", (reason,), rates if on_these and best.batch == batch else {})
