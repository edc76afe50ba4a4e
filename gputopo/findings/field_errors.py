"""Facts that one GPU cannot report, while the others of its model can."""

import re
from collections.abc import Iterator

from gputopo.findings.rule import Fault, Rule, by_model, check, present
from gputopo.values.facts import FactPath
from gputopo.values.fields import path_in_words
from gputopo.values.machine import Gpu, Machine

FIELD_ERROR = Rule(
    "gpu.field_error",
    "the GPU cannot report what GPUs of the same model report",
    remedy=(
        "See sudo dmesg | grep -i -e nvrm -e xid. Reset the GPU (sudo nvidia-smi -r -i GPU) or reboot; "
        "if it happens again, a sensor, the fan or the board is defective."
    ),
)

# Driver messages and NVML codes that mean "failed", not "not supported" or "no permission".
_ERROR = re.compile(
    r"unknown(?:[ _]error)?|(?:unk(?:nown)?)?\s?err(?:or)?!*|timeout|gpu[ _]is[ _]lost"
    r"|(?:gpu )?reset[ _]required|gpu requires reset|irq_issue|corrupted_inforom|operating_system",
    re.IGNORECASE,
)


@check(FIELD_ERROR)
def field_errors(machine: Machine) -> Iterator[Fault]:
    """Find facts for which only one GPU reports an error, except for the error that it must be reset."""
    errors = _errors(machine)
    for group in _groups(machine) if errors else ():
        for gpu in group:
            peers = [peer for peer in group if peer is not gpu]
            needs_reset = gpu.recovery_action not in (None, "none")
            failed = {
                fact: why
                for fact, why in errors.get(gpu.index, {}).items()
                if not (needs_reset and "reset" in why.lower())
                and peers
                and not any(fact in errors.get(peer.index, {}) for peer in peers)
            }
            if failed:
                words = ", ".join(path_in_words(Gpu, fact) for fact in failed)
                says = f"{'; '.join(dict.fromkeys(failed.values()))} instead of {words}"
                yield FIELD_ERROR.fault(gpu, says, {"missing": failed})


def _errors(machine: Machine) -> dict[int, dict[str, str]]:
    """Return the errors instead of facts, by GPU and fact, for GPUs that answer."""
    found: dict[int, dict[str, str]] = {}
    for path, why in machine.missing.items():
        if _ERROR.fullmatch(why):
            at = FactPath.parse(path)
            if at.group == "gpus" and at.key.isdigit() and at.fact and "[" not in at.fact:
                found.setdefault(int(at.key), {})[at.fact] = why
    return found


def _groups(machine: Machine) -> list[list[Gpu]]:
    """Return the GPUs of each model. If there is only one model, a GPU without a name belongs to it."""
    groups = by_model(machine)
    nameless = [gpu for gpu in present(machine) if not gpu.name]
    return [groups[0] + nameless] if len(groups) == 1 else groups
