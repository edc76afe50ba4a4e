"""The hosts of a fleet inspected together: the outliers among like hosts, each with what differs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from gputopo.findings import SEVERITIES, Finding, driver_broken, fails, find, worst_first
from gputopo.findings.compare import grouped, majority
from gputopo.findings.difference import difference
from gputopo.findings.fleet_hosts import (
    HostDevice,
    HostFact,
    HostFacts,
    HostKind,
    HostReading,
    facts_of_host,
    kinds,
)
from gputopo.findings.rule import MAX_MESSAGES, Rule, Severity, rule_of
from gputopo.findings.usage import GPU_BUSY
from gputopo.topology.identities import without_identities
from gputopo.values.errors import ExitCode, GputopoError
from gputopo.values.fields import path_in_words
from gputopo.values.index_ranges import host_ranges, host_set, index_ranges
from gputopo.values.machine import Machine, Nic
from gputopo.values.subject import DRIVER, GROUPS, MACHINE, Subject

NO_ANSWER = rule_of("fleet.no_answer")
GPU_COUNT = rule_of("fleet.gpu_count")
NIC_COUNT = rule_of("fleet.nic_count")
DIFFERS = rule_of("fleet.differs")
SPLIT = rule_of("fleet.split")
NOT_READ = rule_of("fleet.not_read")
CHANGED = rule_of("fleet.changed")
_NOT_ASKED = "in the baseline, and not asked"
RULES = (NO_ANSWER, GPU_COUNT, NIC_COUNT, DIFFERS, SPLIT, NOT_READ, CHANGED)


class HostFinding(Finding, frozen=True, kw_only=True):
    """A finding about a host, or several; its `subject` is within them."""

    hosts: tuple[str, ...]


class FleetKind(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that were compared with one another, and how many facts of each were."""

    name: str
    hosts: tuple[str, ...]
    compared: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.fleet/1"):
    """Several hosts compared."""

    kinds: tuple[FleetKind, ...] = ()
    unread: tuple[str, ...] = ()
    outliers: tuple[str, ...] = ()  # those that differ from the majority of a kind of three or more
    findings: tuple[HostFinding, ...] = ()  # what differs, and the findings of single hosts
    shared: tuple[HostFinding, ...] = ()  # those of most hosts of a kind, and load
    exit_codes: dict[str, int] = {}  # of `gputopo inspect` on each host with the same --fail-on; 3: not read


def inspect_fleet(
    readings: Mapping[str, Machine | GputopoError],
    baseline: Mapping[str, Machine] = {},
    fail_on: Severity | None = None,
) -> Fleet:
    """Compare hosts with the majority of like hosts. `readings`: by host, the error of one that has none.

    `baseline`: earlier readings, with which each host is compared, too.
    """
    hosts = [
        HostReading(name, without_identities(machine))
        for name, machine in readings.items()
        if isinstance(machine, Machine)
    ]
    unread = [
        _of(name, NO_ANSWER, MACHINE, f"no reading: {error.what}", {"hint": error.hint})
        for name, error in readings.items()
        if isinstance(error, GputopoError)
    ]
    compared = [_Comparison(kind) for kind in kinds(hosts)]
    own = [finding for one in compared for finding in one.findings()]
    judged = {host.name for one in compared if len(one.hosts) > 2 for host in one.kind.hosts}
    odd = {host for finding in own if finding.id not in (SPLIT.id, NOT_READ.id) for host in finding.hosts}
    changed = [one for host in hosts if host.name in baseline for one in _changed(host, baseline[host.name])]
    gone = [
        _named(NO_ANSWER.finding(MACHINE, _NOT_ASKED, {}, "info"), (name,), f"host {name}: {_NOT_ASKED}")
        for name in baseline
        if name not in readings
    ]
    found = _worst_first([*unread, *own, *changed, *gone])
    shared = _worst_first(finding for one in compared for finding in one.shared())
    broken = {host.name for host in hosts if driver_broken(host.machine) is not None}
    return Fleet(
        kinds=tuple(one.summary() for one in compared),
        unread=tuple(finding.hosts[0] for finding in unread),
        outliers=tuple(name for name in readings if name in odd & judged),
        findings=found,
        shared=shared,
        exit_codes={
            name: int(
                ExitCode.HARDWARE
                if name in broken or isinstance(reading, GputopoError)
                else ExitCode.FINDINGS
                if fails([one for one in (*found, *shared) if name in one.hosts], fail_on)
                else ExitCode.OK
            )
            for name, reading in readings.items()
        },
    )


