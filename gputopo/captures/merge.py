"""Several captures of one machine become one Machine.

The first one given wins; what it lacks is filled from the later ones; where they disagree it is
reported in `contradictions`. Readings that change from second to second (power draw, temperatures, clocks
now, ...) come from the first that has them and are never called a contradiction. A value with a
reservation in its source's `missing` ("only a part of the reasons is reported") yields to another's without.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from gputopo.captures.other_driver import without_gpus_of_other_drivers
from gputopo.topology.matching import aligned, cuda_order, first_with_gpus
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.fact_path import FactPath, item, key_of, key_text, values_at, within
from gputopo.values.fields import field_at
from gputopo.values.machine import Contradiction, Gpu, Hop, Machine

_EMPTY_IS_KNOWN = "throttle.reasons"  # empty: not throttled; other empty lists are lists of nothing known
_ONE_READING = "throttle"  # its mask and its reasons are of the same time and report the same
# NCCL leaves root ports and downstream ports out of its tree, has the minimum of device and slot, and writes
# PHB for host bridges that it does not distinguish: any other source knows better.
_VAGUE_SOURCE = "nccl xml"
_VAGUE = frozenset({"root", "parent", "kind", "max_speed_gt_per_s", "max_width"})

Reports = Sequence[tuple[str, Any]]  # a fact's value by source


def merge(machines: Sequence[Machine]) -> Machine:
    """Merge captures of one machine, the most trusted first. Equal ones count once; one alone is unchanged.

    GPUs are matched by UUID or PCI address where both sides have it, else by index. Raises ValueError if
    there is no machine.
    """
    distinct: list[Machine] = []
    for machine in without_gpus_of_other_drivers(machines):
        if machine not in distinct:
            distinct.append(machine)
    if not distinct:
        raise ValueError("there is no machine to merge")
    return distinct[0] if len(distinct) == 1 else _Merge(distinct).machine()


def _names(machines: Sequence[Machine]) -> list[str]:
    """Name each source, the second of one kind `nvidia-smi topo (2)`."""
    names: list[str] = []
    for position, machine in enumerate(machines):
        same = sum(1 for earlier in machines[:position] if earlier.source == machine.source)
        names.append(f"{machine.source} ({same + 1})" if same else machine.source)
    return names


class _Merge:
    """One merging: the captures, renumbered as the first one is, and the contradictions found."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.names = _names(machines)
        self.found: dict[str, dict[str, str]] = {}
        self.machines: list[Machine] = []
        leader = first_with_gpus(machines)
        cuda = cuda_order(leader, machines) if leader is not None else {}
        for name, machine in zip(self.names, machines, strict=True):
            if leader is None or machine is leader or not (machine.gpus or machine.nics):
                self.machines.append(machine)
                continue
            fitted, disagreements = aligned(leader, machine, cuda)
            self.machines.append(fitted)
            for said in disagreements:
                first = self.names[machines.index(leader)]
                self.found.setdefault(said.fact, {first: said.first})[name] = said.other
        self.reserved = {
            name: frozenset(fact for fact in machine.missing if _is_filled(machine, fact))
            for name, machine in zip(self.names, self.machines, strict=True)
        }

    def machine(self) -> Machine:
        """Return the merged machine."""
        sections = ("host", "driver", "gpus", "links", "nics", "pci")
        facts = {
            section: self._fact(
                section, [(n, getattr(m, section)) for n, m in zip(self.names, self.machines, strict=True)]
            )
            for section in sections
        }
        merged = Machine(
            source=" + ".join(self.names),
            **facts,
            bandwidth=_bandwidth([m.bandwidth for m in self.machines if m.bandwidth is not None]),
            unread=tuple(dict.fromkeys(unread for m in self.machines for unread in m.unread)),
        )
        earlier = [c for m in self.machines for c in m.contradictions]
        new = [Contradiction(fact=fact, said=said) for fact, said in self.found.items()]
        return msgspec.structs.replace(
            merged,
            missing=self._missing(merged),
            contradictions=(*earlier, *(c for c in new if c not in earlier)),
        )

    def _fact(self, path: str, reports: Reports) -> Any:
        """Return the first known value of a fact; note where a later one differs."""
        field = field_at(Machine, path)
        known = [(name, value) for name, value in reports if field.is_known(value)]
        if not known:
            return reports[0][1]
        first = known[0][1]
        may_differ = field.stability in ("state", "volatile")
        if any(_is_list(value) for _, value in known) and not may_differ:
            return self._each(path, known)
        if path.endswith(f".{_ONE_READING}"):
            reported = [one for one in known if one[1] != type(one[1])()] or known
            whole = [one for one in reported if within(path, "reasons") not in self.reserved[one[0]]]
            return (whole or reported)[0][1]
        if isinstance(first, msgspec.Struct):
            fields = first.__struct_fields__
            return type(first)(
                **{f: self._fact(within(path, f), [(n, getattr(v, f)) for n, v in known]) for f in fields}
            )
        if isinstance(first, dict):
            keys = dict.fromkeys(key for _, value in known for key in value)
            return {k: self._fact(within(path, k), [(n, v[k]) for n, v in known if k in v]) for k in keys}
        exact = [one for one in known if not self._is_vague(*one, path)] or known
        first = exact[0][1]
        if not may_differ and not all(field.same(first, value) for _, value in exact[1:]):
            self.found[path] = {name: _shown(value) for name, value in exact}
        return first

    def _each(self, path: str, reports: Reports) -> tuple[Any, ...]:
        """Merge lists of devices: each device of any list once, its facts from all that have it."""
        lists = [(name, {key_of(value): value for value in values}) for name, values in reports]
        return tuple(
            self._fact(item(path, key_text(k)), [(name, values[k]) for name, values in lists if k in values])
            for k in sorted({k for _, values in lists for k in values})
        )

    def _missing(self, merged: Machine) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for machine in self.machines:
            for fact, reason in machine.missing.items():
                if fact not in reasons and (not _is_filled(merged, fact) or self._only_with_reserve(fact)):
                    reasons[fact] = reason
        return reasons

    def _only_with_reserve(self, fact: str) -> bool:
        """Return whether every source that has a fact has a reservation about it."""
        captures = zip(self.names, self.machines, strict=True)
        sources = [name for name, machine in captures if _is_filled(machine, fact)]
        return bool(sources) and all(fact in self.reserved[name] for name in sources)

    def _is_vague(self, source: str, value: Any, path: str) -> bool:
        if path in self.reserved[source]:
            return True
        if not source.startswith(_VAGUE_SOURCE):
            return False
        at = FactPath.parse(path)
        return value is Hop.PHB or (at.group == "pci" and at.fact in _VAGUE)


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], msgspec.Struct)


