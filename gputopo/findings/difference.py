"""The differences between two readings of one machine, or of two machines, in facts and findings.

Only facts in both readings are compared. Facts that change every second (present clocks, power, temperature,
load) are ignored. For a counter, only a rise is a change.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gputopo.findings.checks import find
from gputopo.findings.rule import named
from gputopo.reference import under_load
from gputopo.topology import without_identities
from gputopo.values.difference import NOT_COMPARED, Change, Difference, FindingChanges
from gputopo.values.facts import at_gpu, at_link, at_nic, at_pci, single_facts, within
from gputopo.values.fields import Field, field_at, same_address
from gputopo.values.finding import Finding
from gputopo.values.grouping import maxima
from gputopo.values.machine import Driver, Gpu, Link, Machine, Nic, PciNode

Device = TypeVar("Device", Gpu, Nic)


def machine_difference(old: Machine, new: Machine) -> Difference:
    """Compare two readings of a machine. GPUs are matched by UUID, or by PCI address, or by index."""
    comparing = _Comparing()
    pairs = paired_gpus(old, new)
    comparing.structs("driver", "driver", *drivers(old.driver, new.driver))
    comparing.structs("host", "host", old.host, new.host)
    comparing.gpus(pairs, old, new)
    comparing.links(pairs, old, new)
    comparing.nics(old.nics, new.nics)
    comparing.bridges(old.pci, new.pci)
    return Difference(
        old_source=old.source,
        new_source=new.source,
        changes=tuple(comparing.changes),
        compared=comparing.compared,
        one_sided=comparing.one_sided,
        findings=_finding_changes(old, new, {was.index: now.index for was, now in pairs}),
    )


def _finding_changes(old: Machine, new: Machine, gpus: Mapping[int, int]) -> FindingChanges:
    """Compare the findings of two readings, without identities. `gpus`: the new indices of the old GPUs."""
    before, after = find(without_identities(old)), find(without_identities(new))

    was = maxima((key, finding.rank) for finding in before for key in finding_keys(finding, gpus))
    now = {key for finding in after for key in finding_keys(finding)}
    stayed = [
        finding for finding in after if all(finding.rank <= was.get(key, -1) for key in finding_keys(finding))
    ]
    return FindingChanges(
        came=tuple(finding for finding in after if finding not in stayed),
        went=tuple(finding for finding in before if not {*finding_keys(finding, gpus)} <= now),
        stayed=tuple(stayed),
    )


def finding_keys(finding: Finding, gpus: Mapping[int, int] | None = None) -> list[tuple[str, str]]:
    """Return the id and subject of a finding, for each GPU if a GPU can have it without the others.

    `gpus`: the new indices of the old GPUs. A GPU that is not in it keeps a separate key.
    """
    if finding.subject.kind != "gpus":
        return [(finding.id, finding.subject.text)]
    indices = [gpu if gpus is None else gpus.get(gpu, -1 - gpu) for gpu in finding.subject.gpus]
    return [(finding.id, f"gpu:{index}") for index in indices]


def paired_gpus(old: Machine, new: Machine) -> list[tuple[Gpu, Gpu]]:
    """Pair the GPUs of two readings by UUID, or by PCI address, or by index."""

    def same_card(was: Gpu, now: Gpu) -> bool:
        return was.uuid is not None and was.uuid == now.uuid

    return _paired(old.gpus, new.gpus, (same_card, _same_slot, _same_number))


def compared_facts(value: msgspec.Struct) -> Iterator[tuple[str, Field, Any]]:
    """Yield path, declaration and value of each compared fact, without facts that change every second."""
    kind = type(value)
    for fact, fact_value in single_facts(value):
        field = _compared_field(kind, fact)
        if field is not None:
            yield fact, field, fact_value


@functools.lru_cache(maxsize=8192)
def _compared_field(kind: type[msgspec.Struct], fact: str) -> Field | None:
    field = field_at(kind, fact)
    left_out = field.stability == "volatile" or field.path in NOT_COMPARED.get(kind, frozenset())
    return None if left_out else field


class _Comparing:
    """One comparison: the differences so far, and how many facts were compared."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.compared = 0
        self.one_sided = 0

    def gpus(self, pairs: Sequence[tuple[Gpu, Gpu]], old: Machine, new: Machine) -> None:
        if new.gpus or new.driver.status in ("ok", "no_device"):
            for gpu in _alone(old.gpus, (was for was, _ in pairs)):
                self._report(at_gpu(gpu.index), named(gpu), None, f"{named(gpu)} is missing")
        if old.gpus or old.driver.status in ("ok", "no_device"):
            for gpu in _alone(new.gpus, (now for _, now in pairs)):
                self._report(at_gpu(gpu.index), None, named(gpu), f"{named(gpu)} is only here")
        for was, now in pairs:
            self._gpu(was, now)

    def _gpu(self, was: Gpu, now: Gpu) -> None:
        path, subject = at_gpu(now.index), f"GPU {now.index}"
        if was.index != now.index:
            says = f"{subject} is GPU {was.index} there: the GPUs have different numbers"
            self._report(within(path, "index"), was.index, now.index, says)
        if was.uuid and now.uuid and was.uuid != now.uuid:
            self._report(within(path, "uuid"), None, None, f"{subject} is another card")
        if was.lost != now.lost:
            state = (
                "is lost: the driver counts it, but it does not answer"
                if now.lost
                else "answers, and is lost there"
            )
            self._report(within(path, "lost"), was.lost, now.lost, f"{subject} {state}")
        if not (under_load(was) and under_load(now)):
            # An idle GPU lowers its link: only two readings under load can be compared.
            was, now = without_generation(was), without_generation(now)
        self.structs(path, subject, was, now)

    def links(self, pairs: Iterable[tuple[Gpu, Gpu]], old: Machine, new: Machine) -> None:
        number = {was.index: now.index for was, now in pairs}
        before: dict[tuple[int, int], Link] = {}
        for link in old.links:
            if link.a in number and link.b in number:
                a, b = sorted((number[link.a], number[link.b]))
                before[a, b] = msgspec.structs.replace(link, a=a, b=b)
        for link in new.links:
            was = before.get((link.a, link.b))
            if was is not None:
                self.structs(at_link(link.a, link.b), f"GPUs {link.a} and {link.b}", was, link)

    def nics(self, old: tuple[Nic, ...], new: tuple[Nic, ...]) -> None:
        if not old or not new:  # most captures do not show network cards
            return
        # By slot and name first, because one slot may have several ports.
        tests = (lambda was, now: _same_slot(was, now) and _same_name(was, now), _same_slot, _same_name)
        pairs = _paired(old, new, tests)
        for was, now in pairs:
            self.structs(at_nic(now.index), f"network card {_nic_name(now)}", was, now)
        for nic in _alone(old, (was for was, _ in pairs)):
            name = _nic_name(nic)
            self._report(at_nic(nic.index), name, None, f"network card {name} is missing")
        for nic in _alone(new, (now for _, now in pairs)):
            name = _nic_name(nic)
            self._report(at_nic(nic.index), None, name, f"network card {name} is only here")

    def bridges(self, old: tuple[PciNode, ...], new: tuple[PciNode, ...]) -> None:
        before = {node.address: node for node in old}
        for node in new:
            was = before.get(node.address)
            if was is not None and was.kind == node.kind:
                self.structs(at_pci(node.address), f"PCI device {node.address}", was, node)

    def structs(self, path: str, subject: str, was: msgspec.Struct, now: msgspec.Struct) -> None:
        """Compare all facts of two values of one type, and of their nested values."""
        before = {fact: value for fact, _, value in compared_facts(was)}
        after = {fact: value for fact, _, value in compared_facts(now)}
        for fact in dict.fromkeys([*before, *after]):
            field = field_at(type(now), fact)
            self._fact(within(path, fact), field, subject, before.get(fact), after.get(fact))

    def _fact(self, path: str, field: Field, subject: str, was: Any, now: Any) -> None:
        known = [field.is_known(value) for value in (was, now)]
        if not all(known):
            self.one_sided += any(known)
            return
        self.compared += 1
        if now > was if field.counter else not field.same(was, now):
            words = Change(fact=path, was=was, is_=now, says="").words
            self._report(path, was, now, f"{subject}: {words}")

    def _report(self, fact: str, was: Any, now: Any, says: str) -> None:
        self.changes.append(Change(fact=fact, was=was, is_=now, says=says))


