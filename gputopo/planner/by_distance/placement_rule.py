"""The rule for the variables' device. It uses the GPUs' distances only, not the model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.copies.numbers import Pair
from gputopo.copies.pair_speeds import PairSpeed, gb
from gputopo.values.run.plan import SPREAD, AllReduce, VariableUpdate

RULE = "two-in-one-island"
MAX_GPUS_ON_GPU_PS = 2
"""Above this the variables go to the CPU: the weights and gradients of all other GPUs use the link of the one
with the variables. With two GPUs those of one tower, with four those of three."""


class Placement(NamedTuple):
    """The device of the variables, the reduction of the gradients, and why."""

    variable_update: VariableUpdate
    ps_device: str | None
    all_reduce: AllReduce | None
    reasons: tuple[str, ...]


def place_variables(
    gpus: Sequence[int],
    *,
    one_island: bool,
    ps: str,
    variable_update: str,
    speeds: Mapping[Pair, PairSpeed] | None = None,
    all_reduce: AllReduce | None = None,
) -> Placement:
    """Place the variables of a run on these GPUs (tower order, at least one).

    `one_island`: every pair is PIX or nearer. `ps`: auto, cpu, gpu:N or gpu:spread. `variable_update`:
    auto or a VariableUpdate. `all_reduce`: the reduction of replicated.
    That these go together and N is one of `gpus` was checked before. `speeds`: the measured pairs.
    """
    if variable_update == "replicated":
        return Placement("replicated", None, all_reduce or "copy", _replicated_reasons(gpus, all_reduce))
    if variable_update == "independent":
        return Placement("independent", None, None, _independent_reasons(gpus))
    slow = _slow_directs(gpus, speeds or {})
    if ps == "auto":
        device, why = _by_rule(gpus, one_island, slow)
        return Placement("parameter_server", device, None, (why, *_relevance(gpus, device)))
    if ps == SPREAD:
        why = "variables spread over the GPUs by size, as requested"
        return Placement("parameter_server", ps, None, (why, *_relevance(gpus, ps), *slow.values()))
    of_device = [words for pair, words in slow.items() if ps in (f"gpu:{pair[0]}", f"gpu:{pair[1]}")]
    why = f"variables on {ps}, as requested"
    return Placement("parameter_server", ps, None, (why, *_relevance(gpus, ps), *of_device))


def _slow_directs(gpus: Sequence[int], speeds: Mapping[Pair, PairSpeed]) -> dict[Pair, str]:
    """Return the pairs of these GPUs that copy faster through the host, each with a message."""
    return {
        (a, b): f"between GPUs {a} and {b} direct is slower than staged: {gb(speed.direct or 0.0)} "
        f"against {gb(speed.staged or 0.0)} GB/s measured"
        for (a, b), speed in speeds.items()
        if a in gpus and b in gpus and speed.direct_is_slower
    }


def _by_rule(gpus: Sequence[int], one_island: bool, slow: Mapping[Pair, str]) -> tuple[str, str]:
    first = f"gpu:{gpus[0]}"
    if len(gpus) == 1:
        return first, f"variables on {first}: a single GPU (rule {RULE})"
    if len(gpus) > MAX_GPUS_ON_GPU_PS:
        return "cpu", f"variables on the CPU: {len(gpus)} GPUs, above {MAX_GPUS_ON_GPU_PS} (rule {RULE})"
    if not one_island:
        return "cpu", f"variables on the CPU: the GPUs are not in one PIX island (rule {RULE})"
    if slow:
        # Staged copies use the link of the GPU with the variables as well; those from the host only one.
        return "cpu", f"variables on the CPU: {next(iter(slow.values()))}"
    return first, f"variables on {first}: up to {MAX_GPUS_ON_GPU_PS} GPUs in one PIX island (rule {RULE})"


def _relevance(gpus: Sequence[int], device: str) -> tuple[str, ...]:
    if len(gpus) == 1:
        return ()
    if device == "cpu":
        return (
            "distances between GPUs hardly matter: "
            "with variables on the CPU, weights and gradients go between each GPU and the host",
        )
    return (
        "distances between GPUs matter: weights and gradients go between them"
        if device == SPREAD
        else f"distances between GPUs matter: weights and gradients go between {device} and the others",
    )


def _replicated_reasons(gpus: Sequence[int], all_reduce: AllReduce | None) -> tuple[str, ...]:
    own = "variables on every GPU, as requested"
    if len(gpus) == 1:
        return (own,)
    if all_reduce is not None and all_reduce.partition("#")[0] == "pscpu":
        hardly = "distances between GPUs hardly matter: gradients are added on the CPU"
        return (own, hardly)
    return (own, "distances between GPUs matter: gradients go between them")


def _independent_reasons(gpus: Sequence[int]) -> tuple[str, ...]:
    own = "an independent model on every GPU, as requested"
    if len(gpus) == 1:
        return (own,)
    return (own, "distances between GPUs do not matter: nothing goes between them")
