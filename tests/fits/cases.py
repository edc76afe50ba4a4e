"""Published measurements of several GPUs as predictions: of images/sec, and of the fastest in a group."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import NamedTuple

import msgspec

from gputopo.captures import bundled_names, read_bundled
from gputopo.prediction import ModelCosts, Paths, Placement, ProgramConstants, StepPredictor, paths_of
from gputopo.reference import Published, published_figures, published_machines
from gputopo.workload import require_workload

NO_OVERLAP = {"overlap": 0.0, "ring_overlap": 0.0}


class Case(NamedTuple):
    """A measurement with all of its prediction that no constant changes.

    `group`: the same job on the same machine.
    """

    group: tuple[object, ...]
    row: Published
    model: ModelCosts
    compute_s: float
    placing: Placement
    paths: Paths

    @property
    def name(self) -> str:
        """Its place for variables."""
        row = self.row
        return f"{row.variable_update} {row.ps_device or row.all_reduce or ''}".strip()


class Constants:
    """Predictions of one program."""

    def __init__(self, program: ProgramConstants) -> None:
        self.program = program
        # A compiled step hands over its gradients at the end.
        self.compiled = msgspec.structs.replace(program, **NO_OVERLAP)

    def images_per_sec(self, case: Case) -> float:
        """Return the predicted images/sec of all GPUs of a measurement."""
        program = self.compiled if case.row.xla else self.program
        predictor = StepPredictor(case.model, program, case.paths)
        return examples(case.row) / predictor.step(case.row.gpus, case.compute_s, case.placing).step_s

    def error(self, case: Case) -> float:
        """Return the logarithm of predicted over measured images/sec."""
        return math.log(self.images_per_sec(case) / case.row.images_per_sec)


@cache
def paths_by_name(machine: str) -> Paths:
    """Return the paths of a bundled or a published machine."""
    if machine in bundled_names():
        return paths_of(read_bundled(machine))
    return paths_of(published_machines()[machine].machine())


@cache
def _model(name: str) -> ModelCosts:
    return ModelCosts.of(require_workload(name))


def cases(rows: Iterable[Published]) -> list[Case]:
    """Return what can be predicted: several GPUs, a known place for variables, a one-GPU figure."""
    found = []
    for row in rows:
        single = row.single_gpu_images_per_sec or _between_depths(row)
        if len(row.gpus) == 1 or row.variable_update is None or single is None:
            continue
        placing = Placement(row.variable_update, row.ps_device, row.all_reduce)
        paths = paths_by_name(row.machine)
        if placing.traffic is None:
            continue
        job = row.data, row.model, row.batch_per_gpu or row.batch, row.precision, row.xla
        found.append(
            Case(
                (row.machine, row.source, row.version, *job, len(row.gpus)),
                row,
                _model(row.model),
                examples(row) / len(row.gpus) / single,
                placing,
                paths,
            )
        )
    return found


def examples(row: Published) -> int:
    """Return the examples of a step of all GPUs."""
    return row.batch or len(row.gpus) * (row.batch_per_gpu or 0)


def _between_depths(row: Published) -> float | None:
    """Return the one-GPU figure of resnet101 between those of resnet50 and resnet152, by layers."""
    if row.model != "resnet101":
        return None
    seconds = {
        other.model: 1 / other.single_gpu_images_per_sec
        for other in published_figures()
        if (other.source, other.precision) == (row.source, row.precision) and other.single_gpu_images_per_sec
    }
    return 2 / (seconds["resnet50"] + seconds["resnet152"])


def grouped(some: Iterable[Case]) -> list[list[Case]]:
    """Return the measurements by group."""
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in some:
        groups[case.group].append(case)
    return list(groups.values())


def used(program: str) -> list[Case]:
    """Return the measurements that a program's constants are fitted to: synthetic data, all in fp32.

    In fp16 these programs without XLA lose half of their speed with several GPUs and batch normalization,
    whatever the links.
    """
    return published_cases(program, data="synthetic", precision="fp32")


def published_cases(program: str, **those: object) -> list[Case]:
    """Return the measurements of a program with an exchange whose columns have `those` values."""
    rows = (row for row in published_figures() if row.program == program and not row.is_suspect)
    having = [row for row in rows if all(getattr(row, name) == value for name, value in those.items())]
    return [case for case in cases(having) if case.placing.traffic != "none"]


def score(some: Iterable[Case], constants: Mapping[str, Constants]) -> list[float]:
    """Return the relative errors of images/sec by each machine's constants, sorted."""
    return sorted(abs(math.expm1(constants[case.row.machine].error(case))) for case in some)


def score_words(errors: Sequence[float]) -> str:
    """Return the number, median, p90 and maximum of errors."""
    middle, most = median(errors), quantile(errors, 0.9)
    return f"{len(errors):4} figures: median {middle:.1%}, p90 {most:.1%}, worst {errors[-1]:.1%}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that so large a share of an ordered sequence is below."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
