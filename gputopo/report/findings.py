"""Findings as a block of a document and in short, the answer of an inspection, findings of a watch."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gputopo.reference import name_of
from gputopo.report.document import Block, Document, Item, Items, block_lines, of_sections
from gputopo.report.layout import SEVERITY_STYLES, plain
from gputopo.report.machine.facts import reason_for
from gputopo.report.units import counted
from gputopo.values.facts import DOES_NOT_APPLY, at_gpu, has_any, label
from gputopo.values.finding import Finding
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import gpu_ranges, index_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.option import listed
from gputopo.values.subject import Kind, Subject

TIMES = "\N{MULTIPLICATION SIGN}"
SCREEN_WIDTH, _SCREEN_LINES = 80, 23  # the last line has the prompt
_TOP = 15  # lines that hold all errors and warnings
_CLAUSES = 2  # clauses of the sentence; the findings follow it
_ALL = "(gputopo inspect --all)"
_INFOS = 5  # shown infos; the others are counted

# `GPU 1 (NVIDIA T4, 0000:01:00.0): `; the table of the GPUs has the part in brackets.
_NAMED = re.compile(r"^(GPUs? [\d,-]+) \((?:.*?[0-9a-f]:[0-9a-f]{2}\.[0-7]|[^()]*)\)(?=:| )")
# ` (unknown path: GPUs 0-1)` within a message; the clause of the first line leaves it out.
_ASIDE = re.compile(r" \([^()]*(?:\([^()]*\)[^()]*)*\)")
_ABOUT = re.compile(r"^(?:GPUs? [\d,-]+:?|(?:device|NVSwitch) \S+:|unknown GPU:) ")


def verdict(machine: Machine, findings: Sequence[Finding], checks: int = 0) -> str:
    """Return the answer in one sentence, with the number of findings.

    `checks`: the number of checks that had data.
    """
    counts = f" {counts_in_words(findings).capitalize()}." if findings else ""
    return f"{_sentence(machine, findings, checks)}{counts}"


def _sentence(machine: Machine, findings: Sequence[Finding], checks: int) -> str:
    serious = [finding for finding in findings if finding.severity != "info"]
    if not machine.gpus:
        if not serious and machine.driver.status == "no_device":
            return "No NVIDIA device on the PCI bus of this machine."
        says = next(
            (finding.says for finding in findings if finding.id != "capture.unread"), "No GPU is known"
        )
        return f"{says.rstrip('.')}."
    clauses = []
    shown, faulty = {gpu.index for gpu in machine.gpus}, set[int]()
    for finding in serious:
        at_fault: list[int] = []
        if finding.subject.kind == "gpus":
            at_fault = sorted(shown.intersection(finding.subject.gpus) - faulty)
            if not at_fault:  # each of its GPUs has a worse finding
                continue
            faulty |= {*at_fault}
        clauses.append(_clause(finding, at_fault, machine))
    if not clauses:
        return f"{models_in_words(machine.gpus)}: {_checked(machine, checks)}."
    fine = len(machine.gpus) - len(faulty)
    if fine and faulty:
        clauses.insert(0, f"{fine} fine")
    limit = _CLAUSES + (fine > 0)
    more = f" and {len(clauses) - limit} more" if len(clauses) > limit else ""
    return f"{models_in_words(machine.gpus)}: {', '.join(clauses[:limit])}{more}."


def _checked(machine: Machine, checks: int) -> str:
    """Return what was checked and what was not on a machine without faults."""
    unread = list(unread_parts(machine))
    made = f"no fault in {counted(checks, 'check')}" if checks else "nothing was checked"
    if not unread:
        return made
    several = len(unread) > 1 or unread[0].endswith("s")
    if machine.source == "live":
        where = f"{'were' if several else 'was'} not read"
    else:
        where = f"{'are' if several else 'is'} not in this capture"
    return f"{made}; {listed(unread, 'and')} {where}"


def models_in_words(gpus: Sequence[Gpu]) -> str:
    """Return the number of GPUs of each model, `8 x H100 80GB HBM3`, written with a multiplication sign."""
    names = {name for gpu in gpus if (name := name_of(gpu))}
    only = next(iter(names)) if len(names) == 1 else None  # a lost GPU has no model name
    models = Counter(short_model(name_of(gpu) or only) for gpu in gpus)
    if not names:
        return f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    return plain(" + ".join(f"{count} {TIMES} {name or 'unknown'}" for name, count in models.items()))


def short_model(name: str | None) -> str:
    """Return the name of a model without the vendor."""
    return (name or "").removeprefix("NVIDIA ")


def _clause(finding: Finding, gpus: Sequence[int], machine: Machine) -> str:
    """Return what is wrong with GPUs or the machine: `GPU 1 must be replaced (row remapping failed)`."""
    says = _ABOUT.sub("", _NAMED.sub(r"\1", finding.says))
    reason = re.split(r";|:(?= )|, ", _ASIDE.sub("", says))[0].strip()
    if not gpus:
        return reason
    labels = [label(machine, gpu) for gpu in machine.gpus if gpu.index in gpus]
    who = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(labels)}"
    if all(map(str.isdecimal, labels)):
        who = f"all {len(gpus)}" if len(gpus) == len(machine.gpus) > 1 else gpu_ranges(gpus)
    single, several, why = _state(finding)
    return f"{who} {several if len(gpus) > 1 else single}{f' ({reason})' if why else ''}"


def _state(finding: Finding) -> tuple[str, str, bool]:
    """Return the verb for one GPU, the verb for several, and whether the reason follows."""
    if finding.id in ("gpu.lost", "gpu.no_answer"):
        return "is lost", "are lost", False
    if finding.id == "gpu.busy":
        return "is in use", "are in use", False
    of_each = finding.evidence.get("gpus")
    evidence = [finding.evidence, *(of_each.values() if isinstance(of_each, dict) else ())]
    verdicts = {each.get("verdict") for each in evidence}
    if "replace" in verdicts:
        return "must be replaced", "must be replaced", True
    if "reboot" in verdicts:
        return "needs a reboot", "need a reboot", True
    if verdicts & {"reset", "repair pending"}:
        return "needs a reset", "need a reset", finding.id != "gpu.reset_required"
    if finding.severity == "error":
        return "has a fault", "have a fault", True
    return "needs attention", "need attention", True


def short_findings(findings: Sequence[Finding], *, above: int, beside: int, details: str = _ALL) -> Items:
    """Return the findings, one item for each id and severity: all errors and warnings, then some infos.

    A terminal shows as many remedies and infos as fit on one screen, the worst finding's remedy first.
    `beside`: lines of the screen that show something else, `above` of them above the findings. Infos are cut
    to one line there; errors and warnings are cut too if they do not fit. `details`: the option that shows
    the rest.
    """
    groups = list(grouped(((finding.id, finding.severity), finding) for finding in findings).values())
    serious = [group for group in groups if group[0].severity != "info"]
    infos = [group for group in groups if group[0].severity == "info"]
    room = max(min(_SCREEN_LINES - beside - 2, _TOP - above), len(serious) + bool(infos))

    def short(remedies: int, count: int, columns: int | None = None, *, cut: bool = False) -> Items:
        items = [
            _item(group, columns if cut else None, remedy=n < remedies) for n, group in enumerate(serious)
        ]
        items += [_item(group, columns, remedy=False) for group in infos[:count]]
        left = sum(map(len, infos[count:]))
        more = f"{left} {'more ' if count else ''}{'info' if left == 1 else 'infos'} {details}"
        return Items(tuple(items), "", more if left else "")

    def on_screen(columns: int) -> Items:
        choices = (
            short(remedies, count, columns, cut=cut)
            for cut in (False, True)
            for remedies in range(len(serious), -1, -1)
            for count in range(min(len(infos), _INFOS), -1, -1)
            if remedies < 2 or count == min(len(infos), _INFOS)
        )
        shown = Items((), "")
        for shown in choices:
            if len(block_lines(shown, columns)) <= room:
                break
        return shown

    return short(len(serious), _INFOS)._replace(on_screen=on_screen)


def _item(group: Sequence[Finding], columns: int | None, *, remedy: bool) -> Item:
    """Return findings of one id as an item. `columns`: width to which the message is cut; None: not cut."""
    first = group[0]
    more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
    says = _NAMED.sub(r"\1", first.says)
    if columns is not None and len(says) > (limit := columns - 11 - len(first.id) - len(more)):
        says = f"{says[: max(limit - 1, 0)].rstrip()}…"
    return Item(first.severity, first.id, "", (f"{says}{more}",), first.remedy if remedy else None)


def worst_by_gpu(findings: Sequence[Finding]) -> dict[int, str]:
    """Return the severity of each GPU's worst finding. The findings must be sorted, worst first."""
    return {gpu: finding.severity for finding in reversed(findings) for gpu in finding.subject.gpus}


