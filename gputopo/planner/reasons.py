"""Why a set of GPUs was chosen, in sentences with numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from gputopo.findings import doubtful_topology
from gputopo.planner.request import Trouble, gpus_in_words
from gputopo.prediction import Paths
from gputopo.topology import (
    believed_links,
    class_name,
    implausible_pairs,
    nearness,
    reduction_groups,
)
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import gpu_ranges, pairs_in_words
from gputopo.values.machine import Link, Machine
from gputopo.values.run.plan import Candidate, Plan

UNPREDICTED = "nothing predicted"

Links = Mapping[tuple[int, int], Link]


def pairs_of(gpus: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of a set in order, low index first."""
    return list(combinations(sorted(gpus), 2))


def distance_reason(links: Links, gpus: Sequence[int]) -> str:
    """Return how far apart the GPUs of a set, two or more, are."""
    pairs = pairs_of(gpus)
    farthest = _farthest(links, gpus)
    name = class_name(links.get(farthest))
    classes = Counter(
        class_name(links.get(pair)) for pair in sorted(pairs, key=lambda pair: nearness(links.get(pair)))
    )
    far = "; an unknown distance is treated as farther than SYS" if name == "unknown" else ""
    if len(pairs) == 1:
        return f"{gpus_in_words(sorted(gpus))} are {_apart(name)}{far}"
    if len(classes) == 1:
        return f"all {len(pairs)} pairs are {name}{far}"
    by_class = ", ".join(f"{count} {name}" for name, count in classes.items())
    return f"farthest pair {name} (GPUs {farthest[0]} and {farthest[1]}); pairs: {by_class}{far}"


def doubt_reasons(machine: Machine) -> list[str]:
    """Return why the topology is not reliable, and how it is treated here."""
    reasons = [f"{finding.says}; measure with gputopo bandwidth" for finding in doubtful_topology(machine)]
    if within := implausible_pairs(machine).far_within_node:
        reasons.append(f"SYS within one NUMA node ({pairs_in_words(within)}) is treated as NODE")
    return reasons


def farthest_words(links: Links, gpus: Sequence[int]) -> str:
    """Return how far apart a set is in a few words: `farthest pair PHB`, `one GPU`."""
    if len(gpus) == 1:
        return "one GPU"
    return f"farthest pair {class_name(links.get(_farthest(links, gpus)))}"


def model_reasons(machine: Machine, gpus: Sequence[int], *, equal_batches: bool = True) -> list[str]:
    """Return a note if the chosen GPUs are of different models, which the order by topology ignores."""
    names = {gpu.index: gpu.name for gpu in machine.gpus if gpu.index in gpus and gpu.name}
    if len(set(names.values())) < 2:
        return []
    by_name: dict[str, list[int]] = {}
    for index in sorted(names):
        by_name.setdefault(names[index], []).append(index)
    models = ", ".join(f"{gpu_ranges(alike)}: {name}" for name, alike in by_name.items())
    pace = "the slowest GPU limits synchronous training" if equal_batches else "each has its own batch"
    return [f"GPUs of different models ({models}): {pace}"]


def pix_unmet(largest: Sequence[int], asked: int, required: int | None, *, troubled: bool = False) -> str:
    """Return why --prefer-pix was not met, with the largest PIX island (which contains GPU `required`).

    `troubled`: GPUs of that island are in use or in error.
    """
    holding = "" if required is None else f" with GPU {required}"
    if len(largest) < 2:
        return f"--prefer-pix has no effect: no GPUs{holding} are known to be PIX or closer"
    if troubled and len(largest) >= asked:
        return f"--prefer-pix is not met: each PIX island{holding} of {asked} GPUs has GPUs in use"
    return (
        f"--prefer-pix cannot be met with {asked} GPUs: the largest PIX island{holding} has {len(largest)} "
        f"({gpus_in_words(largest)})"
    )


