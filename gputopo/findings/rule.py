"""The form of a rule: its id, title, remedy, severities and thresholds, and the findings of its checks.

A rule and its thresholds are declared at the top of the module with their check: a function over a Machine
(or over its samples in time) that yields the faults of one rule or several; `check` names them. What no rule
declares cannot be reported.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec

from gputopo.findings.places import ELSEWHERE, Fits, place_of
from gputopo.reference import name_of
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.facts import label
from gputopo.values.finding import SEVERITIES, Finding, Severity
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import Subject

WRONG_DATA_ID = "bandwidth.wrong_data"  # corrupted data fails a command without any option
MAX_MESSAGES = 3  # different messages in a finding about many GPUs; the evidence has all

_ON_HOST = re.compile(r"\bsudo\b|[Rr]eboot|[Rr]eset the GPU|BIOS|[Rr]eseat")  # none works in a container

# Words of remedies that stand for a fact of the GPU, so that a command can be pasted; the fact by its path.
_VALUES = {
    "DEFAULT_WATTS": "power_w.default_limit",
    "MAX_WATTS": "power_w.max",
}
_ANY_GPU = re.compile(r"(?<=-i )GPU\b")  # `sudo nvidia-smi -r -i GPU`: nvidia-smi takes `-i 0,2` as well
_NODE = re.compile(r"\bNODE\b")  # of the memory that is near to the GPU

P = ParamSpec("P")
AnyFinding = TypeVar("AnyFinding", bound=Finding)
_NO_COPIES = Bandwidth(source="")


class Threshold(msgspec.Struct, frozen=True):
    """A number that decides whether there is a finding, or how severe it is.

    `name` and `unit` say what is compared with it and how (`0.6`, `of the median of the peers`); `origin` is
    its source.
    """

    name: str
    value: float
    unit: str
    origin: str = "not measured on hardware"


class Case(msgspec.Struct, frozen=True):
    """One cause or code under a rule that has its own message, remedy and severity."""

    name: str
    says: str
    severity: Severity
    remedy: str
    fits: Fits = ""  # as of a Rule


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with one GPU, or about another subject.

    Of a GPU `says` continues "GPU 3: ", and GPUs with the same fault become one finding.
    """

    rule: "Rule"
    about: Gpu | Subject
    says: str
    evidence: dict[str, Any]
    severity: Severity
    remedy: str
    fits: Fits = ""  # what the remedy is about
    part: str = ""  # faults of different parts, such as directions of copies, are never in one finding

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that it is about."""
        return (self.about.index,) if isinstance(self.about, Gpu) else self.about.gpus

    @property
    def key(self) -> tuple[object, ...]:
        """What faults of GPUs in one finding have in common; a fault of another subject is alone."""
        if isinstance(self.about, Gpu):
            return self.rule.id, self.severity, self.remedy, self.part
        return (id(self),)


class Rule(msgspec.Struct, frozen=True, eq=False):
    """The declaration of an id, which keeps its meaning from version to version."""

    id: str
    title: str
    remedy: str  # what to do
    severities: tuple[Severity, ...] = ("warning",)  # those that its findings can have, the usual one first
    thresholds: tuple[Threshold, ...] = ()
    cases: tuple[Case, ...] = ()  # the causes or codes of which each has its own
    fits: Fits = ""  # if so, `ELSEWHERE` has other remedies for a GPU that is no card in a slot

    def case_in(self, text: str) -> Case | None:
        """Return the first case whose name is in a message of another program."""
        return next((case for case in self.cases if case.name in text.lower().replace("_", " ")), None)

    def fault(
        self,
        about: Gpu | Subject,
        says: str,
        evidence: Mapping[str, Any],
        severity: Severity | None = None,
        *,
        remedy: str | None = None,
        case: Case | None = None,
        part: str = "",
    ) -> Fault:
        """Return a fault under this rule. `case`: its remedy and, unless given, severity are the case's."""
        fits = self.fits if remedy is None else ""
        if case is not None:
            severity, remedy, fits = severity or case.severity, case.remedy, case.fits
        severity = severity or self.severities[0]
        assert severity in self.severities, (self.id, severity)
        return Fault(self, about, says, dict(evidence), severity, remedy or self.remedy, fits, part)

    def finding(
        self,
        subject: Subject,
        says: str,
        evidence: Mapping[str, Any],
        severity: Severity | None = None,
        *,
        remedy: str | None = None,
    ) -> Finding:
        """Return a finding under this rule."""
        fault = self.fault(subject, says, evidence, severity, remedy=remedy)
        return Finding(
            id=self.id,
            severity=fault.severity,
            subject=subject,
            says=says,
            evidence=fault.evidence,
            remedy=fault.remedy,
        )


