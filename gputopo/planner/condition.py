"""GPUs that a plan uses only where no equally good set is without them: in use, or with an error.

What makes a GPU unusable is in `gputopo.planner.request`: such a GPU is in no set at all.
"""

from collections.abc import Collection

from gputopo.findings import CHECKS, Finding
from gputopo.findings.configuration import GPU_BUSY
from gputopo.planner.request import gpus_in_words
from gputopo.values.machine import Machine


def troubles(machine: Machine) -> dict[int, tuple[Finding, ...]]:
    """Return the findings against each GPU: errors, and another program that loads it."""
    found: dict[int, list[Finding]] = {}
    for finding in (finding for check in CHECKS for finding in check(machine)):
        busy = finding.id == GPU_BUSY.id and finding.severity == "warning"
        if finding.subject.kind == "gpus" and (busy or finding.severity == "error"):
            for index in finding.subject.gpus:
                found.setdefault(index, []).append(finding)
    return {index: tuple(findings) for index, findings in found.items()}


def trouble_reasons(
    against: dict[int, tuple[Finding, ...]], chosen: Collection[int], avoided: Collection[int]
) -> list[str]:
    """Return the findings against chosen GPUs, and against those that others were chosen for."""
    reasons: list[str] = []
    for what, gpus in (("chosen all the same", chosen), ("avoided, as others are as close", avoided)):
        by_words: dict[str, list[int]] = {}
        for index in sorted(gpus):
            for finding in against.get(index, ()):
                by_words.setdefault(f"{finding.says} ({finding.id})", []).append(index)
        reasons += [f"{gpus_in_words(those)} {what}: {words}" for words, those in by_words.items()]
    return reasons
