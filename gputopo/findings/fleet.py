"""Inspects the hosts of a fleet together, and finds outliers among similar hosts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
    errors = {name: one for name, one in readings.items() if isinstance(one, GputopoError)}
    hosts = [
        HostReading(name, without_identities(one))
        for name, one in readings.items()
        if isinstance(one, Machine)
    ]
    compared = [_Comparison(kind) for kind in kinds(hosts)]
    own = [finding for one in compared for finding in one.findings()]
    judged = {host.name for one in compared if len(one.hosts) > 2 for host in one.kind.hosts}
    odd = {host for finding in own if finding.id not in (SPLIT.id, NOT_READ.id) for host in finding.hosts}
    for name, error in errors.items():
        own.append(_of(name, NO_ANSWER, MACHINE, f"no reading: {error.what}", {"hint": error.hint}))
    own += [one for host in hosts if host.name in baseline for one in _changed(host, baseline[host.name])]
    own += [
        _named(NO_ANSWER.finding(MACHINE, _NOT_ASKED, {}, "info"), (name,), f"host {name}: {_NOT_ASKED}")
        for name in baseline
        if name not in readings
    ]
    found, shared = _worst_first(own), _worst_first(finding for one in compared for finding in one.shared())
    broken = {*errors, *(host.name for host in hosts if driver_broken(host.machine) is not None)}

    def exit_code(name: str) -> ExitCode:
        if name in broken:
            return ExitCode.HARDWARE
        failed = fails([one for one in (*found, *shared) if name in one.hosts], fail_on)
        return ExitCode.FINDINGS if failed else ExitCode.OK

    return Fleet(
        kinds=tuple(one.summary() for one in compared),
        unread=tuple(errors),
        outliers=tuple(name for name in readings if name in odd & judged),
        findings=found,
        shared=shared,
        exit_codes={name: int(exit_code(name)) for name in readings},
    )


def _changed(host: HostReading, was: Machine) -> Iterator[HostFinding]:
    """Yield the changes since an earlier reading of a host."""
    changes = machine_difference(without_identities(was), host.machine).changes
    if changes:
        says = f"since the baseline: {_several([one.says for one in changes])}"
        evidence = {one.fact: {"was": one.was, "is": one.is_} for one in changes}
        yield _of(host.name, CHANGED, MACHINE, says, evidence)


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
        places = grouped((tuple(gpu.pci_address for gpu in one.gpus), one) for one in machines)
        # The GPU addresses of most hosts; if several are equally frequent, those with the most GPUs.
        reference = max(places.items(), key=lambda one: (len(one[1]), len(one[0])))[1][0]
        seen: dict[HostDevice, tuple[msgspec.Struct, dict[str, Any]]] = {}
        self.hosts = {host.name: facts_of_host(host.machine, reference, seen) for host in kind.hosts}
        self.by_fact: dict[tuple[HostDevice, str], dict[str, Any]] = {}
        for name, host in self.hosts.items():
            for device, facts in host.facts.items():
                for fact, value in facts.items():
                    self.by_fact.setdefault((device, fact), {})[name] = value
        devices = dict.fromkeys(device for host in self.hosts.values() for device in host.devices)
        for device in (one for one in devices if one.group in _COUNTED):
            self.by_fact[device, ""] = {
                name: "there" if device in host.devices else "missing"
                for name, host in self.hosts.items()
                # Most captures do not show network cards.
                if device.group == "gpus" or any(one.group == device.group for one in host.devices)
            }
        self.found = {
            host.name: [
                (one, {(one.severity, *key) for key in finding_keys(one)}) for one in find(host.machine)
            ]
            for host in kind.hosts
        }
        self.keys = {name: {key for _, keys in each for key in keys} for name, each in self.found.items()}
        self.having = Counter(key for keys in self.keys.values() for key in keys)

    def summary(self) -> FleetKind:
        """Return the kind with the number of facts that at least two hosts have."""
        compared = sum(len(values) > 1 for values in self.by_fact.values())
        return FleetKind(name=self.kind.name, hosts=tuple(self.hosts), compared=compared)

    def findings(self) -> Iterator[HostFinding]:
        """Yield the differences of each host, and its findings that most of its peers do not have."""
        yield from self._facts()
        yield from self._not_read()
        for name, each in self.found.items():
            for finding, keys in each:
                if finding.id != GPU_BUSY.id and not self._is_common(keys):
                    yield _named(finding, (name,), f"host {name}: {finding.says}")

    def shared(self) -> Iterator[HostFinding]:
        """Yield findings that most hosts of this kind have, from the first such host, and their load."""
        busy = {name: one for name, each in self.found.items() for one, _ in each if one.id == GPU_BUSY.id}
        if busy:
            first = max(busy.values(), key=lambda one: one.rank)
            says = f"other programs run on GPUs of {len(busy)} of {len(self.hosts)} hosts"
            yield _named(first, tuple(busy), f"{says}: {host_ranges(busy)}")
        seen: set[_Key] = set()
        for finding, keys in (one for each in self.found.values() for one in each):
            if finding.id != GPU_BUSY.id and self._is_common(keys) and not seen >= keys:
                seen |= keys
                hosts = tuple(name for name, theirs in self.keys.items() if keys & theirs)
                yield _named(finding, hosts, f"{len(hosts)} of {len(self.hosts)} hosts: {finding.says}")

    def _is_common(self, keys: Set[_Key]) -> bool:
        """Return whether most hosts on which a finding would be visible have it."""
        among = {
            key: sum(key in self.keys[name] or _shows(Subject(key[2]), one) for name, one in self.kind.hosts)
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
            if (found := majority(by_host, field.same)) is None:
                continue
            says = f"{path_in_words(GROUPS[device.group], fact)} ".lstrip()
            if found.common is None:
                values = grouped((field.value_in_words(value), name) for name, value in by_host.items())
                words = "; ".join(f"{value} on {_some(names)}" for value, names in values.items())
                split.append(_Differing(device, fact, f"{says}{words}", by_host))
            for name, value in found.odd.items() if found.common is not None else ():
                peers = f"{field.value_in_words(found.common)} on {_peers(found.others)}"
                evidence = {"value": value, "peers": found.common, "hosts": found.others}
                words = f"{says}{field.value_in_words(value)} ({peers})"
                odd[name].append(_Differing(device, fact, words, evidence))
        for name, differing in odd.items():
            for rule, subject, words, evidence in _joined(differing, self.hosts[name]):
                yield _of(name, rule, subject, words, evidence)
        for _, subject, words, evidence in _joined(split, next(iter(self.hosts.values()))):
            hosts = [name for name in self.hosts if any(name in each for each in evidence.values())]
            yield _split(hosts, subject, words, evidence)

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
                words = [
                    f"{one.group.removesuffix('s')} {path_in_words(GROUPS[one.group], fact)}"
                    for one, fact in lacking
                ]
                words = list(dict.fromkeys(words))
                more = ", ..." if len(words) > MAX_MESSAGES else ""
                some = ", ".join(words[:MAX_MESSAGES]) + more
                says = f"{_counted(len(lacking), 'fact')} not read that similar hosts have ({some})"
                yield _of(name, NOT_READ, MACHINE, says, {"facts": [_path(*key) for key in lacking]})


def _joined(
    differing: Iterable[_Differing], host: HostFacts
) -> Iterator[tuple[Rule, Subject, str, dict[str, Any]]]:
    """Join devices of a group that differ in the same facts: rule, subject, text, and evidence by path."""
    by_device = grouped((one.device, one) for one in differing)
    alike = grouped(((of.group, tuple(one.words for one in each)), of) for of, each in by_device.items())
    for (group, facts), devices in alike.items():
        absent = (MACHINE, f"{_COUNTED[group][1] if group in _COUNTED else group} at {devices[0].place}")
        called = [host.devices.get(device, absent) for device in devices]
        subject, name = called[0]
        if len(called) > 1:
            gpus = [gpu for own, _ in called for gpu in own.gpus] if group == "gpus" else []
            subject = Subject.of_gpus(gpus) if gpus else MACHINE
            name = gpu_ranges(gpus) if gpus else f"{name} and {len(called) - 1} more"
        evidence = {_path(of, one.fact): one.evidence for of in devices for one in by_device[of]}
        is_counted = not any(one.fact for one in by_device[devices[0]])
        yield _COUNTED[group][0] if is_counted else DIFFERS, subject, f"{name}: {_several(facts)}", evidence


def _shows(subject: Subject, machine: Machine) -> bool:
    """Return whether findings about a device would be visible on a host: for GPUs, if the driver answers."""
    gpus = {gpu.index for gpu in machine.gpus if not gpu.lost}
    answers = machine.driver.status in ("ok", "not_read") and gpus >= {*subject.gpus}
    return (answers or not subject.gpus) and {nic.index for nic in machine.nics} >= {*subject.nics}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MAX_MESSAGES else host_set(names)


def _path(device: HostDevice, fact: str) -> str:
    return within(f"{device.group}[{device.place}]" if device.place else device.group, fact)


def _several(words: Sequence[str]) -> str:
    more = len(words) - MAX_MESSAGES
    return "; ".join(words[:MAX_MESSAGES]) + (f"; and {_counted(more, 'more fact')}" if more > 0 else "")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _peers(count: int) -> str:
    return f"its {count} peers" if count > 1 else "its peer"


def _of(host: str, rule: Rule, subject: Subject, says: str, evidence: Mapping[str, Any]) -> HostFinding:
    return _named(rule.finding(subject, says, evidence), (host,), f"host {host}: {says}")


def _split(hosts: Iterable[str], subject: Subject, says: str, evidence: Mapping[str, Any]) -> HostFinding:
    return _named(SPLIT.finding(subject, says, evidence), tuple(hosts), f"hosts differ: {says}")


def _named(finding: Finding, hosts: tuple[str, ...], says: str) -> HostFinding:
    return HostFinding(**{**msgspec.structs.asdict(finding), "says": says}, hosts=hosts)


def _worst_first(findings: Iterable[HostFinding]) -> tuple[HostFinding, ...]:
    return tuple(one for one in worst_first(findings) if isinstance(one, HostFinding))
