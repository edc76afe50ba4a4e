"""The hosts of a fleet inspected together: the outliers among like hosts, each with what differs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from gputopo.findings import Finding, find, worst_first
from gputopo.findings.compare import grouped, majority
from gputopo.findings.fleet_hosts import (
    Device,
    HostFacts,
    HostReading,
    Kind,
    Known,
    facts_of_host,
    kinds,
    rails_of,
)
from gputopo.findings.rule import MAX_MESSAGES, Rule, Severity
from gputopo.topology.identities import without_identities
from gputopo.values.errors import GputopoError
from gputopo.values.fields import path_in_words
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine
from gputopo.values.subject import DRIVER, GROUPS, MACHINE, Subject

NO_ANSWER = Rule(
    "fleet.no_answer",
    title="host without a reading",
    remedy="Run gputopo inspect --record FILE on this host again. If it does not answer, look at its console "
    "or management controller.",
    severities=("error",),
)
GPU_COUNT = Rule(
    "fleet.gpu_count",
    title="host with fewer or more GPUs than like hosts",
    remedy="On the host that lacks the GPU, see sudo dmesg | grep -i -e xid -e pcie, and whether lspci lists "
    "it. Power-cycle the host; if the GPU stays away, reseat or replace it.",
    severities=("error",),
)
NIC_COUNT = Rule(
    "fleet.nic_count",
    title="host with fewer or more network cards than like hosts",
    remedy="See whether lspci lists the card on the host that lacks it, and reseat it.",
)
RAILS = Rule(
    "fleet.rails",
    title="host with its RDMA devices in another order than like hosts",
    remedy="Give RDMA devices names by their PCI address, alike on all hosts (udev rules of rdma-core), or "
    "start the host again. NCCL joins the cards of hosts in the order of their devices, so that this host "
    "sends to other switches where each rail has its own.",
)
DIFFERS = Rule(
    "fleet.differs",
    title="host with facts that differ from those of like hosts",
    remedy="Compare the host with a like one (gputopo inspect --from HOST --diff OTHER), and bring it to the "
    "same state, or replace what is defective.",
)
SPLIT = Rule(
    "fleet.split",
    title="like hosts of which no majority agrees",
    remedy="Decide which value is right: none is on more than half of the hosts, so no host is an outlier.",
)
NOT_READ = Rule(
    "fleet.not_read",
    title="facts that one host does not show and like hosts do",
    remedy="Read the host again, with the same rights and from outside of a container, to compare them.",
    severities=("info",),
)
RULES = (NO_ANSWER, GPU_COUNT, NIC_COUNT, RAILS, DIFFERS, SPLIT, NOT_READ)


T = TypeVar("T")


class HostFinding(Finding, frozen=True, kw_only=True):
    """A finding about a host, or several; its `subject` is within them."""

    hosts: tuple[str, ...]


class FleetKind(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that were compared with one another, and how many facts of each were."""

    name: str
    hosts: tuple[str, ...]
    compared: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.fleet/1"):
    """Several hosts compared. `outliers`: those that differ from the majority of a kind of three or more.

    `findings`: what differs, and the findings of single hosts. `shared`: those of most hosts of a kind.
    """

    kinds: tuple[FleetKind, ...] = ()
    unread: tuple[str, ...] = ()
    outliers: tuple[str, ...] = ()
    findings: tuple[HostFinding, ...] = ()
    shared: tuple[HostFinding, ...] = ()


