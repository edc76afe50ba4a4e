"""GPUs that a plan takes only where no equal set is without them: in use elsewhere, or with an error.

What makes a GPU unusable is in `gputopo.planner.request`: such a GPU is in no set at all.
"""

import re
from collections.abc import Collection

from gputopo.findings import RULES
from gputopo.findings.finding import Finding
from gputopo.planner.request import gpus_in_words
from gputopo.values.machine import Machine


def troubles(machine: Machine) -> dict[int, tuple[Finding, ...]]:
    """Give the findings that speak against each GPU: errors, and another program that takes much of it."""
    found: dict[int, list[Finding]] = {}
    for finding in (finding for rule in RULES for finding in rule(machine)):
        if finding.severity == "error" or (finding.id, finding.severity) == ("gpu.busy", "warning"):
            for index in _gpus(finding.subject):
                found.setdefault(index, []).append(finding)
    return {index: tuple(findings) for index, findings in found.items()}


def trouble_reasons(
    against: dict[int, tuple[Finding, ...]], chosen: Collection[int], avoided: Collection[int]
) -> list[str]:
    """Say what speaks against chosen GPUs, and against those for which others were taken."""
    said: list[str] = []
    for what, gpus in (("chosen all the same", chosen), ("avoided, as others are as close", avoided)):
        told: dict[str, list[int]] = {}
        for index in sorted(gpus):
            for finding in against.get(index, ()):
                told.setdefault(f"{finding.says} ({finding.id})", []).append(index)
        said += [f"{gpus_in_words(those)} {what}: {words}" for words, those in told.items()]
    return said


def _gpus(subject: str) -> list[int]:
    """Give the indices of `gpu:3` and `gpus:0-2,5`; other subjects name no GPU."""
    match = re.fullmatch(r"gpus?:([\d,-]+)", subject)
    runs = [run.split("-") for run in match[1].split(",")] if match else []
    return [index for run in runs for index in range(int(run[0]), int(run[-1]) + 1)]