def _paired(
    old: Sequence[Device], new: Sequence[Device], tests: Sequence[Callable[[Device, Device], bool]]
) -> list[tuple[Device, Device]]:
    """Pair the devices of two machines, the most certain test first. Each device is in at most one pair."""
    pairs: list[tuple[Device, Device]] = []
    left, open_ = list(old), list(new)
    for is_same in tests:
        for now in list(open_):
            was = next((device for device in left if is_same(device, now)), None)
            if was is not None:
                pairs.append((was, now))
                left = [device for device in left if device is not was]
                open_ = [device for device in open_ if device is not now]
    return sorted(pairs, key=lambda pair: pair[1].index)


def _alone(devices: Sequence[Device], paired: Iterable[Device]) -> list[Device]:
    """Return the devices that are in no pair."""
    ids = set(map(id, paired))
    return [device for device in devices if id(device) not in ids]


def _same_slot(was: Gpu | Nic, now: Gpu | Nic) -> bool:
    return bool(was.pci_address and now.pci_address and same_address(was.pci_address, now.pci_address))


def _same_number(was: Gpu | Nic, now: Gpu | Nic) -> bool:
    """Compare the index only if a slot is unknown: two known slots that differ are two GPUs."""
    return was.index == now.index and not (was.pci_address and now.pci_address)


def drivers(*all_: Driver) -> tuple[Driver, ...]:
    """Remove facts that depend on the driver's version, if all versions are known: report one change once."""
    if any(driver.version is None for driver in all_):
        return all_
    rest = {"nvml_version": None, "kernel_module_version": None}
    return tuple(msgspec.structs.replace(driver, **rest) for driver in all_)


def _same_name(was: Nic, now: Nic) -> bool:
    """Compare the name, or the number if neither slot nor name is known for both."""
    both = was.name is not None and now.name is not None
    return was.name == now.name if both else _same_number(was, now)


def _nic_name(nic: Nic) -> str:
    return nic.name or nic.pci_address or str(nic.index)


def without_generation(gpu: Gpu) -> Gpu:
    """Return a GPU without the present generation of its link, which is lower while the GPU is idle."""
    return msgspec.structs.replace(gpu, pcie=msgspec.structs.replace(gpu.pcie, gen_now=None))
