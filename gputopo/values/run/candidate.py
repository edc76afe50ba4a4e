"""A set of GPUs with a place for the variables: what a plan chooses among."""

from typing import Annotated, Literal

import msgspec

from gputopo.values.run.all_reduce import PATTERN

VariableUpdate = Literal["parameter_server", "replicated", "independent"]
AllReduce = Annotated[str, msgspec.Meta(pattern=PATTERN)]
"""A name of `gputopo.values.run.all_reduce`, with the number of parts where it has one: `copy`, `ring#2`."""


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
    None where nothing is reduced between replicas. `alike`: how many sets it stands for that differ only by
    GPUs that are alike, itself included.

    `batch_sizes`: examples of each GPU and step where they differ, else none.
    Speeds are predictions, None where nothing was predicted. `speedup`: over the fastest of its GPUs alone.
    A step lasts for `compute_ms`, and longer by the parts in `exposed_ms` (`weights`, `gradients`,
    `variables`, over several hosts `network`); `links`: for weights, gradients and network, what limits them.
    `limited_by`: what limits the step.

    `hosts`: over several hosts what each trains with, by rank; `gpus` are then those of the first.
    """

    gpus: tuple[int, ...]
    variable_update: VariableUpdate = "parameter_server"
    ps_device: str | None = None
    all_reduce: AllReduce | None = None
    alike: int = 1
    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    speedup: float | None = None
    step_ms: float | None = None
    batch_sizes: tuple[int, ...] = ()
    compute_ms: float | None = None
    exposed_ms: dict[str, float] = {}
    links: dict[str, str] = {}
    limited_by: str | None = None
    reasons: tuple[str, ...] = ()
    hosts: tuple[HostGpus, ...] = ()


def mode_of(one: Candidate) -> tuple[str, str, str]:
    """Return the mode, whichever GPU has the variables."""
    return one.variable_update, (one.ps_device or "").rstrip("0123456789"), one.all_reduce or ""


def mode_words(candidate: Candidate) -> str:
    """Return where the variables are in short: `parameter_server gpu:0`, `replicated nccl`."""
    return " ".join(filter(None, (candidate.variable_update, candidate.ps_device, candidate.all_reduce)))