def _changed(host: HostReading, was: Machine) -> Iterator[HostFinding]:
    """Yield what is not as in an earlier reading of a host."""
    changes = difference(without_identities(was), host.machine).changes
    if changes:
        says = f"since the baseline: {_several([one.says for one in changes])}"
        evidence = {one.fact: {"was": one.was, "is": one.is_} for one in changes}
        yield _of(host.name, CHANGED, MACHINE, says, evidence)


class _Key(NamedTuple):
    """What a finding has in common with the same one of another host."""

    id: str
    severity: Severity
    device: HostDevice


class _Comparison:
    """One kind of hosts compared: the facts of all by shared path."""

    def __init__(self, kind: HostKind) -> None:
        self.kind = kind
        machines = [host.machine for host in kind.hosts]
        places = grouped((tuple(gpu.pci_address for gpu in one.gpus), one) for one in machines)
        # Where most have their GPUs; of several such places, those of the host with the most GPUs.
        reference = max(places.items(), key=lambda one: (len(one[1]), len(one[0])))[1][0]
        self.hosts = {host.name: facts_of_host(host.machine, reference) for host in kind.hosts}
        self.by_path = {
            path: dict(known)
            for path, known in grouped(
                (path, (name, known))
                for name, host in self.hosts.items()
                for path, known in host.facts.items()
            ).items()
        }
        self.found = {
            host.name: [(finding, _keys(finding, self.hosts[host.name])) for finding in find(host.machine)]
            for host in kind.hosts
        }
        self.keys = {name: {key for _, keys in each for key in keys} for name, each in self.found.items()}
        self.having = Counter(key for keys in self.keys.values() for key in keys)

    def summary(self) -> FleetKind:
        """Return the kind with the number of facts that at least two hosts have."""
        compared = sum(len(values) > 1 for values in self.by_path.values())
        return FleetKind(name=self.kind.name, hosts=tuple(self.hosts), compared=compared)

    def findings(self) -> Iterator[HostFinding]:
        """Yield what differs on each host, and the findings that most of its peers do not have."""
        yield from self._counts(GPU_COUNT, "GPU", {name: host.gpus for name, host in self.hosts.items()})
        # Most captures do not show network cards.
        nics = {name: host.nics for name, host in self.hosts.items() if host.nics}
        yield from self._counts(NIC_COUNT, "network card", nics)
        yield from self._facts()
        yield from self._not_read()
        for name, each in self.found.items():
            for finding, keys in each:
                if finding.id != GPU_BUSY.id and not self._is_common(keys):
                    yield _named(finding, (name,), f"host {name}: {finding.says}")

    def shared(self) -> Iterator[HostFinding]:
        """Yield the findings of most hosts of this kind once, of the first that has each, and their load."""
        busy = {name: one for name, each in self.found.items() for one, _ in each if one.id == GPU_BUSY.id}
        if busy:
            first = max(busy.values(), key=lambda one: SEVERITIES.index(one.severity))
            says = f"other programs run on GPUs of {len(busy)} of {len(self.hosts)} hosts"
            yield _named(first, tuple(busy), f"{says}: {host_ranges(busy)}")
        seen: set[_Key] = set()
        for finding, keys in (one for each in self.found.values() for one in each):
            if finding.id != GPU_BUSY.id and self._is_common(keys) and not seen >= keys:
                seen |= keys
                hosts = tuple(name for name, theirs in self.keys.items() if keys & theirs)
                yield _named(finding, hosts, f"{len(hosts)} of {len(self.hosts)} hosts: {finding.says}")

    def _is_common(self, keys: Set[_Key]) -> bool:
        """Return whether most hosts have a finding: of those where it would be seen, if there are others."""
        among = {
            key: sum(key in self.keys[name] or _shows(key.device, host) for name, host in self.hosts.items())
            for key in keys
        }
        compared = [key for key in keys if among[key] > 1]
        return bool(compared) and all(2 * self.having[key] > among[key] for key in compared)

    def _counts(
        self, rule: Rule, word: str, devices: Mapping[str, Mapping[str, object]]
    ) -> Iterator[HostFinding]:
        """Find hosts that lack a device which most have, or have one which most lack."""
        having = Counter(place for each in devices.values() for place in each)
        usual = {place for place, count in having.items() if 2 * count > len(devices)}
        split = sorted(place for place, count in having.items() if 2 * count == len(devices))
        for name, each in devices.items():
            missing = [place for place in having if place in usual and place not in each]
            more = [place for place in each if place not in usual and place not in split]
            if missing or more:
                alike = sum(len(devices[other]) == len(usual) for other in devices if other != name)
                have = f", {_peers(alike)} ha{'ve' if alike > 1 else 's'} {len(usual)}" if alike else ""
                parts = [f"{word} at {place} is missing" for place in missing]
                parts += [f"{word} at {place} is extra" for place in more]
                says = f"{_counted(len(each), word)}{have} ({'; '.join(parts)})"
                yield _of(name, rule, MACHINE, says, {"missing": missing, "extra": more})
        if split:
            counts = {name: len(each) for name, each in devices.items()}
            by_count = grouped((count, name) for name, count in counts.items())
            words = [f"{_counted(count, word)} on {_some(names)}" for count, names in by_count.items()]
            for place in split:
                lacking = [name for name, each in devices.items() if place not in each]
                words.append(f"{word} at {place} is missing on {_some(lacking)}")
            yield _split(devices, MACHINE, _several(words), {"counts": counts, "places": split})

    def _facts(self) -> Iterator[HostFinding]:
        """Find facts of single hosts that differ from most, and facts on which no majority agrees."""
        odd: dict[str, list[tuple[HostDevice, str, str, dict[str, Any]]]] = {name: [] for name in self.hosts}
        split: list[tuple[HostDevice, str, str, dict[str, Any]]] = []
        for path, known in self.by_path.items():
            first = next(iter(known.values()))
            field, device, fact = first.field, first.device, _name(first)
            found = majority({name: one.value for name, one in known.items()}, field.same)
            if found is None:
                continue
            if found.common is None:
                values = grouped((field.value_in_words(one.value), name) for name, one in known.items())
                words = "; ".join(f"{value} on {_some(names)}" for value, names in values.items())
                by_host = {name: one.value for name, one in known.items()}
                split.append((device, path, f"{fact} {words}", by_host))
                continue
            common = field.value_in_words(found.common)
            for name, value in found.odd.items():
                words = f"{fact} {field.value_in_words(value)} ({common} on {_peers(found.others)})"
                evidence = {"value": value, "peers": found.common, "hosts": found.others}
                odd[name].append((device, _path(device, first), words, evidence))
        for name, differing in odd.items():
            for devices, facts, evidence in _alike(differing):
                subject, who = _who(self.hosts[name], devices)
                yield _of(name, DIFFERS, subject, f"{who}: {_several(facts)}", evidence)
        for devices, facts, evidence in _alike(split):
            subject, who = _who(next(iter(self.hosts.values())), devices)
            hosts = [name for name in self.hosts if any(name in each for each in evidence.values())]
            yield _split(hosts, subject, f"{who}: {_several(facts)}", evidence)

    def _not_read(self) -> Iterator[HostFinding]:
        """Find hosts that lack facts which all their peers (two or more) have, of devices that they have."""
        count = len(self.hosts)
        for name, host in self.hosts.items():
            paths = [
                path
                for path, known in self.by_path.items()
                if count > 2 and name not in known and 2 * len(known) > count
                if _is_there(next(iter(known.values())).device, host)
            ]
            if paths:
                first = [next(iter(self.by_path[path].values())) for path in paths]
                words = [*dict.fromkeys(f"{one.device.kind.removesuffix('s')} {_name(one)}" for one in first)]
                more = ", ..." if len(words) > MAX_MESSAGES else ""
                some = ", ".join(words[:MAX_MESSAGES]) + more
                says = f"{_counted(len(paths), 'fact')} not read that like hosts have ({some})"
                yield _of(name, NOT_READ, MACHINE, says, {"facts": paths})


