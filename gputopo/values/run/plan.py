"""The values of a plan and their JSON form (`gputopo.plan/1`). Who decides: `gputopo.planner`."""

from typing import Annotated, Literal

import msgspec

from gputopo.values.run.all_reduce import PATTERN

VariableUpdate = Literal["parameter_server", "replicated", "independent"]
AllReduce = Annotated[str, msgspec.Meta(pattern=PATTERN)]
"""A name of `gputopo.values.run.all_reduce`, with the number of parts where it has one: `copy`, `ring#2`."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set of GPUs with a place for the variables and a method to reduce the gradients.

    `gpus` are indices of the machine (PCI order), in the order of the towers. `ps_device` is `cpu`, `gpu:N`
    (N an index of the machine), `gpu:spread` (over all chosen, by bytes) or None where every tower has its
    own copy. `all_reduce` is None where nothing is reduced between replicas. Speeds are predictions, None
    where nothing was predicted.
    """

    gpus: tuple[int, ...]
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    step_ms: float | None = None
    exposed_ms: dict[str, float] = {}
    reasons: tuple[str, ...] = ()


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate or a request that was refused, and why."""

    reason: str
    gpus: tuple[int, ...] | None = None
    variable_update: VariableUpdate | None = None
    ps_device: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.plan/1"):
    """The chosen candidate, the others (best first, the choice included), what was refused, what to set.

    `warnings`: those of the reasons that are about GPUs in use, in error, hidden or claimed by another run.
    `environment` is what a launcher must set before TensorFlow loads. `source` is the machine's source:
    a plan of a machine that is not this one is a rehearsal.
    """

    choice: Candidate
    candidates: tuple[Candidate, ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    model: str | None = None
    source: str = "live"
