"""Numbers of GPUs, CPUs and hosts as ranges, `0-3,6`, `n[0-3,6]`; pairs of GPUs in words."""

import re
from collections.abc import Iterable
from itertools import combinations, product

_PAIRS_NAMED = 4
_MAX_CPUS = 8192  # of Linux (CONFIG_NR_CPUS_RANGE_END); a larger number is a reading error

Pair = tuple[int, int]

_RANGES = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", re.ASCII)

_ADDRESS = re.compile(r"[0-9.]+|.*:.*")

_NAMED = 8  # hosts that are listed if a set folds badly
_MAX_FOLDED = 200  # characters


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def index_ranges(indices: Iterable[int]) -> str:
    """Return indices as `0-3,6`."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def gpu_ranges(indices: Iterable[int]) -> str:
    """Return GPUs by their indices: `GPU 3`, `GPUs 0-3`."""
    ranges = index_ranges(indices)
    return f"GPU {ranges}" if ranges.isdecimal() else f"GPUs {ranges}"


def host_ranges(names: Iterable[str]) -> str:
    """Return host names in order, with runs of numbers folded as Slurm writes them: `n[1-3,7],m`."""
    hosts: list[tuple[str, str, list[list[str]]]] = []
    for name in names:
        host, dot, domain = name.partition(".")
        parts = None if _ADDRESS.fullmatch(name) else re.fullmatch(r"(.*?)([0-9]{1,15})([^0-9]*)", host)
        head, number, tail = (parts[1], parts[2], f"{parts[3]}{dot}{domain}") if parts else (name, "", "")
        if not (hosts and number and hosts[-1][:2] == (head, tail) and hosts[-1][2]):
            hosts.append((head, tail, [[number, number]] if number else []))
            continue
        runs = hosts[-1][2]
        if number == str(int(runs[-1][1]) + 1).zfill(len(runs[-1][1])):
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{head}{_in_brackets(runs)}{tail}" for head, tail, runs in hosts)


def host_set(names: Iterable[str]) -> str:
    """Return hosts as a set of nodes, sorted by their numbers; if many fold badly, only the first."""
    in_order = sorted(names, key=natural)
    folded = host_ranges(in_order)
    if len(in_order) <= _NAMED or len(folded) <= _MAX_FOLDED:
        return folded
    return f"{host_ranges(in_order[:_NAMED])} and {len(in_order) - _NAMED} more"


def _in_brackets(runs: list[list[str]]) -> str:
    text = ",".join(first if first == last else f"{first}-{last}" for first, last in runs)
    return text if text.isdecimal() or not text else f"[{text}]"


def parse_ranges(text: str) -> tuple[int, ...] | None:
    """Return the ascending indices of a list such as `0-3,6`, or None if the text is not such a list."""
    if _RANGES.fullmatch(text) is None:
        return None
    indices: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high:
            return None
        indices.update(range(low, high + 1))
    return tuple(sorted(indices))


def parse_cpus(text: str) -> frozenset[int] | None:
    """Return the CPUs of a list such as `0-9,20-29` (as in sysfs), or None if the text is not such a list."""
    cpus = parse_ranges(text)
    return None if cpus is None or cpus[-1] >= _MAX_CPUS else frozenset(cpus)


def same_cpus(a: str, b: str) -> bool:
    """Return whether two lists have the same CPUs; texts that are not lists are compared as they are."""
    cpus = parse_cpus(a)
    return a == b if cpus is None else cpus == parse_cpus(b)


def pairs_in_words(pairs: Iterable[Pair], *, max_named: int = _PAIRS_NAMED) -> str:
    """Return pairs of GPUs in words: as groups if possible, else one by one, at most `max_named` of them.

    `GPUs 0 and 3`; `any two of GPUs 0-3`; `each of GPUs 0-2 with each of 3-6`; `pairs 0<->3, 1<->4 and 2
    more`.
    """
    ordered = sorted({(min(pair), max(pair)) for pair in pairs})
    gpus = sorted({gpu for pair in ordered for gpu in pair})
    if len(ordered) == 1:
        return f"GPUs {ordered[0][0]} and {ordered[0][1]}"
    if len(gpus) > 2 and ordered == list(combinations(gpus, 2)):
        return f"any two of GPUs {index_ranges(gpus)}"
    if sides := _two_sides(ordered, gpus):
        left, right = (
            ("GPU " if len(side) == 1 else "each of GPUs ", index_ranges(side), len(side) > 1)
            for side in sides
        )
        return f"{left[0]}{left[1]} with {'each of ' if right[2] else ''}{right[1]}"
    named = ", ".join(f"{a}<->{b}" for a, b in ordered[:max_named])
    return f"pairs {named}" + (f" and {len(ordered) - max_named} more" if len(ordered) > max_named else "")


def _two_sides(pairs: list[Pair], gpus: list[int]) -> tuple[list[int], list[int]] | None:
    """Return two groups of GPUs if the pairs are exactly all pairs between them, else None."""
    if not pairs:
        return None
    right = sorted({max(pair) if min(pair) == gpus[0] else min(pair) for pair in pairs if gpus[0] in pair})
    left = [gpu for gpu in gpus if gpu not in right]
    across = sorted((min(pair), max(pair)) for pair in product(left, right))
    return (left, right) if across == pairs else None
