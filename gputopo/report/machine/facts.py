"""Facts of a machine by path (`gpus[0].clocks_mhz.memory.now`): their words, and why they are missing."""

import re
from collections.abc import Mapping

from gputopo.report.layout import plain
from gputopo.values.facts import DOES_NOT_APPLY, GROUPS, FactPath, above, at_gpu
from gputopo.values.fields import path_in_words
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine

# The meaning of NVML's error names (nvmlReturn_t) and of gputopo's own reasons.
_REASONS = {
    "NOT_SUPPORTED": "not supported by the card",
    "GPU_IS_LOST": "the GPU fell off the bus or does not answer",
    "NO_PERMISSION": "needs more rights",
    "FUNCTION_NOT_FOUND": "the driver is too old for it",
    "DEPRECATED": "no longer supported by the driver",
    "FIELD_NUMBER_UNKNOWN": "its number changed near this driver version",
    "INVALID_ARGUMENT": "not supported by this driver",
    "UNKNOWN": "the driver does not know",
    "LIBRARY_NOT_FOUND": "no libnvidia-ml.so.1",
    "DRIVER_NOT_LOADED": "the driver is not loaded",
    "LIB_RM_VERSION_MISMATCH": "library and kernel module of different versions",
    "HUNG": "the driver call did not return",
    "CRASHED": "the driver call ended the process that made it",
    "NOT_ASKED": "an earlier driver call hung or crashed",
}

_LONGEST_SUBJECT = 24  # characters of a label; if it is longer, the devices are counted
_NAMED = 12  # facts for one reason

_KINDS = {"gpus": "GPU", "links": "link", "nics": "NIC", "pci": "PCI device"}


def reason_in_words(reason: str) -> str:
    """Return NVML's name of a reason followed by its meaning; other reasons in lower case."""
    if reason in _REASONS:
        return f"{reason}, {_REASONS[reason]}"
    return plain(
        reason.replace("_", " ").lower().replace("cuda", "CUDA")
        if re.fullmatch(r"[A-Z0-9_]+", reason)
        else reason
    )


def not_read(machine: Machine) -> dict[str, str]:
    """Return what could not be read and why, without the NVSwitch fabric on a machine that has no NVSwitch.

    A machine has none if the driver reports no fabric for a GPU and no NVLink leads to a switch. (NVSwitches
    before Hopper report no fabric.) `Machine.missing` still has these facts.
    """
    states = (reason_for(machine.missing, at_gpu(gpu.index, "fabric.state")) for gpu in machine.gpus)
    switches = (link.remote_kind == "switch" for gpu in machine.gpus for link in gpu.nvlinks or ())
    if any(switches) or not any(state in DOES_NOT_APPLY for state in states):
        return dict(machine.missing)
    return {
        path: why
        for path, why in machine.missing.items()
        if not FactPath.parse(path).fact.startswith("fabric")
    }


def count_not_read(machine: Machine) -> int:
    """Return how many facts could not be read on any device, without facts that do not apply to a card."""
    paths = [FactPath.parse(path) for path, why in not_read(machine).items() if why not in DOES_NOT_APPLY]
    return len({(path.group, path.fact) for path in paths})


def grouped_missing(missing: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Group missing facts by device and reason.

    `{"gpus[0].pstate": R, "gpus[1].pstate": R}` becomes `{("GPUs 0-1", R): "P-state"}`. A `*` in place of an
    index means all devices.
    """
    holders: dict[tuple[str, str, str], list[str]] = {}  # (kind, fact, reason): keys
    for path, reason in missing.items():
        at = FactPath.parse(path)
        if not at.fact and any(
            other.startswith(f"{path}.") and why == reason for other, why in missing.items()
        ):
            continue  # the facts below this path are listed
        fact = at.fact or ("everything" if at.key else at.group)
        keys = holders.setdefault((at.group, fact, reason), [])
        keys += [at.key] if at.key else []
    groups = grouped(
        ((kind, _subject(kind, keys), reason), fact) for (kind, fact, reason), keys in holders.items()
    )
    in_words = {}
    for (kind, subject, reason), facts in groups.items():
        names = [*dict.fromkeys(plain(path_in_words(GROUPS.get(kind, Machine), fact)) for fact in facts)]
        more = f" and {len(names) - _NAMED} more (--json)" if len(names) > _NAMED else ""
        in_words[subject, reason] = ", ".join(names[:_NAMED]) + more
    return in_words


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


def reason_for(missing: Mapping[str, str], path: str) -> str | None:
    """Return why the fact at a path is missing; a reason for a part is valid for all facts in it."""
    while path:
        if path in missing:
            return missing[path]
        path = above(path)
    return None