class Check(Generic[P]):
    """A function that yields the faults of some rules; called, it returns them as findings."""

    def __init__(
        self, rules: tuple[Rule, ...], function: Callable[Concatenate[Machine, P], Iterable[Fault]]
    ) -> None:
        self.rules, self.function = rules, function

    def __call__(self, machine: Machine, *args: P.args, **kwargs: P.kwargs) -> list[Finding]:
        """Return the findings for a machine: one for all GPUs that have the same fault."""
        return _join_faults(self.function(machine, *args, **kwargs), machine)

    def over(self, samples: Sequence[Machine], samples_of_log: int | None = None) -> list[Finding]:
        """Return the findings for a machine at its samples: a fault in one is a fault.

        Of the faults of one rule on one subject the worst stand, with the number of samples that have any.
        `samples_of_log`: how many samples a log has, if these are only a part of them.
        """
        function: Callable[[Machine], Iterable[Fault]] = self.function
        faults = [list(function(machine)) for machine in samples]
        return _join_faults(
            faults[0] if len(faults) == 1 else _join_samples(faults, samples_of_log), samples[0]
        )


def check(*rules: Rule) -> Callable[[Callable[Concatenate[Machine, P], Iterable[Fault]]], Check[P]]:
    """Make a function that yields the faults of these rules a check."""
    return lambda function: Check(rules, function)


def each_gpu(*rules: Rule) -> Callable[[Callable[[Gpu], Iterable[Fault | None]]], Check[[]]]:
    """Make a function that yields the faults of these rules of one GPU a check of all GPUs that answer."""
    return lambda function: Check(
        rules,
        lambda machine: (fault for gpu in present(machine) for fault in function(gpu) if fault is not None),
    )


def accused(machine: Machine, *checks: Check[[]]) -> set[int]:
    """Return the GPUs that are in findings of some checks."""
    return {index for check in checks for finding in check(machine) for index in finding.subject.gpus}


def worst_first(findings: Iterable[AnyFinding]) -> tuple[AnyFinding, ...]:
    """Return errors first, then warnings; within a severity the order stays."""
    return tuple(sorted(findings, key=lambda finding: -finding.rank))


def reaches(findings: Iterable[Finding], severity: Severity) -> bool:
    """Return whether any finding is at or above a severity, as `--fail-on` asks."""
    return any(finding.rank >= SEVERITIES.index(severity) for finding in findings)


def fails(findings: Sequence[Finding], fail_on: Severity | None) -> bool:
    """Return whether findings make a command exit with 1: as severe as `--fail-on`, or corrupted data."""
    if any(finding.id == WRONG_DATA_ID for finding in findings):
        return True
    return fail_on is not None and reaches(findings, fail_on)


def named(gpu: Gpu) -> str:
    """Return a GPU by number, model and address, as far as they are known."""
    known = ", ".join(fact for fact in (name_of(gpu), gpu.pci_address) if fact)
    return f"GPU {gpu.index}{f' ({known})' if known else ''}"


def roughly(share: float) -> str:
    """Return a share to the next tenth, so that GPUs with about the same share one message."""
    return f"{max(round(share, 1), 0.1):.0%}" if share >= 0.05 else "under 5%"


def facts_of(value: object, *names: str) -> dict[str, Any]:
    """Return some facts of a value by name, as far as they are known."""
    return {name: fact for name in names if (fact := getattr(value, name, None)) is not None}


def copies_of(machine: Machine) -> Bandwidth:
    """Return the measured copies of a machine; without any, none."""
    return machine.bandwidth or _NO_COPIES


def present(machine: Machine) -> list[Gpu]:
    """Return the GPUs that answer: rules do not look at a lost one."""
    return [gpu for gpu in machine.gpus if not gpu.lost]


def by_model(machine: Machine) -> list[list[Gpu]]:
    """Return the GPUs of each model together: they are peers. GPUs without a name have none."""
    return list(grouped((gpu.name, gpu) for gpu in present(machine) if gpu.name).values())