def _alike(
    differing: Iterable[tuple[HostDevice, str, str, dict[str, Any]]],
) -> Iterator[tuple[list[HostDevice], tuple[str, ...], dict[str, Any]]]:
    """Join devices of a kind that differ in the same facts: the devices, words, and evidence by path."""
    facts = grouped((device, (path, words, evidence)) for device, path, words, evidence in differing)
    groups = grouped(((one.kind, tuple(words for _, words, _ in each)), one) for one, each in facts.items())
    for (_, words), devices in groups.items():
        yield devices, words, {path: value for one in devices for path, _, value in facts[one]}


def _who(host: HostFacts, devices: Sequence[HostDevice]) -> tuple[Subject, str]:
    """Return the subject for devices of one kind, by the numbers of this host, and their name."""
    kind, places = devices[0].kind, [device.place for device in devices]
    if kind == "gpus" and (numbers := [host.gpus[place].index for place in places if place in host.gpus]):
        return Subject.of_gpus(numbers), f"GPU{'s' if len(numbers) > 1 else ''} {index_ranges(numbers)}"
    if kind == "nics" and (nics := [host.nics[place] for place in places if place in host.nics]):
        names = ", ".join(map(_nic_name, nics))
        return Subject.of_nics(nic.index for nic in nics), f"network card {names}"
    if kind == "links":
        a, b = places[0].split(" ", 1)
        of_nics = any(place.split(" ", 1)[1] in host.nics for place in places)
        if len(places) > 1 or a not in host.gpus or b not in host.gpus.keys() | host.nics.keys():
            return MACHINE, f"{len(places)} pairs of GPUs{' and network cards' if of_nics else ''}"
        if of_nics:
            nic, gpu = host.nics[b], host.gpus[a].index
            return Subject.of_nics([nic.index]), f"network card {_nic_name(nic)} and GPU {gpu}"
        low, high = sorted((host.gpus[a].index, host.gpus[b].index))
        return Subject.of_link(low, high), f"GPUs {low} and {high}"
    if kind == "pci":
        more = f" and {len(places) - MAX_MESSAGES} more" if len(places) > MAX_MESSAGES else ""
        return MACHINE, f"PCI device{'s' if len(places) > 1 else ''} {', '.join(places[:MAX_MESSAGES])}{more}"
    return (DRIVER if kind == "driver" else MACHINE), kind


