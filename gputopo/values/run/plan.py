"""The values of a plan and their JSON form (`gputopo.plan/1`). `gputopo.planner` makes the decisions."""

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Literal

import msgspec

from gputopo.values.run.all_reduce import PATTERN
from gputopo.values.run.batches import BatchSize

VariableUpdate = Literal["parameter_server", "replicated", "independent"]
Evidence = Literal["measured", "rule", "predicted"]
"""Why a placement was chosen: it was measured on this machine, by the rule, or by a prediction."""
# A prediction decides only above this: for machines that were not used for the fit, nine of ten predicted
# ratios of two placements are within it (`tests.fits.ranges`).
CLEARLY_FASTER = 1.25
AllReduce = Annotated[str, msgspec.Meta(pattern=PATTERN)]
"""A name of `gputopo.values.run.all_reduce`, with the number of parts if it has one: `copy`, `ring#2`."""

# Candidates of one mode that differ by less are shown as one. Not measured with the present constants; chosen
# because single runs vary by up to 2% on an idle machine, so that two of them may differ by more.
SURE_MARGIN = 0.05
HOST_PS = "host:"  # --ps host:2: on the CPU of the host of rank 2
SPREAD = "gpu:spread"  # --ps: the variables are spread over the GPUs
ALL = 10**9  # candidates that a plan lists: no limit
CPU_DEVICES = 2  # logical CPU devices of a host without GPUs, unless --num-gpus is given
# Minimum number of jobs to learn from: a single one may have been disturbed without any sign of it.
MIN_JOBS = 2


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one of several hosts, by their indices there. `devices`: number of GPUs or CPU devices."""

    host: str
    gpus: tuple[int, ...] = ()
    devices: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set of GPUs with a placement of the variables and a method to reduce the gradients.

    `gpus`: indices of the machine (PCI order), in tower order. `ps_device`: `cpu`, `gpu:N` (N an index of the
    machine), `gpu:spread` (over all chosen GPUs, by bytes), or None if every tower has its own copy. With
    several hosts these are on the first host, and `host:N` is the CPU of rank N. `all_reduce`: None if
    nothing is reduced between replicas.

    `batch_sizes`: examples per step of each GPU if they differ, else empty. Speeds are predicted, or measured
    if `evidence` is "measured". They are None if nothing was predicted; low and high are also None if their
    range is wider than a factor of 2. `speedup`: over the fastest of its GPUs by itself. A step lasts for
    `compute_ms` plus the parts in `exposed_ms` (`weights`, `gradients`, `variables`, with several hosts
    `network`).

    `hosts`: with several hosts, what each trains with, by rank. `gpus` are then the GPUs of the first host.
    """

    gpus: tuple[int, ...]
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    evidence: Evidence = "rule"
    alike: int = 1  # number of sets that it represents, with equivalent GPUs, itself included
    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    speedup: float | None = None
    step_ms: float | None = None
    batch_sizes: tuple[int, ...] = ()
    compute_ms: float | None = None
    exposed_ms: dict[str, float] = {}
    links: dict[str, str] = {}  # the links that limit weights, gradients and network
    limited_by: str | None = None  # what limits the step
    reasons: tuple[str, ...] = ()
    hosts: tuple[HostGpus, ...] = ()


def mode_of(candidate: Candidate) -> tuple[str, str, str]:
    """Return the mode, ignoring which GPU has the variables."""
    return (
        candidate.variable_update,
        (candidate.ps_device or "").rstrip("0123456789"),
        candidate.all_reduce or "",
    )


def mode_words(candidate: Candidate) -> str:
    """Return the placement in short: `parameter_server gpu:0`, `replicated nccl`."""
    return " ".join(filter(None, (candidate.variable_update, candidate.ps_device, candidate.all_reduce)))


class ResourceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a resource carries in a step, or each of `count` resources with the same load.

    `weights_mb`, `gradients_mb`: in 10^6 bytes. `wait_ms`: how long the forward pass waits for these weights.
    `busy_ms`: how long these gradients take. `through_ms`: when the last of them is transferred, from the
    start of the step.
    """

    resource: str
    count: int = 1
    weights_mb: float
    wait_ms: float
    gradients_mb: float
    busy_ms: float
    through_ms: float


class BlockGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of a block, in 10^6 bytes. `ready_ms`, `through_ms`: from the start of the step."""

    block: str
    mb: float
    ready_ms: float
    through_ms: float


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step in order of time."""

    weights_ms: float
    forward_ms: float
    backward_ms: float
    gradients_ms: float  # from the end of the backward pass until the gradients are transferred
    variables_ms: float
    resources: tuple[ResourceLoad, ...]  # the slowest first
    blocks: tuple[BlockGradients, ...]  # in the order of backward


Settled = Literal["lead", "same", "time", "stopped", "failed"]


class TimedRun(msgspec.Struct, frozen=True):
    """Speed of one short run, and its standard error over the steps, as a share of it."""

    images_per_sec: float
    noise: float


class MeasuredPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate with its prediction and its runs, one per round. `failure`: why it was given up."""

    candidate: Candidate
    runs: tuple[TimedRun, ...] = ()
    failure: str | None = None

    @property
    def images_per_sec(self) -> float | None:
        """Median over the rounds; None before the first run."""
        return median(run.images_per_sec for run in self.runs) if self.runs else None