def avoided_reason(
    against: Mapping[int, Trouble], avoided: Sequence[int], chosen: Sequence[int], instead: str
) -> str:
    """Return in one line the GPUs in use or in error that were avoided.

    `instead`: how far apart the chosen GPUs are, if that is farther: `PHB instead of PIX`.
    """
    idle = "" if any(index in against for index in chosen) else "idle "
    gpus = gpus_in_words(sorted(chosen)).replace("GPU", f"{idle}GPU", 1)
    return f"{troubles_in_words(against, avoided)}: {gpus} chosen{instead and ', '}{instead}"


def troubles_in_words(against: Mapping[int, Trouble], gpus: Sequence[int]) -> str:
    """Return which GPUs are in use or in error; GPUs with the same words are grouped."""
    by_words: dict[str, list[int]] = {}
    for index in sorted(gpus):
        by_words.setdefault(against[index].words, []).append(index)
    return "; ".join(
        f"{gpus_in_words(gpus)} {words if words.startswith('in use') else f'in error: {words}'}"
        for words, gpus in by_words.items()
    )


def _farthest(links: Links, gpus: Sequence[int]) -> tuple[int, int]:
    return max(pairs_of(gpus), key=lambda pair: (nearness(links.get(pair)), [-index for index in pair]))


def _apart(name: str) -> str:
    if name == "unknown":
        return "at an unknown distance (topology unknown)"
    return (
        f"connected by {name[2:]} NVLink{'' if name == 'NV1' else 's'}"
        if name[:2] == "NV"
        else f"{name} apart"
    )


def reduction_reasons(machine: Machine, gpus: Sequence[int], all_reduce: str | None) -> tuple[str, ...]:
    """Return the groups of a hierarchical reduction."""
    if all_reduce != "hierarchical" or len(gpus) < 2:
        return ()
    groups = [tuple(gpus[tower] for tower in group) for group in reduction_groups(machine, gpus)]
    if len(groups) == 1:
        return ("hierarchical: no GPUs are closer than others: one group with alternating leaders",)
    within = "; ".join(map(gpus_in_words, groups))
    return (
        f"hierarchical: gradients are added within {len(groups)} groups of close GPUs ({within}), "
        "then between their alternating leaders",
    )


def unknown_facts(machine: Machine, paths: Paths) -> tuple[str, ...]:
    """Return the facts that would improve predictions, the most useful first, each with how to get it."""
    facts = list[str]()
    for basis, words in (("assumed", "PCIe link, and no known model"), ("model", "PCIe link of the slot")):
        if gpus := [gpu for gpu, host in paths.hosts.items() if host.basis == basis]:
            facts.append(f"{words}, of {gpu_ranges(gpus)} (gputopo inspect, or nvidia-smi -q)")
    apart = {pair for pair, path in paths.pairs.items() if path.basis != "measured" and path.kind != "nvlink"}
    links = believed_links(machine)
    if far := sorted({gpu for pair in apart if pair not in links or links[pair].hop is None for gpu in pair}):
        facts.append(f"PCIe hops between {gpu_ranges(far)} (nvidia-smi topo -m)")
    if apart or any(host.basis != "measured" for host in paths.hosts.values()):
        facts.append("copy rates of this machine (gputopo bandwidth --save)")
    return tuple(facts)


def unpredicted_reason(choice: Candidate) -> str:
    """Return the reason of a choice why nothing is predicted; "" if it has none."""
    return next((reason for reason in choice.reasons if reason.startswith(UNPREDICTED)), "")


def require_prediction(plan: Plan, what: str) -> None:
    """Raise UsageError if nothing was predicted. `what`: the option, and why it needs a prediction."""
    if plan.prediction is None:
        why = unpredicted_reason(plan.choice) or f"{UNPREDICTED} for this job"
        raise UsageError(
            f"{what}: {why}", "add --single-gpu-images-per-sec X, or more of the machine: --from FILE"
        )