def _shown(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _bandwidth(measured: Sequence[Bandwidth]) -> Bandwidth | None:
    """Join measurements: the lists of all, and every other fact from the first that knows it."""
    if len(measured) < 2:
        return measured[0] if measured else None
    lists = ("samples", "failures", "not_measured", "uplink_groups", "notes")
    joined: dict[str, Any] = {name: _joined([getattr(one, name) for one in measured]) for name in lists}
    single = ("level", "measured_at", "duration_s", "driver_version", "cuda_version")
    for name in single:
        joined[name] = next((v for one in measured if (v := getattr(one, name)) is not None), None)
    return Bandwidth(
        source=" + ".join(dict.fromkeys(one.source for one in measured)),
        complete=all(one.complete for one in measured),
        **joined,
    )


def _joined(lists: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Join lists, those values left out that an earlier one has; what one list has twice stays twice."""
    joined: list[Any] = []
    for values in lists:
        known = list(joined)
        joined += [value for value in values if value not in known]
    return tuple(joined)


def _is_filled(machine: Machine, fact: str) -> bool:
    """Return whether a fact such as `gpus[0].pcie.gen_now` or `links[*].hop` is known of all it names."""
    values = values_at(machine, fact)
    return bool(values) and all(_is_known(fact, value) for value in values)


def _is_known(path: str, value: Any) -> bool:
    if isinstance(value, Gpu):
        return not value.lost
    if isinstance(value, msgspec.Struct) and not any(f.required for f in msgspec.structs.fields(value)):
        return bool(value != type(value)())
    return field_at(Machine, path).is_known(value) and (value != () or path.endswith(_EMPTY_IS_KNOWN))
