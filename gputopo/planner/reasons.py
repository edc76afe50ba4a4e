"""Why a set of GPUs was chosen, in sentences with numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from gputopo.planner.request import gpus_in_words
from gputopo.topology.hops import class_name, nearness
from gputopo.topology.reduction_groups import reduction_groups
from gputopo.values.machine import Link, Machine

Links = Mapping[tuple[int, int], Link]


def pairs_of(gpus: Sequence[int]) -> list[tuple[int, int]]:
    """Give the pairs of a set, low index first, in order."""
    return list(combinations(sorted(gpus), 2))


def distance_reasons(links: Links, gpus: Sequence[int], others: Sequence[int]) -> list[str]:
    """Say how far apart the chosen GPUs are, and how near the GPUs to choose from (`others`) come."""
    pairs = pairs_of(gpus)
    if not pairs:
        return []
    name = class_name(links.get(_farthest(links, gpus)))
    nearest = class_name(links.get(min(pairs_of(others), key=lambda pair: nearness(links.get(pair)))))
    said = _distance(links, gpus, pairs)
    if name == "unknown":
        said += "; an unknown distance counts as farther than SYS"
    if nearest != name:
        return [said, f"the closest pairs to choose from are {nearest}"]
    return [f"{said}: no pair to choose from is closer"] if name != "unknown" else [said]


def farthest_words(links: Links, gpus: Sequence[int]) -> str:
    """Say in a few words how far apart a set is: `farthest pair PHB`, `one GPU`."""
    if len(gpus) == 1:
        return "one GPU"
    return f"farthest pair {class_name(links.get(_farthest(links, gpus)))}"


def search_reason(
    looked_at: int,
    equal: int,
    size: int,
    *,
    measured: bool = False,
    avoided: Sequence[int] = (),
    troubled: bool = False,
) -> str:
    """Say among how many sets the choice is the best, by what, and how many are exactly as good.

    `avoided`: GPUs for which others were taken, as they are in use or have errors; `troubled`: so are some
    that were taken.
    """
    lowest = "the lowest"
    if avoided:
        fewest = "with the fewest GPUs in use or in error"
        lowest = f"of those {fewest if troubled else f'without {gpus_in_words(avoided)}'} the lowest"
    if looked_at == size == 1:
        return "the only GPU there is to choose from"
    if size == 1:
        return f"one GPU of {looked_at} to choose from: no pairs to compare, {lowest} index was taken"
    if looked_at == 1:
        return f"the only set of {size} there is to choose from"
    order = "measured bandwidth, slowest pair first" if measured else "topology, farthest pair first"
    best = f"best of all {looked_at} sets of {size} by {order}"
    if equal == 1:
        return f"{best}; no other set is as {'good' if measured else 'close'}"
    return f"{best}; {equal} sets are equal, {lowest} indices were taken"


def kind_reasons(machine: Machine, gpus: Sequence[int]) -> list[str]:
    """Say so where the chosen GPUs are of different kinds: the order by topology does not look at that."""
    names = {gpu.index: gpu.name for gpu in machine.gpus if gpu.index in gpus and gpu.name}
    if len(set(names.values())) < 2:
        return []
    kinds = ", ".join(f"GPU {index}: {names[index]}" for index in sorted(names))
    return [f"the GPUs are of different kinds ({kinds}): the slowest sets the pace of synchronous training"]


def pix_met(links: Links, island: Sequence[int], gpus: Sequence[int]) -> str:
    """Say that the chosen GPUs lie in this PIX island."""
    if len(gpus) == 1:
        return "--prefer-pix has nothing to choose: one GPU"
    joined = any(class_name(links.get(pair)).startswith("NV") for pair in pairs_of(gpus))
    where = "are all of" if set(island) == set(gpus) else "lie in"
    return f"--prefer-pix is met: the chosen GPUs {where} the PIX island of {gpus_in_words(island)}" + (
        ", where NVLinks count as PIX" if joined else ""
    )


def pix_unmet(largest: Sequence[int], asked: int, required: int | None) -> str:
    """Say which wish could not be met, and the largest PIX island there is (with GPU `required` in it)."""
    holding = "" if required is None else f" with GPU {required}"
    if len(largest) < 2:
        return f"--prefer-pix cannot be met: no set to choose from{holding} is known to be PIX or closer"
    return (
        f"--prefer-pix cannot be met with {asked} GPUs: the largest PIX island to choose from"
        f"{holding} has {len(largest)} ({gpus_in_words(largest)})"
    )


def pix_unmet_by_named() -> str:
    """Say that the GPUs that were named are themselves against the wish."""
    return "--prefer-pix cannot be met: the GPUs named by --gpus are not in one PIX island"


def named_reason(links: Links, closest: Sequence[int] | None) -> str:
    """Say that the set was named, and which set of that size is closer (None: no other is, or not known)."""
    if closest is None:
        return "the GPUs were named by --gpus"
    return (
        f"the GPUs were named by --gpus; {gpus_in_words(closest)} would be closer to one another "
        f"({farthest_words(links, closest)})"
    )


def _farthest(links: Links, gpus: Sequence[int]) -> tuple[int, int]:
    return max(pairs_of(gpus), key=lambda pair: (nearness(links.get(pair)), [-index for index in pair]))


def _distance(links: Links, gpus: Sequence[int], pairs: Sequence[tuple[int, int]]) -> str:
    farthest = _farthest(links, gpus)
    name = class_name(links.get(farthest))
    tally = _tally(links, pairs)
    if len(pairs) == 1:
        return f"{gpus_in_words(sorted(gpus))} are {_apart(name)}"
    if len(tally) == 1:
        return (
            f"topology {name} for all {len(pairs)} pairs"
            if name == "unknown"
            else f"all {len(pairs)} pairs are {name}"
        )
    by_class = ", ".join(f"{count} {name}" for name, count in tally.items())
    return f"farthest pair {name} (GPUs {farthest[0]} and {farthest[1]}); pairs by class: {by_class}"


def _apart(name: str) -> str:
    if name == "unknown":
        return "apart by an unknown distance (topology unknown)"
    return (
        f"joined by {name[2:]} NVLink{'' if name == 'NV1' else 's'}" if name[:2] == "NV" else f"{name} apart"
    )


def _tally(links: Links, pairs: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Count the pairs by class, nearest class first."""
    ordered = sorted(pairs, key=lambda pair: nearness(links.get(pair)))
    return dict(Counter(class_name(links.get(pair)) for pair in ordered))


def reduction_reasons(machine: Machine, gpus: Sequence[int], all_reduce: str | None) -> tuple[str, ...]:
    """Say how gradients are added up, where that depends on how near the GPUs are to one another."""
    if all_reduce != "hierarchical" or len(gpus) < 2:
        return ()
    groups = [tuple(gpus[tower] for tower in group) for group in reduction_groups(machine, gpus)]
    if len(groups) == 1:
        return ("hierarchical: none of them are closer than others, so they are one group, led in turns",)
    within = "; ".join(map(gpus_in_words, groups))
    return (
        f"hierarchical: gradients are added within {len(groups)} groups of close GPUs ({within}), "
        "then between their leaders, who take turns",
    )
