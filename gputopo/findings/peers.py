"""Facts that last and on which GPUs of one model agree: firmware, limits, capabilities, settings.

Which facts they are is declared beside the fields (`Fact.peers`); here are the rules with their noise. Also
facts that one GPU cannot report, while the others of its model can.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gputopo.findings import clocks, configuration, nvlink, pcie, throttling
from gputopo.findings.compare import FactDifference, differences
from gputopo.findings.rule import Check, Fault, Rule, Threshold, accused, by_model, check, present
from gputopo.values.facts import FactPath
from gputopo.values.fields import fields_of, path_in_words
from gputopo.values.finding import Severity
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import Subject

MEMORY_SHARE = Threshold(
    "memory size difference",
    0.07,
    "below the largest of the model",
    (
        "ECC or a display takes up to 1/16 of the reported memory (NVIDIA's ECC note for GDDR memory); "
        "sizes of one model differ by more (RTX 3080: 10 and 12 GB)"
    ),
)
CARD_DIFFERS = Rule(
    "card.differs",
    "firmware, limits or capabilities differ from GPUs of the same model",
    remedy=(
        "The card may be a different build, or have another firmware version: compare part numbers and "
        "VBIOS versions (nvidia-smi -q), and update the older firmware."
    ),
    severities=("info",),
    thresholds=(throttling.LIMIT_SHARE, MEMORY_SHARE),
)
SETTING_DIFFERS = Rule(
    "configuration.differs",
    "a setting differs from GPUs of the same model",
    remedy=(
        "Use the same setting on all GPUs: driver settings with nvidia-smi (nvidia-smi -h), BAR1 with "
        "Resizable BAR in the BIOS."
    ),
    severities=("warning", "info"),
    thresholds=(throttling.LIMIT_SHARE, clocks.MEMORY_SHARE, MEMORY_SHARE),
)
SLOT_DIFFERS = Rule(
    "pcie.slot_differs",
    "slot of another PCIe generation or width than on GPUs of the same model",
    remedy=(
        "Compare the slots in the board manual, and the BIOS settings of their generation and lanes. "
        "Reseat card and riser."
    ),
    severities=("warning", "info"),
    fits="slot",
)

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


class Compared(NamedTuple):
    """The rule of a fact, its noise, and the check that reports the same cause by itself."""

    rule: Rule
    noise: Threshold | None = None
    covered_by: Check[[]] | None = None


_SETTINGS = Compared(SETTING_DIFFERS)
_LIMITS = Compared(SETTING_DIFFERS, throttling.LIMIT_SHARE, throttling.power_limits)
_CAPABILITY = Compared(CARD_DIFFERS)
_POWER = Compared(CARD_DIFFERS, throttling.LIMIT_SHARE)
_CORE = Compared(clocks.CORE_DIFFERS, clocks.CORE_SHARE)
_APPLICATION = Compared(SETTING_DIFFERS, clocks.MEMORY_SHARE)
_BAR1 = "bar1_mib.total"
_APPLICATION_CLOCKS = tuple(f"clocks_mhz.{domain}.application" for domain in ("memory", "sm", "graphics"))
# By path; a fact that is not here is a capability of the card.
_FACTS = {
    "clocks_mhz.memory.max": Compared(clocks.MEMORY_DIFFERS, clocks.MEMORY_SHARE),
    "clocks_mhz.sm.max": _CORE,
    "clocks_mhz.graphics.max": _CORE,
    "clocks_mhz.video.max": Compared(CARD_DIFFERS, clocks.CORE_SHARE),
    **dict.fromkeys((*_APPLICATION_CLOCKS, "clocks_mhz.video.application"), _APPLICATION),
    "memory_mib.total": Compared(CARD_DIFFERS, MEMORY_SHARE),
    _BAR1: Compared(SETTING_DIFFERS, MEMORY_SHARE),
    "power_w.limit": _LIMITS,
    "power_w.enforced_limit": _LIMITS,
    "power_w.default_limit": _POWER,
    "power_w.min": _POWER,
    "power_w.max": _POWER,
    "pcie.gen_max": Compared(SLOT_DIFFERS, covered_by=pcie.slots),
    "pcie.gen_max_device": Compared(CARD_DIFFERS, covered_by=pcie.slots),
    "pcie.width_max": Compared(SLOT_DIFFERS, covered_by=pcie.widths),
    "c2c_mode": Compared(nvlink.NVLINK_DIFFERS),
    "fabric.clique_id": Compared(nvlink.NVLINK_DIFFERS, covered_by=nvlink.check_fabric),
    "ecc.mode": _SETTINGS,
    "mig.mode": Compared(SETTING_DIFFERS, covered_by=configuration.modes),
    "virtualization": _SETTINGS,
    "temperature_c.target": _SETTINGS,
    "compute_mode": Compared(SETTING_DIFFERS, covered_by=configuration.modes),
}
_NOT_COMPARED = ("persistence_mode",)  # `configuration.persistence` finds it, if it matters
# How a setting is made that of the other GPUs.
_HOW = {
    **dict.fromkeys(_APPLICATION_CLOCKS, "sudo nvidia-smi -i GPU -rac"),
    "power_w.limit": "sudo nvidia-smi -i GPU -pl {:.0f}",
    "power_w.enforced_limit": "sudo nvidia-smi -i GPU -pl {:.0f}",
    "ecc.mode": "sudo nvidia-smi -i GPU -e {:d} and a reboot",
    "mig.mode": "sudo nvidia-smi -i GPU -mig {:d}",
    "compute_mode": "sudo nvidia-smi -i GPU -c {}",
    "temperature_c.target": "sudo nvidia-smi -i GPU -gtt {}",
    _BAR1: "Resizable BAR in the BIOS",
}
_PEERS = tuple(
    path
    for path, field in fields_of(Gpu).items()
    if field.fact.peers and field.leaf and "[]" not in path and path not in _NOT_COMPARED
)
_OF_DEFAULT_LIMIT = ("power_w.limit", "power_w.enforced_limit")  # the same, unless somebody sets them
# What differs by the build of the card has one cause; each setting may have one of its own.
_OF_BUILD = (clocks.MEMORY_DIFFERS, clocks.CORE_DIFFERS, CARD_DIFFERS)


@check(*_OF_BUILD, SETTING_DIFFERS, SLOT_DIFFERS, nvlink.NVLINK_DIFFERS)
def facts(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that differ from most GPUs of their model; of two that differ, neither is at fault."""
    for group in by_model(machine):
        all_differing = [difference for path in _PEERS if (difference := _difference(machine, group, path))]
        yield from _report_odd_gpus(
            group, [differing for differing in all_differing if differing.common is not None]
        )
        # Where the default shows which side is at fault, that is reported in place of the difference.
        explained = _APPLICATION_CLOCKS if any(map(clocks.below_default, group)) else ()
        yield from _report_split_facts(
            [
                differing
                for differing in all_differing
                if differing.common is None and differing.path not in explained
            ]
        )


