"""The values of a plan and their JSON form (`gputopo.plan/1`). Who decides: `gputopo.planner`."""

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Literal

import msgspec

from gputopo.values.run.all_reduce import PATTERN
from gputopo.values.run.batches import BatchSize

VariableUpdate = Literal["parameter_server", "replicated", "independent"]
Evidence = Literal["measured", "rule", "predicted"]
"""What speaks for a placement: it was measured on this machine, the rule, a prediction."""
# A prediction decides only beyond this: on machines that were left out of the fit nine of ten predicted
# ratios of two placements are within it (`tests.fits.ranges`).
CLEARLY_FASTER = 1.25
AllReduce = Annotated[str, msgspec.Meta(pattern=PATTERN)]
"""A name of `gputopo.values.run.all_reduce`, with the number of parts where it has one: `copy`, `ring#2`."""

# Candidates of one mode that differ by less are shown as one. Not measured with the present constants; chosen
# because single runs vary by up to 2% on an idle machine, so that two of them may differ by more.
SURE_MARGIN = 0.05
HOST_PS = "host:"  # --ps host:2: on the CPU of the host of rank 2, of several hosts
SPREAD = "gpu:spread"  # --ps: the variables are spread over the GPUs
ALL = 10**9  # candidates that a plan lists: as many as there are
CPU_DEVICES = 2  # logical CPU devices of a host without GPUs, unless --num-gpus asks for another number
# Jobs from which numbers of a box are learned: one may have been disturbed, and nothing would show it.
MIN_JOBS = 2


class HostGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one of several hosts by their indices there. `devices`: their number, or of CPU devices."""

    host: str
    gpus: tuple[int, ...] = ()
    devices: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set of GPUs with a place for the variables and a method to reduce the gradients.

    `gpus` are indices of the machine (PCI order), in the order of the towers. `ps_device` is `cpu`, `gpu:N`
    (N an index of the machine), `gpu:spread` (over all chosen, by bytes) or None where every tower has its
    own copy; of several hosts these are on the first one, and `host:N` is the CPU of rank N. `all_reduce` is
    None where nothing is reduced between replicas.

    `batch_sizes`: examples of each GPU and step where they differ, else none. Speeds are predictions, or as
    measured if `evidence` is "measured"; None where nothing was predicted, low and high also where their
    range is wider than a factor of 2. `speedup`: over the fastest of its GPUs alone. A step lasts for
    `compute_ms`, and longer by the parts in `exposed_ms` (`weights`, `gradients`, `variables`, over several
    hosts `network`).

    `hosts`: over several hosts what each trains with, by rank; `gpus` are then those of the first.
    """

    gpus: tuple[int, ...]
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    evidence: Evidence = "rule"
    alike: int = 1  # how many sets it stands for that differ only by GPUs that are alike, itself included
    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    speedup: float | None = None
    step_ms: float | None = None
    batch_sizes: tuple[int, ...] = ()
    compute_ms: float | None = None
    exposed_ms: dict[str, float] = {}
    links: dict[str, str] = {}  # for weights, gradients and network, what limits them
    limited_by: str | None = None  # what limits the step
    reasons: tuple[str, ...] = ()
    hosts: tuple[HostGpus, ...] = ()


def mode_of(one: Candidate) -> tuple[str, str, str]:
    """Return the mode, whichever GPU has the variables."""
    return one.variable_update, (one.ps_device or "").rstrip("0123456789"), one.all_reduce or ""


def mode_words(candidate: Candidate) -> str:
    """Return where the variables are in short: `parameter_server gpu:0`, `replicated nccl`."""
    return " ".join(filter(None, (candidate.variable_update, candidate.ps_device, candidate.all_reduce)))


class ResourceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a resource carries in a step, or each of several that carry the same (`count`).

    10^6 bytes of weights and of gradients; what forward waits for these weights, what these gradients take;
    when the last of them is through. Milliseconds, the last from the start of the step.
    """

    resource: str
    count: int = 1
    weights_mb: float
    wait_ms: float
    gradients_mb: float
    busy_ms: float
    through_ms: float


class BlockGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The gradients of a block: 10^6 bytes, when they are ready and through, in ms from the step's start."""

    block: str
    mb: float
    ready_ms: float
    through_ms: float


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """A step, part after part."""

    weights_ms: float
    forward_ms: float
    backward_ms: float
    gradients_ms: float  # until the gradients are through, after backward has ended
    variables_ms: float
    resources: tuple[ResourceLoad, ...]  # the slowest first
    blocks: tuple[BlockGradients, ...]  # in the order of backward


Settled = Literal["lead", "same", "time", "stopped", "failed"]


class TimedRun(msgspec.Struct, frozen=True):
    """Speed of one short run, and the standard error of the speeds of its steps as a share of it."""

    images_per_sec: float
    noise: float


class MeasuredPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate with its prediction, and its runs, one for each round; `failure`: why it was given up."""

    candidate: Candidate
    runs: tuple[TimedRun, ...] = ()
    failure: str | None = None

    @property
    def images_per_sec(self) -> float | None:
        """Median over the rounds; None before the first run."""
        return median(run.images_per_sec for run in self.runs) if self.runs else None


class Autotune(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.autotune/1"):
    """What was measured.

    `settled`: "lead": its lead exceeds the noise; "same": what another round could gain is below 1 %; "time":
    `budget_s` was used up; "stopped": by a signal; "failed": no other could be run.
    """

    winner: int | None  # the place of the fastest in `measured`, None where none was measured
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
    """Images/sec of a placement on GPUs of this machine. `batch`: examples of a GPU; `says`: by what.

    Two are of the same `conditions` if program, version, data and batches are the same.
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
    """What earlier runs of this machine show.

    `runs`: so many of several GPUs, of `jobs` different jobs. `step_factor`: measured over predicted seconds
    of a step. `speeds`: of their placements.
    """

    runs: int
    jobs: int
    step_factor: float = 1.0
    speeds: tuple[MeasuredSpeed, ...] = ()


class GpuCount(msgspec.Struct, frozen=True, kw_only=True):
    """The best plan with so many GPUs.

    `gain`: what it adds to the count before it, as a share of what as many ideal GPUs would add.
    """

    num_gpus: int
    images_per_sec: float
    speedup: float  # over one GPU
    gain: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """From what a plan was predicted, and how sure its choice is.

    `margin`: by how much of the choice's images/sec the runner-up is slower, below 0 if it is faster; None
    without one or where runs decided.
    """

    program: str  # the constants (`gputopo explain plan`)
    batch_size: int  # per GPU, the mean where they differ
    single_gpu_images_per_sec: dict[int, float]  # by index, and where they are from
    single_gpu_source: str
    margin: float | None = None
    learned: Learned | None = None  # from earlier runs of this box, None without such runs
    fewer: GpuCount | None = None  # the fastest plan of fewer GPUs: half of them, a quarter, ... one


class HowMany(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs were chosen with `--num-gpus auto`, why, and what other numbers would do."""

    num_gpus: int
    gain: float
    reason: str
    counts: tuple[GpuCount, ...] = ()


class GroupSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What some GPUs are predicted to do. `batch_sizes`: examples of each and a step."""

    gpus: tuple[int, ...]
    images_per_sec: float
    batch_sizes: tuple[int, ...] = ()


class Unequal(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of different speeds: what they are predicted to do.

    `alone`: those of one speed alone, and those without the slower ones, with equal batches.
    """

    together: GroupSpeed  # the chosen ones with equal batches
    alone: tuple[GroupSpeed, ...]
    in_proportion: GroupSpeed  # the chosen ones, each with a batch in proportion to its speed
    better: GroupSpeed  # the plan's own choice, or where one of these is clearly faster the fastest
    use: str = ""  # the options of a run that does it, empty where the plan does


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a machine as it is and after changes (`--what-if`).

    `asked`: whether the changes were named; else they are those that pay most, none where none pays at any
    batch.
    """

    changes: tuple[str, ...]
    before: Candidate
    after: Candidate
    share: float = 0.0  # of images/sec that the changes add
    basis: tuple[str, ...] = ()  # what was assumed of them, and what the speeds after them rest on
    asked: bool = True
    pays_at_batch: int | None = (
        None  # the largest batch of a GPU at which it pays, if it does not at this one
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.plan/1"):
    """The chosen candidate, the others (best first, the choice included), what was refused, what to set.

    `warnings`: those of the reasons that are about GPUs in use, in error, hidden or claimed by another run.
    `environment` is what a launcher must set before TensorFlow loads. `source` is the machine's source: a
    plan of a machine that is not this one is a rehearsal. `prediction` is None where the model's variables
    are not known, or no model is: the nearest set is chosen then.
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
    autotune: Autotune | None = None  # what short runs measured, where they decided (`--autotune`)
    line: StepLine | None = None  # the choice's step in time, where it was asked for (`--explain`)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The chosen GPUs, by index."""
        return self.choice.gpus

    @property
    def images_per_sec(self) -> float | None:
        """The predicted speed of the choice, all GPUs together; None: nothing is predicted."""
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

    Where nothing was predicted all others. Another training (`independent`) is none.
    """
    found = [choice]
    for one in candidates:
        alike = (mode_of(one) == mode_of(other) and not _is_slower(one, other) for other in found)
        trains_alike = (one.variable_update == "independent") == (choice.variable_update == "independent")
        if one != choice and trains_alike and not any(alike):
            found.append(one)
    return tuple(found[1:])


def _is_slower(one: Candidate, other: Candidate) -> bool:
    if one.images_per_sec is None or other.images_per_sec is None:
        return True
    return one.images_per_sec < (1 - SURE_MARGIN) * other.images_per_sec