def inspect_fleet(readings: Mapping[str, Machine | GputopoError]) -> Fleet:
    """Compare hosts with the majority of like hosts. `readings`: by host, the error of one that has none."""
    hosts = [
        HostReading(name, without_identities(machine))
        for name, machine in readings.items()
        if isinstance(machine, Machine)
    ]
    unread = [
        _of((name,), NO_ANSWER, MACHINE, f"no reading: {error.what}", {"hint": error.hint})
        for name, error in readings.items()
        if isinstance(error, GputopoError)
    ]
    compared = [_Comparison(kind) for kind in kinds(hosts)]
    own = [finding for one in compared for finding in one.findings()]
    judged = {host.name for one in compared if len(one.hosts) > 2 for host in one.kind.hosts}
    odd = {host for finding in own if finding.id not in (SPLIT.id, NOT_READ.id) for host in finding.hosts}
    return Fleet(
        kinds=tuple(one.summary() for one in compared),
        unread=tuple(finding.hosts[0] for finding in unread),
        outliers=tuple(name for name in readings if name in odd & judged),
        findings=_worst_first([*unread, *own]),
        shared=_worst_first(finding for one in compared for finding in one.shared()),
    )


class _Key(NamedTuple):
    """What a finding has in common with the same one of another host."""

    id: str
    severity: Severity
    device: Device


class _Odd(NamedTuple):
    """A fact of one host that is another on most like hosts."""

    known: Known
    common: Any
    others: int

    @property
    def words(self) -> str:
        name, field = _name(self.known), self.known.field
        value, common = field.value_in_words(self.known.value), field.value_in_words(self.common)
        return f"{name} {value} ({common} on {_peers(self.others)})"


