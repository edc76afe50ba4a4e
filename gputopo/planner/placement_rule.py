"""The first rule for where the variables live. It looks at the GPUs' distances only, not at the model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.copies.pair_speeds import Pair, PairSpeed, gb
from gputopo.planner.request import SPREAD
from gputopo.values.plan import AllReduce, VariableUpdate

RULE = "two-in-one-island"
MOST_GPUS_ON_GPU_PS = 2
"""Above this the variables go to the CPU: the weights and gradients of every GPU but the one that holds the
variables cross that one's link. With two GPUs one tower's cross it, with four those of three."""


class Placement(NamedTuple):
    """Who holds the variables, what reduces the gradients, and why."""

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
    auto or a VariableUpdate. `all_reduce`: what replicated shall reduce with.
    Whether these go together and N is one of `gpus` was checked before. `speeds`: pairs as they were
    measured, those that were.
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
        why = "variables spread over the GPUs by size, as asked"
        return Placement("parameter_server", ps, None, (why, *_relevance(gpus, ps), *slow.values()))
    of_holder = [said for pair, said in slow.items() if ps in (f"gpu:{pair[0]}", f"gpu:{pair[1]}")]
    why = f"variables on {ps}, as asked"
    return Placement("parameter_server", ps, None, (why, *_relevance(gpus, ps), *of_holder))


def _slow_directs(gpus: Sequence[int], speeds: Mapping[Pair, PairSpeed]) -> dict[Pair, str]:
    """Give the pairs among these GPUs that copy faster through the host, and that in words."""
    return {
        (a, b): f"between GPUs {a} and {b} direct is slower than staged: {gb(speed.direct or 0.0)} "
        f"against {gb(speed.staged or 0.0)} GB/s measured"
        for (a, b), speed in speeds.items()
        if a in gpus and b in gpus and speed.direct_is_slower
    }


def _by_rule(gpus: Sequence[int], one_island: bool, slow: Mapping[Pair, str]) -> tuple[str, str]:
    first = f"gpu:{gpus[0]}"
    if len(gpus) == 1:
        return first, f"variables on {first}: a single GPU is nearest to its own memory (rule {RULE})"
    if len(gpus) > MOST_GPUS_ON_GPU_PS:
        return "cpu", f"variables on the CPU: {len(gpus)} GPUs, above {MOST_GPUS_ON_GPU_PS} (rule {RULE})"
    if not one_island:
        return "cpu", f"variables on the CPU: the GPUs are not in one PIX island (rule {RULE})"
    if slow:
        # What is staged crosses the holder's link as well; from the host it crosses one link only.
        return "cpu", f"variables on the CPU: {next(iter(slow.values()))}"
    return first, f"variables on {first}: up to {MOST_GPUS_ON_GPU_PS} GPUs in one PIX island (rule {RULE})"


def _relevance(gpus: Sequence[int], device: str) -> tuple[str, ...]:
    if len(gpus) == 1:
        return ()
    if device == "cpu":
        return (
            "how near the GPUs are to one another hardly matters here: "
            "with variables on the CPU, weights and gradients go between each GPU and the host",
        )
    return (
        "how near the GPUs are to one another matters here: weights and gradients go between them"
        if device == SPREAD
        else f"how near the GPUs are to one another matters here: weights and gradients go between {device} "
        "and the others",
    )


def _replicated_reasons(gpus: Sequence[int], all_reduce: AllReduce | None) -> tuple[str, ...]:
    own = "variables on every GPU, as asked"
    if len(gpus) == 1:
        return (own,)
    if all_reduce is not None and all_reduce.partition("#")[0] == "pscpu":
        hardly = "how near the GPUs are to one another hardly matters here: gradients are added on the CPU"
        return (own, hardly)
    return (own, "how near the GPUs are to one another matters here: gradients go between them")


def _independent_reasons(gpus: Sequence[int]) -> tuple[str, ...]:
    own = "a model of its own on every GPU, as asked"
    if len(gpus) == 1:
        return (own,)
    return (own, "how near the GPUs are to one another does not matter here: nothing goes between them")
