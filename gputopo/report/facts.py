"""Facts of a machine by path (`gpus[0].clocks_mhz.memory.now`): their words, and why they are missing."""

import re
from collections.abc import Iterable, Mapping

from gputopo.report.layout import QUIET, Line, body_width, labelled, paragraph, plain
from gputopo.values.fields import fact_in_words
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine

# NVML's names for why it does not answer (nvmlReturn_t), and ours, in words.
_REASONS = {
    "NOT_SUPPORTED": "the card does not offer it",
    "GPU_IS_LOST": "the GPU fell off the bus or does not answer",
    "NO_PERMISSION": "needs more rights",
    "FUNCTION_NOT_FOUND": "the driver is too old for it",
    "INVALID_ARGUMENT": "the driver does not know the question",
    "UNKNOWN": "the driver does not know",
    "LIBRARY_NOT_FOUND": "no libnvidia-ml.so.1",
    "DRIVER_NOT_LOADED": "the driver is not loaded",
    "LIB_RM_VERSION_MISMATCH": "library and kernel module of different versions",
}

_FABRIC = "fabric"
_DOES_NOT_APPLY = ("NOT_SUPPORTED", "N/A", "Not Supported")  # NVML's word, and nvidia-smi's

_LONGEST_SUBJECT = 24  # of a label; longer ones are counted

_PATH = re.compile(r"(?P<kind>[a-z_]+)\[(?P<key>[^\]]*)\](?:\.(?P<fact>.*))?")
_KINDS = {"gpus": "GPU", "links": "link", "nics": "NIC", "pci": "PCI device"}


def reason_for(missing: Mapping[str, str], path: str) -> str | None:
    """Give why the fact at a path is missing; a reason for a whole part holds for all facts in it."""
    while path:
        if path in missing:
            return missing[path]
        path = path.rpartition(".")[0]
    return None


def reason_in_words(reason: str) -> str:
    """Give NVML's name of a reason with its meaning beside it; other reasons in lower case."""
    if reason in _REASONS:
        return f"{reason}, {_REASONS[reason]}"
    return plain(
        reason.replace("_", " ").lower().replace("cuda", "CUDA")
        if re.fullmatch(r"[A-Z0-9_]+", reason)
        else reason
    )


def not_read(machine: Machine) -> dict[str, str]:
    """Give what could not be read and why, without what a card does not have: the fabric of NVSwitches.

    That is where the driver says that there is none, and no NVLink leads to a switch (NVSwitches before those
    of Hopper tell no fabric). `Machine.missing` keeps it.
    """
    without = {
        gpu.index
        for gpu in machine.gpus
        if reason_for(machine.missing, f"gpus[{gpu.index}].{_FABRIC}.state") in _DOES_NOT_APPLY
        and not any(link.remote_kind == "switch" for link in gpu.nvlinks or ())
    }
    holders = {f"gpus[{index}]" for index in without}
    if len(without) == len(machine.gpus):
        holders.add("gpus[*]")
    return {
        path: why
        for path, why in machine.missing.items()
        if not (path.split(".")[1:2] == [_FABRIC] and path.partition(".")[0] in holders)
    }


def missing_view(machine: Machine, width: int) -> list[Line]:
    """Give what could not be read: every reason once for each set of GPUs or pairs, then the facts."""
    groups = grouped_missing(not_read(machine))
    room = body_width((subject for subject, _ in groups), width)
    return labelled(
        (
            (subject, _reason_and_facts(f"{reason_in_words(reason)}:", facts, room))
            for (subject, reason), facts in groups.items()
        ),
        width,
    )


def _reason_and_facts(reason: str, facts: str, width: int) -> list[Line]:
    if len(reason) + 1 + len(facts) <= width:
        return [((f"{reason} ", QUIET), (facts, ""))]
    return [*paragraph(reason, width, QUIET), *paragraph(facts, width)]


def grouped_missing(missing: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Group missing facts: who lacks them and why -> which ones.

    `{"gpus[0].pstate": R, "gpus[1].pstate": R}` gives `{("GPUs 0-1", R): "P-state"}`. A `*` in the place of
    an index means all.
    """
    holders: dict[tuple[str, str, str], list[str]] = {}  # (kind, fact, reason): keys
    for path, reason in missing.items():
        found = _PATH.fullmatch(path)
        if found:
            where = (found["kind"], found["fact"] or "everything", reason)
            holders.setdefault(where, []).append(found["key"])
        else:
            room, _, fact = path.partition(".")
            holders.setdefault((room, fact or room, reason), [])
    groups: dict[tuple[str, str], list[str]] = {}
    for (kind, fact, reason), keys in holders.items():
        groups.setdefault((_subject(kind, keys), reason), []).append(fact)
    return {group: _facts_in_words(facts) for group, facts in groups.items()}


def _subject(kind: str, keys: list[str]) -> str:
    word = _KINDS.get(kind, kind)
    if not keys:
        return plain(f"{word}s" if kind in _KINDS else kind.capitalize())
    if keys == ["*"]:
        return f"All {word}s"
    if all(key.isdigit() for key in keys):
        keys = [index_ranges(int(key) for key in keys)]
    several = len(keys) > 1 or (kind in ("gpus", "nics") and not keys[0].isdigit())
    named = f"{word}{'s' if several else ''} {', '.join(plain(key) for key in keys)}"
    return named[0].upper() + named[1:] if len(named) <= _LONGEST_SUBJECT else f"{len(keys)} {word}s"


def _facts_in_words(facts: Iterable[str]) -> str:
    """Give `memory clock (now, max), P-state` for facts that share their first parts."""
    parts: dict[str, list[str]] = {}
    for fact in facts:
        base, _, last = fact.rpartition(".")
        if base:
            parts.setdefault(base, []).append(fact_in_words(last))
        else:
            parts.setdefault(fact, [])
    return ", ".join(
        plain(fact_in_words(base)) + ("" if _is_whole(base, lasts) else f" ({plain(', '.join(lasts))})")
        for base, lasts in parts.items()
    )


def _is_whole(part: str, names: Iterable[str]) -> bool:
    """Whether the names are all the facts of that part of a GPU, or there are none to tell."""
    names = set(names)
    value: object = Gpu(index=0)
    for name in part.split("."):
        value = getattr(value, name, None)
    fields = getattr(value, "__struct_fields__", ())
    return not names or set(map(fact_in_words, fields)) == names