@check(clocks.APPLICATION_BELOW_DEFAULT)
def below_default(machine: Machine) -> Iterator[Fault]:
    """Find application clocks below the default, where they do not differ from the peers."""
    odd = {index for path in _APPLICATION_CLOCKS for index in _odd_gpus(machine, path)}
    for gpu in present(machine):
        if gpu.index not in odd and (fault := clocks.below_default(gpu)) is not None:
            yield fault


def _odd_gpus(machine: Machine, path: str) -> set[int]:
    """Return the GPUs that differ in a fact from most of their model."""
    differing = (_difference(machine, group, path) for group in by_model(machine))
    return {
        index
        for difference in differing
        if difference is not None and difference.common is not None
        for index in difference.odd
    }


def _difference(machine: Machine, group: list[Gpu], path: str) -> FactDifference | None:
    """Return how a group differs in a fact, without GPUs against which the cause is reported already."""
    compared = _compared(path)
    difference = differences(group, path, compared.noise.value if compared.noise else 0.0)
    if difference is None or compared.covered_by is None:
        return difference
    covered = accused(machine, compared.covered_by)
    if difference.common is None:
        return None if covered & difference.odd.keys() else difference
    usual = {gpu.index for gpu in group} - difference.odd.keys()
    odd = {index: value for index, value in difference.odd.items() if index not in covered}
    return difference._replace(odd=odd) if odd and not usual <= covered else None


