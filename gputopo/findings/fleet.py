"""Inspects the hosts of a fleet together, and finds outliers among similar hosts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from gputopo.findings.checks import driver_broken, find
from gputopo.findings.compare import majority
from gputopo.findings.difference import finding_keys, machine_difference
from gputopo.findings.fleet_hosts import HostDevice, HostFacts, facts_of_host
from gputopo.findings.fleet_kinds import HostKind, HostReading, kinds
from gputopo.findings.rule import MAX_MESSAGES, Rule, fails, worst_first
from gputopo.findings.usage import GPU_BUSY
from gputopo.topology import without_identities
from gputopo.values.errors import ExitCode, GputopoError
from gputopo.values.facts import GROUPS, within
from gputopo.values.fields import field_at, path_in_words
from gputopo.values.finding import Finding, Fleet, FleetKind, HostFinding, Severity
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import gpu_ranges, host_ranges, host_set
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE, Subject

NO_ANSWER = Rule(
    "fleet.no_answer",
    "host without a reading",
    remedy=(
        "Run gputopo inspect --record FILE on this host again. If it does not answer, look at its "
        "console or management controller."
    ),
    severities=("error", "info"),
)
GPU_COUNT = Rule(
    "fleet.gpu_count",
    "host with fewer or more GPUs than similar hosts",
    remedy=(
        "On the host without the GPU, see sudo dmesg | grep -i -e xid -e pcie, and whether lspci lists "
        "it. Power-cycle the host; if the GPU is still missing, reseat or replace it."
    ),
    severities=("error",),
)
NIC_COUNT = Rule(
    "fleet.nic_count",
    "host with fewer or more network cards than similar hosts",
    remedy="See whether lspci lists the card on the host without it, and reseat it.",
)
DIFFERS = Rule(
    "fleet.differs",
    "host with facts that differ from similar hosts",
    remedy=(
        "Compare the host with a similar one (gputopo inspect --from HOST --diff OTHER), then bring it "
        "to the same state, or replace the defective part."
    ),
)
SPLIT = Rule(
    "fleet.split",
    "similar hosts without a majority",
    remedy="Decide which value is right. No value is on more than half of the hosts, so no host is an "
    "outlier.",
)
NOT_READ = Rule(
    "fleet.not_read",
    "facts missing on one host that similar hosts have",
    remedy="To compare them, read the host again with the same rights and outside a container.",
    severities=("info",),
)
CHANGED = Rule(
    "fleet.changed",
    "host that differs from the baseline",
    remedy=(
        "Find out what was changed or repaired on this host. If the new state is right, record the hosts "
        "again (--fleet --record FOLDER)."
    ),
)
# Groups of devices whose number is compared, with the rule and the name.
_COUNTED = {"gpus": (GPU_COUNT, "GPU"), "nics": (NIC_COUNT, "network card")}
_NOT_ASKED = "in the baseline, but not asked"
RULES = (NO_ANSWER, GPU_COUNT, NIC_COUNT, DIFFERS, SPLIT, NOT_READ, CHANGED)


def inspect_fleet(
    readings: Mapping[str, Machine | GputopoError],
    baseline: Mapping[str, Machine] = {},
    fail_on: Severity | None = None,
) -> Fleet:
    """Compare each host with the majority of similar hosts. `readings`: by host, its machine or an error.

    `baseline`: earlier readings. Each host is also compared with its own.
    """
    errors = {name: reading for name, reading in readings.items() if isinstance(reading, GputopoError)}
    hosts = [
        HostReading(name, without_identities(reading))
        for name, reading in readings.items()
        if isinstance(reading, Machine)
    ]
    comparisons = [_Comparison(kind) for kind in kinds(hosts)]
    findings = [finding for comparison in comparisons for finding in comparison.findings()]
    judged = {host for comparison in comparisons if len(comparison.hosts) > 2 for host in comparison.hosts}
    odd = {
        host for finding in findings if finding.id not in (SPLIT.id, NOT_READ.id) for host in finding.hosts
    }
    for name, error in errors.items():
        says = f"no reading: {error.what}"
        findings.append(_host_finding([name], NO_ANSWER, MACHINE, says, {"hint": error.hint}))
    for name, machine in hosts:
        if name not in baseline:
            continue
        if changes := machine_difference(without_identities(baseline[name]), machine).changes:
            says = f"since the baseline: {_first([change.says for change in changes])}"
            evidence = {change.fact: {"was": change.was, "is": change.is_} for change in changes}
            findings.append(_host_finding([name], CHANGED, MACHINE, says, evidence))
    for name in baseline:
        if name not in readings:
            findings.append(_host_finding([name], NO_ANSWER, MACHINE, _NOT_ASKED, {}, "info"))
    shared = worst_first(finding for comparison in comparisons for finding in comparison.shared())
    broken = {*errors, *(name for name, machine in hosts if driver_broken(machine) is not None)}

    def exit_code(name: str) -> ExitCode:
        if name in broken:
            return ExitCode.HARDWARE
        failed = fails([finding for finding in (*findings, *shared) if name in finding.hosts], fail_on)
        return ExitCode.FINDINGS if failed else ExitCode.OK

    return Fleet(
        kinds=tuple(comparison.summary() for comparison in comparisons),
        unread=tuple(errors),
        outliers=tuple(name for name in readings if name in odd & judged),
        findings=worst_first(findings),
        shared=shared,
        exit_codes={name: int(exit_code(name)) for name in readings},
    )


# The key of a finding that is the same on several hosts: severity, id, and a device.
_Key = tuple[Severity, str, str]


class _Differing(NamedTuple):
    """A fact of a device that differs: its text, and its evidence."""

    device: HostDevice
    fact: str
    words: str
    evidence: Any


class _Comparison:
    """Compares one kind of hosts, by the facts of all hosts by device and path."""

    def __init__(self, kind: HostKind) -> None:
        self.kind = kind
        machines = [host.machine for host in kind.hosts]
        places = grouped((tuple(gpu.pci_address for gpu in machine.gpus), machine) for machine in machines)
        # The GPU addresses of most hosts; if several are equally frequent, those with the most GPUs.
        reference = max(places.items(), key=lambda place: (len(place[1]), len(place[0])))[1][0]
        seen: dict[HostDevice, tuple[msgspec.Struct, dict[str, Any]]] = {}
        self.hosts = {host.name: facts_of_host(host.machine, reference, seen) for host in kind.hosts}
        self.by_fact: dict[tuple[HostDevice, str], dict[str, Any]] = {}
        for name, host in self.hosts.items():
            for device, facts in host.facts.items():
                for fact, value in facts.items():
                    self.by_fact.setdefault((device, fact), {})[name] = value
        devices = dict.fromkeys(device for host in self.hosts.values() for device in host.devices)
        for device in devices:
            if device.group not in _COUNTED:
                continue
            self.by_fact[device, ""] = {
                name: "there" if device in host.devices else "missing"
                for name, host in self.hosts.items()
                # Most captures do not show network cards.
                if device.group == "gpus" or any(other.group == device.group for other in host.devices)
            }
        self.found = {
            name: [
                (finding, {(finding.severity, *key) for key in finding_keys(finding)})
                for finding in find(machine)
            ]
            for name, machine in kind.hosts
        }
        self.keys = {
            name: {key for _, keys in findings for key in keys} for name, findings in self.found.items()
        }
        self.having = Counter(key for keys in self.keys.values() for key in keys)

    def summary(self) -> FleetKind:
        """Return the kind with the number of facts that at least two hosts have."""
        compared = sum(len(values) > 1 for values in self.by_fact.values())
        return FleetKind(name=self.kind.name, hosts=tuple(self.hosts), compared=compared)

    def findings(self) -> Iterator[HostFinding]:
        """Yield the differences of each host, and its findings that most of its peers do not have."""
        yield from self._facts()
        yield from self._not_read()
        for name, findings in self.found.items():
            for finding, keys in findings:
                if finding.id != GPU_BUSY.id and not self._is_common(keys):
                    yield _of_hosts(finding, [name], f"host {name}")

    def shared(self) -> Iterator[HostFinding]:
        """Yield findings that most hosts of this kind have, from the first such host, and their load."""
        busy = {
            name: finding
            for name, findings in self.found.items()
            for finding, _ in findings
            if finding.id == GPU_BUSY.id
        }
        if busy:
            worst = max(busy.values(), key=lambda finding: finding.rank)
            says = (
                f"other programs run on GPUs of {len(busy)} of {len(self.hosts)} hosts: {host_ranges(busy)}"
            )
            yield _of_hosts(msgspec.structs.replace(worst, says=says), busy)
        seen: set[_Key] = set()
        for finding, keys in chain.from_iterable(self.found.values()):
            if finding.id != GPU_BUSY.id and self._is_common(keys) and not seen >= keys:
                seen |= keys
                hosts = tuple(name for name, theirs in self.keys.items() if keys & theirs)
                yield _of_hosts(finding, hosts, f"{len(hosts)} of {len(self.hosts)} hosts")

    def _is_common(self, keys: Set[_Key]) -> bool:
        """Return whether most hosts on which a finding would be visible have it."""
        among = {
            key: sum(
                key in self.keys[name] or _shows(Subject(key[2]), machine)
                for name, machine in self.kind.hosts
            )
            for key in keys
        }
        compared = [key for key in keys if among[key] > 1]
        return bool(compared) and all(2 * self.having[key] > among[key] for key in compared)

    def _facts(self) -> Iterator[HostFinding]:
        """Find facts of single hosts that differ from most hosts, and facts without a majority value."""
        odd: dict[str, list[_Differing]] = {name: [] for name in self.hosts}
        split: list[_Differing] = []
        for (device, fact), by_host in self.by_fact.items():
            field = field_at(GROUPS[device.group], fact)
            if (compared := majority(by_host, field.same)) is None:
                continue
            says = f"{path_in_words(GROUPS[device.group], fact)} ".lstrip()
            if compared.common is None:
                values = grouped((field.value_in_words(value), name) for name, value in by_host.items())
                on_hosts = (
                    f"{value} on {', '.join(names) if len(names) <= MAX_MESSAGES else host_set(names)}"
                    for value, names in values.items()
                )
                split.append(_Differing(device, fact, f"{says}{'; '.join(on_hosts)}", by_host))
                continue
            which = f"its {compared.others} peers" if compared.others > 1 else "its peer"
            peers = f"{field.value_in_words(compared.common)} on {which}"
            for name, value in compared.odd.items():
                evidence = {"value": value, "peers": compared.common, "hosts": compared.others}
                words = f"{says}{field.value_in_words(value)} ({peers})"
                odd[name].append(_Differing(device, fact, words, evidence))
        for name, differing in odd.items():
            for rule, subject, words, evidence in _joined(differing, self.hosts[name]):
                yield _host_finding([name], rule, subject, words, evidence)
        for _, subject, words, evidence in _joined(split, next(iter(self.hosts.values()))):
            hosts = [name for name in self.hosts if any(name in by_name for by_name in evidence.values())]
            yield _host_finding(hosts, SPLIT, subject, words, evidence)

    def _not_read(self) -> Iterator[HostFinding]:
        """Find facts that only this host does not have of a device; two or more peers must have them."""
        count = len(self.hosts)
        for name, host in self.hosts.items():
            lacking = [
                key
                for key, known in self.by_fact.items()
                if count > 2 and name not in known and 2 * len(known) > count and key[0] in host.facts
            ]
            if lacking:
                words = dict.fromkeys(
                    f"{device.group.removesuffix('s')} {path_in_words(GROUPS[device.group], fact)}"
                    for device, fact in lacking
                )
                some = ", ".join([*words][:MAX_MESSAGES]) + (", ..." if len(words) > MAX_MESSAGES else "")
                says = f"{_counted(len(lacking), 'fact')} not read that similar hosts have ({some})"
                evidence = {"facts": [_path(*key) for key in lacking]}
                yield _host_finding([name], NOT_READ, MACHINE, says, evidence)


def _joined(
    differing: Iterable[_Differing], host: HostFacts
) -> Iterator[tuple[Rule, Subject, str, dict[str, Any]]]:
    """Join devices of a group that differ in the same facts: rule, subject, text, and evidence by path."""
    by_device = grouped((fact.device, fact) for fact in differing)
    alike = grouped(
        ((device.group, tuple(fact.words for fact in facts)), device) for device, facts in by_device.items()
    )
    for (group, words), devices in alike.items():
        absent = (MACHINE, f"{_COUNTED[group][1] if group in _COUNTED else group} at {devices[0].place}")
        called = [host.devices.get(device, absent) for device in devices]
        subject, name = called[0]
        if len(called) > 1:
            gpus = [gpu for of_device, _ in called for gpu in of_device.gpus] if group == "gpus" else []
            subject = Subject.of_gpus(gpus) if gpus else MACHINE
            name = gpu_ranges(gpus) if gpus else f"{name} and {len(called) - 1} more"
        facts = [fact for device in devices for fact in by_device[device]]
        rule = DIFFERS if any(fact.fact for fact in by_device[devices[0]]) else _COUNTED[group][0]
        evidence = {_path(fact.device, fact.fact): fact.evidence for fact in facts}
        yield rule, subject, f"{name}: {_first(words)}", evidence


def _shows(subject: Subject, machine: Machine) -> bool:
    """Return whether findings about a device would be visible on a host: for GPUs, if the driver answers."""
    gpus = {gpu.index for gpu in machine.gpus if not gpu.lost}
    answers = machine.driver.status in ("ok", "not_read") and gpus >= {*subject.gpus}
    return (answers or not subject.gpus) and {nic.index for nic in machine.nics} >= {*subject.nics}


def _path(device: HostDevice, fact: str) -> str:
    return within(f"{device.group}[{device.place}]" if device.place else device.group, fact)


def _first(words: Sequence[str]) -> str:
    """Return the first of several texts, and how many more there are."""
    more = len(words) - MAX_MESSAGES
    return "; ".join(words[:MAX_MESSAGES]) + (f"; and {_counted(more, 'more fact')}" if more > 0 else "")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _host_finding(
    hosts: Sequence[str],
    rule: Rule,
    subject: Subject,
    says: str,
    evidence: Mapping[str, Any],
    severity: Severity | None = None,
) -> HostFinding:
    prefix = "hosts differ" if rule is SPLIT else f"host {hosts[0]}"
    return _of_hosts(rule.finding(subject, says, evidence, severity), hosts, prefix)


def _of_hosts(finding: Finding, hosts: Iterable[str], prefix: str = "") -> HostFinding:
    says = f"{prefix}: {finding.says}" if prefix else finding.says
    return HostFinding(**{**msgspec.structs.asdict(finding), "says": says}, hosts=tuple(hosts))