class _Comparison:
    """One kind of hosts compared: the facts of all by shared path."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        reference = _reference(kind)
        self.hosts = {host.name: facts_of_host(host.machine, reference) for host in kind.hosts}
        self.by_path: dict[str, dict[str, Known]] = {}
        for name, host in self.hosts.items():
            for path, known in host.facts.items():
                self.by_path.setdefault(path, {})[name] = known
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
        yield from self._counts(
            GPU_COUNT, "GPU", {name: dict(host.gpus) for name, host in self.hosts.items()}
        )
        yield from self._counts(
            NIC_COUNT, "network card", {name: dict(host.nics) for name, host in self.hosts.items()}
        )
        yield from self._rails()
        yield from self._facts()
        yield from self._not_read()
        for name, each in self.found.items():
            for finding, keys in each:
                if not self._is_common(keys):
                    yield _named(finding, (name,), f"host {name}: {finding.says}")

    def shared(self) -> Iterator[HostFinding]:
        """Yield the findings of most hosts of this kind once, of the first that has each."""
        seen: set[_Key] = set()
        for each in self.found.values():
            for finding, keys in each:
                if self._is_common(keys) and not seen >= set(keys):
                    seen |= set(keys)
                    hosts = tuple(
                        other
                        for other, theirs in self.found.items()
                        if any(set(keys) & set(one) for _, one in theirs)
                    )
                    says = f"{len(hosts)} of {len(self.hosts)} hosts: {finding.says}"
                    yield _named(finding, hosts, says)

    def _is_common(self, keys: Sequence[_Key]) -> bool:
        """Return whether most hosts have a finding: of those where it would be seen, if there are others."""
        among = {
            key: sum(key in self.keys[name] or _shows(key.device, host) for name, host in self.hosts.items())
            for key in keys
        }
        compared = [key for key in keys if among[key] > 1]
        return bool(compared) and all(2 * self.having[key] > among[key] for key in compared)

    def _counts(
        self, rule: Rule, word: str, devices: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[HostFinding]:
        """Find hosts that lack a device which most have, or have one which most lack."""
        if rule is NIC_COUNT:  # most captures do not show network cards
            devices = {name: each for name, each in devices.items() if each}
        having: dict[str, int] = {}
        for each in devices.values():
            for place in each:
                having[place] = having.get(place, 0) + 1
        usual = {place for place, count in having.items() if 2 * count > len(devices)}
        split = {place for place, count in having.items() if 2 * count == len(devices)}
        for name, each in devices.items():
            missing = [place for place in having if place in usual and place not in each]
            more = [place for place in each if place not in usual and place not in split]
            if not missing and not more:
                continue
            alike = sum(len(devices[other]) == len(usual) for other in devices if other != name)
            have = f", {_peers(alike, verb='have')} {len(usual)}" if alike else ""
            parts = [f"{word} at {place} is missing" for place in missing]
            parts += [f"{word} at {place} is extra" for place in more]
            says = f"{_counted(len(each), word)}{have} ({'; '.join(parts)})"
            yield _of((name,), rule, MACHINE, says, {"missing": missing, "extra": more})
        if split:
            counts = {name: len(each) for name, each in devices.items()}
            by_count = grouped((count, name) for name, count in counts.items())
            words = [f"{_counted(count, word)} on {_some(names)}" for count, names in by_count.items()]
            for place in sorted(split):
                lacking = [name for name, each in devices.items() if place not in each]
                words.append(f"{word} at {place} is missing on {_some(lacking)}")
            yield _split(list(devices), MACHINE, _several(words), {"counts": counts, "places": sorted(split)})

    def _rails(self) -> Iterator[HostFinding]:
        """Find hosts whose RDMA devices count the same cards in another order than most do."""
        rails = {name: devices for name, host in self.hosts.items() if (devices := rails_of(host.nics))}
        found = majority({name: tuple(devices) for name, devices in rails.items()})
        if found is None:
            return
        if found.common is None:
            if len({frozenset(order) for order in found.odd.values()}) == 1:
                orders = grouped((", ".join(order), name) for name, order in found.odd.items())
                words = [f"{order} on {_some(names)}" for order, names in orders.items()]
                says = f"cards in the order of their RDMA devices: {_several(words)}"
                yield _split(list(rails), MACHINE, says, {"orders": orders})
            return
        for name, order in found.odd.items():
            if {*order} != {*found.common}:  # cards are missing, or more
                continue
            words, evidence = [], {}
            for (place, device), usual in zip(rails[name].items(), found.common, strict=True):
                if place != usual:
                    words.append(f"{device} is the card at {place} ({usual} on {_peers(found.others)})")
                    evidence[device] = {"place": place, "peers": usual}
            subject = Subject.of_nics(self.hosts[name].nics[one["place"]].index for one in evidence.values())
            says = f"RDMA devices in another order: {_several(words)}"
            yield _of((name,), RAILS, subject, says, evidence)

    def _facts(self) -> Iterator[HostFinding]:
        """Find facts of single hosts that differ from most, and facts on which no majority agrees."""
        odd: dict[str, dict[Device, list[_Odd]]] = {}
        split: dict[Device, dict[str, dict[str, Known]]] = {}
        for path, known in self.by_path.items():
            if len(known) < 2:
                continue
            field = next(iter(known.values())).field
            found = majority({name: one.value for name, one in known.items()}, field.same)
            if found is None:
                continue
            if found.common is None:
                split.setdefault(next(iter(known.values())).device, {})[path] = known
                continue
            for name in found.odd:
                mine = odd.setdefault(name, {}).setdefault(known[name].device, [])
                mine.append(_Odd(known[name], found.common, found.others))
        for name in self.hosts:
            yield from self._differences(name, odd.get(name, {}))
        yield from self._splits(split)

    def _differences(self, name: str, odd: Mapping[Device, Sequence[_Odd]]) -> Iterator[HostFinding]:
        """Yield one finding for all devices of a kind that differ in the same facts."""
        groups = grouped(
            ((device.kind, tuple(one.words for one in each)), device) for device, each in odd.items()
        )
        for (_, words), devices in groups.items():
            subject, who = self._who(self.hosts[name], devices)
            evidence = {
                _path(device, one.known): {"value": one.known.value, "peers": one.common, "hosts": one.others}
                for device in devices
                for one in odd[device]
            }
            yield _of((name,), DIFFERS, subject, f"{who}: {_several(words)}", evidence)

    def _splits(self, split: Mapping[Device, Mapping[str, Mapping[str, Known]]]) -> Iterator[HostFinding]:
        groups = grouped(
            ((device.kind, tuple(map(_values_by_host, paths.values()))), device)
            for device, paths in split.items()
        )
        for (_, words), devices in groups.items():
            first = self.hosts[next(iter(self.hosts))]
            subject, who = self._who(first, devices)
            known = {path: each for device in devices for path, each in split[device].items()}
            hosts = [name for name in self.hosts if any(name in each for each in known.values())]
            evidence = {path: {name: one.value for name, one in each.items()} for path, each in known.items()}
            yield _split(hosts, subject, f"{who}: {_several(words)}", evidence)

    def _who(self, host: HostFacts, devices: Sequence[Device]) -> tuple[Subject, str]:
        """Return the subject for devices of one kind, by the numbers of this host, and their name."""
        kind, places = devices[0].kind, [device.place for device in devices]
        if kind == "gpus":
            numbers = [host.gpus[place].index for place in places if place in host.gpus]
            if numbers:
                return Subject.of_gpus(
                    numbers
                ), f"GPU{'s' if len(numbers) > 1 else ''} {index_ranges(numbers)}"
        if kind == "nics":
            nics = [host.nics[place] for place in places if place in host.nics]
            if nics:
                names = ", ".join(nic.name or nic.pci_address or str(nic.index) for nic in nics)
                return Subject.of_nics(nic.index for nic in nics), f"network card {names}"
        if kind == "links":
            pairs = [
                sorted(host.gpus[place].index for place in both.split(" ") if place in host.gpus)
                for both in places
            ]
            if len(pairs) == 1 and len(pairs[0]) == 2:
                return Subject.of_link(*pairs[0]), f"GPUs {pairs[0][0]} and {pairs[0][1]}"
            return MACHINE, f"{len(pairs)} pairs of GPUs"
        if kind == "pci":
            shown = ", ".join(places[:MAX_MESSAGES])
            more = f" and {len(places) - MAX_MESSAGES} more" if len(places) > MAX_MESSAGES else ""
            return MACHINE, f"PCI device{'s' if len(places) > 1 else ''} {shown}{more}"
        return (DRIVER if kind == "driver" else MACHINE), kind

    def _not_read(self) -> Iterator[HostFinding]:
        """Find hosts that lack facts which all their peers (two or more) have, of devices that they have."""
        count = len(self.hosts)
        if count < 3:
            return
        absent: dict[str, list[str]] = {name: [] for name in self.hosts}
        for path, known in self.by_path.items():
            if 2 * len(known) <= count or len(known) == count:
                continue
            device = next(iter(known.values())).device
            for name, host in self.hosts.items():
                if name not in known and _is_there(device, host):
                    absent[name].append(path)
        for name, paths in absent.items():
            if paths:
                words = list(dict.fromkeys(_fact_words(self.by_path[path]) for path in paths))
                some = ", ".join(words[:MAX_MESSAGES])
                more = ", ..." if len(words) > MAX_MESSAGES else ""
                says = f"{_counted(len(paths), 'fact')} not read that like hosts have ({some}{more})"
                yield _of((name,), NOT_READ, MACHINE, says, {"facts": paths})


def _reference(kind: Kind) -> Machine:
    """Return the machine whose GPUs are where most have theirs; of several, the one with the most."""
    machines = [host.machine for host in kind.hosts]
    places = grouped((tuple(gpu.pci_address for gpu in one.gpus), one) for one in machines)
    return max(places.items(), key=lambda one: (len(one[1]), len(one[0])))[1][0]


def _keys(finding: Finding, host: HostFacts) -> list[_Key]:
    """Return what makes a finding the same on another host, for each device that may have it by itself."""
    gpus = {gpu.index: place for place, gpu in host.gpus.items()}
    nics = {nic.index: place for place, nic in host.nics.items()}
    subject = finding.subject
    if subject.kind == "gpus":
        devices = [Device("gpus", gpus.get(gpu, str(gpu))) for gpu in subject.gpus]
    elif subject.kind == "nics":
        devices = [Device("nics", nics.get(nic, str(nic))) for nic in subject.nics]
    elif subject.kind == "link":
        devices = [Device("links", " ".join(sorted(gpus.get(gpu, str(gpu)) for gpu in subject.gpus)))]
    else:
        devices = [Device(subject.kind)]
    return [_Key(finding.id, finding.severity, device) for device in devices]


def _has(device: Device, host: HostFacts) -> bool:
    """Return whether a host has a device, lost or not."""
    if device.kind in ("gpus", "links"):
        return all(place in host.gpus for place in device.place.split(" "))
    return device.kind != "nics" or device.place in host.nics


def _shows(device: Device, host: HostFacts) -> bool:
    """Return whether findings about a device would be seen on a host: of GPUs where the driver answers."""
    if device.kind in ("gpus", "links"):
        return host.gpus_answer and _is_there(device, host)
    return _has(device, host)


def _is_there(device: Device, host: HostFacts) -> bool:
    if device.kind in ("gpus", "links"):
        return _has(device, host) and not any(host.gpus[place].lost for place in device.place.split(" "))
    if device.kind == "nics":
        return _has(device, host)
    return device.kind != "pci" or any(other.device == device for other in host.facts.values())


def _values_by_host(known: Mapping[str, Known]) -> str:
    first = next(iter(known.values()))
    hosts = grouped((one.field.value_in_words(one.value), name) for name, one in known.items())
    values = "; ".join(f"{value} on {_some(names)}" for value, names in hosts.items())
    return f"{_name(first)} {values}"


def _some(names: Sequence[str]) -> str:
    return (
        ", ".join(names)
        if len(names) <= MAX_MESSAGES
        else f"{', '.join(names[: MAX_MESSAGES - 1])} and {len(names) - MAX_MESSAGES + 1} more"
    )


def _name(known: Known) -> str:
    return path_in_words(GROUPS[known.device.kind], known.fact)


def _fact_words(known: Mapping[str, Known]) -> str:
    first = next(iter(known.values()))
    return f"{first.device.kind.removesuffix('s')} {_name(first)}"


def _path(device: Device, known: Known) -> str:
    return f"{device.kind}[{device.place}].{known.fact}" if device.place else f"{device.kind}.{known.fact}"


def _several(words: Sequence[str]) -> str:
    more = len(words) - MAX_MESSAGES
    return "; ".join(words[:MAX_MESSAGES]) + (f"; and {_counted(more, 'more fact')}" if more > 0 else "")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _peers(count: int, *, verb: str = "") -> str:
    """Return `its 5 peers`, with a verb `its 5 peers have`."""
    if not verb:
        return f"its {count} peers" if count > 1 else "its peer"
    return f"its {count} peers {verb}" if count > 1 else "its peer has"


def _of(
    hosts: tuple[str, ...], rule: Rule, subject: Subject, says: str, evidence: dict[str, Any]
) -> HostFinding:
    return _named(rule.finding(subject, says, evidence), hosts, f"host {hosts[0]}: {says}")


def _split(hosts: Sequence[str], subject: Subject, says: str, evidence: dict[str, Any]) -> HostFinding:
    return _named(SPLIT.finding(subject, says, evidence), tuple(hosts), f"hosts differ: {says}")


def _named(finding: Finding, hosts: tuple[str, ...], says: str) -> HostFinding:
    facts = msgspec.structs.asdict(finding)
    return HostFinding(**{**facts, "says": says}, hosts=hosts)


def _worst_first(findings: Iterable[HostFinding]) -> tuple[HostFinding, ...]:
    return tuple(one for one in worst_first(findings) if isinstance(one, HostFinding))