def _with_fitting_remedy(fault: Fault, machine: Machine) -> Fault:
    """Return a fault with a remedy that fits what its GPU is in, and whether this is a container."""
    gpu = next((gpu for gpu in machine.gpus if gpu.index in fault.gpus), None)
    remedy, place = fault.remedy, None if gpu is None else place_of(machine, gpu)
    if place is not None:
        remedy = ELSEWHERE.get(fault.fits, {}).get(place, remedy)
    contained = machine.host.container not in (None, "none") and "n a container" not in remedy
    if contained and _ON_HOST.search(remedy):
        remedy = f"On the host, not in this container: {remedy}"
    for word, path in _VALUES.items() if gpu is not None else ():
        value = attrgetter(path)(gpu)
        remedy = remedy if value is None else remedy.replace(word, f"{value:.0f}")
    return msgspec.structs.replace(fault, remedy=remedy)


def _with_numbers(finding: Finding, machine: Machine) -> Finding:
    """Return a finding whose remedy has the numbers of its GPUs and of their NUMA node, as far as known."""
    gpus = [gpu for gpu in machine.gpus if gpu.index in finding.subject.gpus]
    which = ",".join(label(machine, gpu) for gpu in gpus) or finding.evidence.get("pci_address")
    nodes = {gpu.numa_node for gpu in gpus}
    remedy = finding.remedy or ""
    remedy = _ANY_GPU.sub(which, remedy) if which else remedy
    remedy = _NODE.sub(str(nodes.pop()), remedy) if len(nodes) == 1 and None not in nodes else remedy
    return msgspec.structs.replace(finding, remedy=remedy)


def _join_faults(faults: Iterable[Fault], machine: Machine) -> list[Finding]:
    """Return one finding for each fault, but only one where several GPUs have the same.

    The same: of one rule, severity, remedy and part, and with the same message. Where every GPU of the
    machine has a fault of one severity, messages may differ: then it is a property of the machine.
    """
    gpus = len(present(machine))
    fitting = [_with_fitting_remedy(fault, machine) for fault in faults]
    groups = grouped((fault.key, fault) for fault in fitting).values()
    return [_with_numbers(_to_finding(part), machine) for group in groups for part in _split(group, gpus)]


def _join_samples(
    faults_of_samples: Sequence[Sequence[Fault]], samples_of_log: int | None
) -> Iterator[Fault]:
    """Join the faults of several samples by rule, subject and part, and count the samples that have them.

    `samples_of_log`: the number of samples of a log of which only a part is stored.
    """
    by_sample = (
        grouped(((fault.rule.id, _subject(fault), fault.part), fault) for fault in faults)
        for faults in faults_of_samples
    )
    for same in grouped(item for by_key in by_sample for item in by_key.items()).values():
        worst = max(
            same, key=lambda faults: (max(SEVERITIES.index(fault.severity) for fault in faults), len(faults))
        )
        samples, among = len(same), len(faults_of_samples)
        if samples_of_log is None:
            words, counted = f"in {samples} of {among} samples", {"samples": samples, "of_samples": among}
        else:
            words, counted = f"in some of {samples_of_log} samples", {"of_samples": samples_of_log}
        for fault in worst:
            says, evidence = f"{fault.says}, {words}", fault.evidence | counted
            yield fault if samples == among else msgspec.structs.replace(fault, says=says, evidence=evidence)


def _split(faults: list[Fault], gpus: int) -> list[list[Fault]]:
    if len({fault.gpus for fault in faults}) == len(faults) == gpus > 1:
        return [faults]
    return list(grouped((fault.says, fault) for fault in faults).values())


def _subject(fault: Fault) -> Subject:
    return Subject.of_gpus([fault.about.index]) if isinstance(fault.about, Gpu) else fault.about


def _to_finding(group: Sequence[Fault]) -> Finding:
    first, severity, remedy = group[0], group[0].severity, group[0].remedy
    if len(group) == 1:
        says = f"{named(first.about)}: {first.says}" if isinstance(first.about, Gpu) else first.says
        return first.rule.finding(_subject(first), says, first.evidence, severity, remedy=remedy)
    evidence = {"gpus": {str(index): fault.evidence for fault in group for index in fault.gpus}}
    subject = Subject.of_gpus(index for fault in group for index in fault.gpus)
    return first.rule.finding(subject, "; ".join(_messages(group)), evidence, severity, remedy=remedy)


def _messages(group: Sequence[Fault]) -> Iterator[str]:
    by_message = grouped((fault.says, index) for fault in group for index in fault.gpus)
    for says, gpus in list(by_message.items())[:MAX_MESSAGES]:
        yield f"GPU{'s' if len(gpus) > 1 else ''} {index_ranges(gpus)}: {says}"
    if len(by_message) > MAX_MESSAGES:
        yield "similar on the others"