def findings_block(findings: Sequence[Finding], *, nothing: str = "None.") -> Items:
    """Return findings in their order; findings with the same id, severity and remedy are one item."""
    groups = grouped(((finding.id, finding.severity, finding.remedy), finding) for finding in findings)
    return Items(
        tuple(
            Item(
                severity,
                id,
                subjects_in_words(finding.subject for finding in group),
                tuple(dict.fromkeys(finding.says for finding in group)),
                _with_command(remedy, group),
            )
            for (id, severity, remedy), group in groups.items()
        ),
        nothing,
    )


def _with_command(remedy: str | None, group: Sequence[Finding]) -> str:
    """Return a remedy with the command with which the user can check the findings."""
    from gputopo.report.check_commands import check_command  # the first screen has no commands

    gpus = sorted({gpu for finding in group for gpu in finding.subject.gpus})
    command = check_command(group[0].id, gpus, group[0].evidence.get("pci_address"))
    return f"{remedy or ''} Check with: {command}".strip()


def counts_in_words(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each severity: `1 error, 2 warnings`."""
    counts = [(sum(finding.severity == name for finding in findings), name) for name in SEVERITY_STYLES]
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts if count) or (
        "no findings"
    )


def watched_document(findings: Sequence[Finding], xid_reason: str | None) -> Document:
    """Return the findings of a watch, and what could not be watched."""
    not_watched: list[Block] = [] if xid_reason is None else [f"Xid errors: {xid_reason}"]
    return of_sections([("Seen while watching", [findings_block(findings)]), ("Not watched", not_watched)])


# Facts of a GPU by the name of their part. The first line of a report mentions a part if none of its facts
# was read.
_PARTS = {
    "clocks": ("clocks_mhz.graphics", "clocks_mhz.sm", "clocks_mhz.memory"),
    "power": ("power_w.draw", "power_w.limit"),
    "temperature": ("temperature_c.gpu",),
    "ECC": ("ecc.mode", "ecc.counts", "ecc.uncorrected_volatile", "remapped_rows.failure"),
    "PCIe links": ("pcie.width_now", "pcie.gen_now"),
}


def unread_parts(machine: Machine) -> Iterator[str]:
    """Yield the parts of which nothing was read: `temperature`; `temperature of GPU 3` if other GPUs have it.

    A part that a card does not have, such as ECC, is not included.
    """
    gpus = [gpu for gpu in machine.gpus if not gpu.lost]
    for words, paths in _PARTS.items():
        unread = [
            gpu.index
            for gpu in gpus
            if not has_any(gpu, paths)
            and not any(
                reason_for(machine.missing, at_gpu(gpu.index, path)) in DOES_NOT_APPLY for path in paths
            )
        ]
        if unread:
            yield words if len(unread) == len(gpus) else f"{words} of {gpu_ranges(unread)}"
    if len(gpus) > 1 and not has_any(machine, ("links[*].hop", "links[*].nvlinks")):
        yield "topology"


def subjects_in_words(subjects: Iterable[Subject]) -> str:
    """Return several subjects in one text, grouped by kind: `GPUs 0-3,5, driver`."""
    by_kind: dict[Kind, list[Subject]] = {}
    for subject in subjects:
        same = by_kind.setdefault(subject.kind, [])
        same += [subject] if subject not in same else []
    return ", ".join(_joined(kind, same) for kind, same in by_kind.items())


def _joined(kind: Kind, subjects: Sequence[Subject]) -> str:
    if kind == "gpus":
        return gpu_ranges(gpu for subject in subjects for gpu in subject.gpus)
    if kind == "link":
        pairs = ", ".join(subject.partition(":")[2] for subject in subjects)
        return f"link{'s' if len(subjects) > 1 else ''} {pairs}"
    if kind == "nics":
        cards = {nic for subject in subjects for nic in subject.nics}
        return f"network card{'s' if len(cards) > 1 else ''} {index_ranges(cards)}"
    return kind