def _report_odd_gpus(group: list[Gpu], differences: list[FactDifference]) -> Iterator[Fault]:
    for gpu in group:
        for rule, differing in _by_rule(
            [difference for difference in differences if gpu.index in difference.odd]
        ).items():
            evidence: dict[str, Any] = {
                difference.path: difference.odd[gpu.index] for difference in differing
            }
            peers = {difference.path: difference.common for difference in differing}
            says = "; ".join(difference.words(gpu.index) for difference in differing)
            severity = _severity(rule, gpu, differing)
            yield rule.fault(gpu, says, evidence | {"peers": peers}, severity, remedy=_remedy(differing))


def _severity(rule: Rule, gpu: Gpu, differing: Sequence[FactDifference]) -> Severity | None:
    """Slots of boards differ by design, SXM modules' do not; a small BAR1 costs little."""
    if rule is SLOT_DIFFERS:
        return None if pcie.is_sxm(gpu) else "info"
    return "info" if all(difference.path == _BAR1 for difference in differing) else None


def _remedy(differing: Sequence[FactDifference]) -> str | None:
    """Return how the settings that differ are made those of the other GPUs, None if there are none."""
    typed = [
        (fact.path, fact.common.upper() if isinstance(fact.common, str) else fact.common)
        for fact in differing
    ]
    how = [_HOW[path].format(value) for path, value in typed if path in _HOW]
    return f"Set it as on the other GPUs: {'; '.join(dict.fromkeys(how))}." if how else None


def _report_split_facts(differences: list[FactDifference]) -> Iterator[Fault]:
    """Report facts of which no value is common: once for each rule, for all GPUs that report them."""
    for rule, differing in _by_rule(differences).items():
        subject = Subject.of_gpus(index for difference in differing for index in difference.odd)
        says = "; ".join(difference.all_words() for difference in differing)
        evidence = {
            difference.path: {str(index): value for index, value in difference.odd.items()}
            for difference in differing
        }
        severity: Severity | None = "info" if rule in (SLOT_DIFFERS, SETTING_DIFFERS) else None
        yield rule.fault(subject, says, evidence, severity)


def _by_rule(differences: list[FactDifference]) -> dict[Rule, list[FactDifference]]:
    """Return the differences by rule; those of the build all by the first rule of one. SM and graphics clocks
    are set together: of both only the first is reported.
    """
    paths = {difference.path for difference in differences}
    build = [
        rule
        for rule in _OF_BUILD
        if any(_compared(difference.path).rule is rule for difference in differences)
    ]
    by_rule: dict[Rule, list[FactDifference]] = {}
    for difference in differences:
        if ".graphics." in difference.path and difference.path.replace(".graphics.", ".sm.") in paths:
            continue
        rule = _compared(difference.path).rule
        if difference.path in _OF_DEFAULT_LIMIT and "power_w.default_limit" in paths:
            rule = CARD_DIFFERS
        by_rule.setdefault(build[0] if rule in build else rule, []).append(difference)
    return by_rule


def _compared(path: str) -> Compared:
    return _FACTS.get(path, _CAPABILITY)


@check(FIELD_ERROR)
def field_errors(machine: Machine) -> Iterator[Fault]:
    """Find facts for which only one GPU reports an error, except for the error that it must be reset."""
    errors = _errors_of_gpus(machine)
    groups = by_model(machine)
    if len(groups) == 1:  # a GPU without a name belongs to the only model
        groups[0] += [gpu for gpu in present(machine) if not gpu.name]
    for group in groups if errors else ():
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


def _errors_of_gpus(machine: Machine) -> dict[int, dict[str, str]]:
    """Return the errors instead of facts, by GPU and fact, for GPUs that answer."""
    errors: dict[int, dict[str, str]] = {}
    for path, why in machine.missing.items():
        if _ERROR.fullmatch(why):
            at = FactPath.parse(path)
            if at.group == "gpus" and at.key.isdigit() and at.fact and "[" not in at.fact:
                errors.setdefault(int(at.key), {})[at.fact] = why
    return errors