class Autotune(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.autotune/1"):
    """The result of autotuning.

    `settled`: "lead": the winner's lead exceeds the noise; "same": another round could gain less than 1 %;
    "time": `budget_s` was used up; "stopped": by a signal; "failed": no other candidate could run.
    """

    winner: int | None  # index of the fastest in `measured`, None if none was measured
    settled: Settled
    measured: tuple[MeasuredPlacement, ...]
    seconds: float
    budget_s: float
    model: str
    batch_size: BatchSize


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate or a request that was refused, and why."""

    reason: str
    gpus: tuple[int, ...] | None = None
    variable_update: VariableUpdate | None = None
    ps_device: str | None = None


class MeasuredSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Measured images/sec of a placement on GPUs of this machine. `batch`: per GPU; `says`: the source.

    `conditions` are equal if program, version, data and batches are the same.
    """

    model: str
    precision: str
    batch: float
    gpus: tuple[int, ...]
    variable_update: VariableUpdate
    ps_device: str | None = None
    all_reduce: str | None = None
    images_per_sec: float
    conditions: str
    says: str


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier runs on this machine show.

    `runs`: number of runs on several GPUs, of `jobs` different jobs. `step_factor`: measured over predicted
    seconds of a step. `speeds`: measured speeds of their placements.
    """

    runs: int
    jobs: int
    step_factor: float = 1.0
    speeds: tuple[MeasuredSpeed, ...] = ()


class GpuCount(msgspec.Struct, frozen=True, kw_only=True):
    """The best plan with this number of GPUs.

    `gain`: what it adds to the previous count, as a share of what the same number of ideal GPUs would add.
    """

    num_gpus: int
    images_per_sec: float
    speedup: float  # over one GPU
    gain: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was predicted from, and how certain the choice is.

    `margin`: the share of the choice's images/sec by which the runner-up is slower, below 0 if it is faster;
    None without a runner-up, or if runs decided.
    """

    program: str  # the constants (`gputopo explain plan`)
    batch_size: int  # per GPU; the mean if they differ
    single_gpu_images_per_sec: dict[int, float]  # by GPU index; `single_gpu_source`: where they are from
    single_gpu_source: str
    margin: float | None = None
    learned: Learned | None = None  # from earlier runs on this machine, None without such runs
    fewer: GpuCount | None = None  # the fastest plan with fewer GPUs: half of them, a quarter, ... one


class HowMany(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs `--num-gpus auto` chose, why, and what other numbers would do."""

    num_gpus: int
    gain: float
    reason: str
    counts: tuple[GpuCount, ...] = ()


class GroupSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted speed of some GPUs. `batch_sizes`: examples of each per step."""

    gpus: tuple[int, ...]
    images_per_sec: float
    batch_sizes: tuple[int, ...] = ()


class Unequal(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted speeds of GPUs of different speeds.

    `alone`: with equal batches, the GPUs of one speed, and all without the slower ones.
    """

    together: GroupSpeed  # the chosen GPUs with equal batches
    alone: tuple[GroupSpeed, ...]
    in_proportion: GroupSpeed  # the chosen GPUs, each with a batch proportional to its speed
    better: GroupSpeed  # the plan's own choice, or the fastest of these if it is clearly faster
    use: str = ""  # the options that select it for a run; empty if the plan does


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for a machine as it is and after changes (`--what-if`).

    `asked`: whether the user gave the changes. Otherwise they are the ones that help most, or none if nothing
    helps at any batch.
    """

    changes: tuple[str, ...]
    before: Candidate
    after: Candidate
    share: float = 0.0  # of images/sec: what the changes add
    basis: tuple[str, ...] = ()  # assumptions about the changes, and the source of the speeds after them
    asked: bool = True
    pays_at_batch: int | None = (
        None  # the largest batch per GPU at which the changes help, if they do not at this one
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.plan/1"):
    """The chosen candidate, all candidates (best first, including the choice), refusals, and what to set.

    `warnings`: the reasons about GPUs in use, in error, hidden, or claimed by another run. `environment`:
    variables that a launcher must set before TensorFlow loads. `source`: source of the machine; a plan of
    another machine is a rehearsal. `prediction`: None if the model's variables are not known or no model is
    given; the nearest set is chosen then.
    """

    choice: Candidate
    candidates: tuple[Candidate, ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    model: str | None = None
    source: str = "live"
    prediction: Prediction | None = None
    how_many: HowMany | None = None  # with `--num-gpus auto`
    what_if: WhatIf | None = None
    unequal: Unequal | None = None
    autotune: Autotune | None = None  # measurements of short runs, if they decided (`--autotune`)
    line: StepLine | None = None  # the timeline of the choice's step, if requested (`--explain`)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The chosen GPUs, by index."""
        return self.choice.gpus

    @property
    def images_per_sec(self) -> float | None:
        """The predicted speed of the choice, for all GPUs together; None if nothing is predicted."""
        return self.choice.images_per_sec

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that a launcher sets before TensorFlow loads."""
        return self.environment

    @property
    def runners_up(self) -> tuple[Candidate, ...]:
        """The candidates that differ from the choice, and from one another."""
        return runners_up(self.choice, self.candidates)


def runners_up(choice: Candidate, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that differ from the choice, and from one another: in mode, or by SURE_MARGIN.

    If nothing was predicted, all others. `independent`, which is a different training, is excluded.
    """
    kept = [choice]
    for candidate in candidates:
        alike = (mode_of(candidate) == mode_of(other) and not _is_slower(candidate, other) for other in kept)
        trains_alike = (candidate.variable_update == "independent") == (
            choice.variable_update == "independent"
        )
        if candidate != choice and trains_alike and not any(alike):
            kept.append(candidate)
    return tuple(kept[1:])


def rounded_ms(seconds: float) -> float:
    """Return milliseconds, rounded as in a plan."""
    return round(1e3 * seconds, 4)


def _is_slower(candidate: Candidate, other: Candidate) -> bool:
    if candidate.images_per_sec is None or other.images_per_sec is None:
        return True
    return candidate.images_per_sec < (1 - SURE_MARGIN) * other.images_per_sec