def _nic_name(nic: Nic) -> str:
    return nic.name or nic.pci_address or str(nic.index)


def _keys(finding: Finding, host: HostFacts) -> set[_Key]:
    """Return what makes a finding the same on another host, for each device that may have it by itself."""
    gpus = {gpu.index: place for place, gpu in host.gpus.items()}
    nics = {nic.index: place for place, nic in host.nics.items()}
    subject = finding.subject
    places = [gpus.get(gpu, str(gpu)) for gpu in subject.gpus]
    devices = {
        "gpus": [HostDevice("gpus", place) for place in places],
        "nics": [HostDevice("nics", nics.get(nic, str(nic))) for nic in subject.nics],
        "link": [HostDevice("links", " ".join(sorted(places)))],
    }.get(subject.kind, [HostDevice(subject.kind)])
    return {_Key(finding.id, finding.severity, device) for device in devices}


def _shows(device: HostDevice, host: HostFacts) -> bool:
    """Return whether findings about a device would be seen on a host: of GPUs where the driver answers."""
    if device.kind in ("gpus", "links"):
        return host.gpus_answer and _is_there(device, host)
    return device.kind != "nics" or device.place in host.nics


def _is_there(device: HostDevice, host: HostFacts) -> bool:
    if device.kind in ("gpus", "links"):
        ends = device.place.split(" ", 1)
        return all(end in host.nics or (end in host.gpus and not host.gpus[end].lost) for end in ends)
    if device.kind == "nics":
        return device.place in host.nics
    return device.kind != "pci" or any(other.device == device for other in host.facts.values())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MAX_MESSAGES else host_set(names)


def _name(known: HostFact) -> str:
    return path_in_words(GROUPS[known.device.kind], known.fact)


def _path(device: HostDevice, known: HostFact) -> str:
    return f"{device.kind}[{device.place}].{known.fact}" if device.place else f"{device.kind}.{known.fact}"


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
