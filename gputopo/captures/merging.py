"""Several captures of one machine become one Machine, in whatever order they are given.

The most trusted capture wins; facts that it does not have come from the others; disagreements are listed in
`contradictions`. Facts that change by themselves (power draw, clocks now, error counts, ...) are never a
contradiction: captures that agree on them are one sample, others are separate samples, and no sample mixes
two times. A value with a reservation in its source's `missing` ("only a part of the reasons is reported") is
replaced by another source's value without one.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from gputopo.captures.matching import aligned, cuda_order, first_with_gpus, without_gpus_of_other_drivers
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.facts import FactPath, at_gpu, item, key_of, key_text, values_at, within
from gputopo.values.fields import field_at
from gputopo.values.machine import Contradiction, Gpu, Hop, Machine, Sample
from gputopo.values.samples import (
    OF_LOAD,
    PASSING,
    at_samples,
    facts_of,
    of_sample,
    same,
    seconds,
    without_settings,
)

_REASONS = "throttle.reasons"  # empty: not throttled; other empty lists mean that nothing is known
_ONE_READING = "throttle"  # its mask and its reasons are from the same time and have the same content
# NCCL omits root ports and downstream ports from its tree, reports the minimum of device and slot, and writes
# PHB for host bridges that it does not distinguish: any other source is more exact.
_VAGUE_SOURCES = ("nccl xml", "nccl log")
_VAGUE = frozenset({"root", "parent", "kind", "max_speed_gt_per_s", "max_width"})
# Sources, the most trusted about GPUs and their numbers first, by the start of their names; "": any other.
_TRUST = (
    "live",
    "nvidia-smi -q",
    "nvidia-smi",
    "",
    "tensorflow log",
    "bandwidthTest",
    "nvbandwidth",
    "nccl-tests",
    "p2pBandwidthLatencyTest",
    *_VAGUE_SOURCES,
)
_NUMBER = re.compile(r" \(\d+\)$")
_MAX_NAMED = 4  # sources of one kind that are listed by name
_MAX_SAID = 8  # sources that a contradiction lists
_STATUS = "driver.status"
_JOINED = ".nvlinks"  # `nvlink -s` has the speed of a link, `nvlink -e` its errors
_MAX_GAP_S = 60.0  # between commands of one sample. Not measured; chosen because they usually run in sequence
_MAX_COMPARED = 64  # captures compared in pairs; more are a loop. Not measured; chosen to limit the work

Reports = Sequence[tuple[str, Any]]  # values of a fact by source


def merge(machines: Sequence[Machine], files: Sequence[str] | None = None) -> Machine:
    """Merge captures of one machine. Equal captures count once; a single capture is unchanged.

    GPUs are matched by UUID or PCI address if both captures have it, else by index. `files`: the captures'
    names in messages; the default is their formats. Raises ValueError if there is no machine.
    """
    if not machines:
        raise ValueError("there is no machine to merge")
    names: Sequence[str | None] = [None] * len(machines) if files is None else files
    given: dict[bytes, tuple[Machine, str | None]] = {}
    for machine, name in zip(without_gpus_of_other_drivers(machines), names, strict=True):
        given.setdefault(_content(machine), (machine, name))
    counts = [of for machine in machines for of in machine.lines]
    lines = tuple(sorted(counts, key=lambda of: (of.source, of.read, of.known, of.not_understood)))
    if len(given) == 1:
        only, _ = next(iter(given.values()))
        return only if only.lines == lines else replace(only, lines=lines)
    parts = {
        _content(part): (part, name) for machine, name in given.values() for part in _taken_apart(machine)
    }
    in_order = sorted(parts, key=lambda content: _rank(parts[content][0], content))
    sources = sorted(given, key=lambda content: _rank(given[content][0], content))
    kinds = _joined_names((given[source][0].source for source in sources), are_numbered=files is None)
    merged = _Merge(
        without_gpus_of_other_drivers([parts[content][0] for content in in_order]),
        [parts[content][1] for content in in_order],
        kinds,
    ).machine()
    return replace(merged, lines=lines)


def _content(machine: Machine) -> bytes:
    return schema.encode(replace(machine, lines=()))


def _taken_apart(machine: Machine) -> list[Machine]:
    """Return a machine for each sample, named like the sample; facts outside samples are in the first."""
    if len(machine.samples) < 2:
        return [machine]
    first, *others = (
        replace(sample, source=_NUMBER.sub("", sample.samples[0].source)) for sample in at_samples(machine)
    )
    return [first, *(Machine(source=o.source, gpus=o.gpus, samples=o.samples) for o in others)]


def _rank(machine: Machine, content: bytes) -> tuple[Any, ...]:
    """Return the sort key of a capture: by trust, source and time, then by content, the longest first."""
    trust = max((len(start), place) for place, start in enumerate(_TRUST) if machine.source.startswith(start))
    return trust[1], machine.source, _time(machine) or "", -len(content), content


def _time(machine: Machine) -> str | None:
    return machine.samples[0].time if machine.samples else None


def _names(names: Sequence[str]) -> list[str]:
    """Return a unique name for each capture, such as `nvidia-smi topo (2)` for the second with one name."""
    seen: Counter[str] = Counter()
    unique: list[str] = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return unique


def _joined_names(sources: Iterable[str], *, are_numbered: bool) -> str:
    """Return the names of all sources, joined by " + "; many sources of one kind are counted."""
    counts = Counter(_NUMBER.sub("", name) for source in sources for name in source.split(" + "))
    names = []
    for name, count in counts.items():
        if not are_numbered:
            names.append(name)
        elif count > _MAX_NAMED:
            names.append(f"{name} (1 to {count})")
        else:
            names += [f"{name} ({number})" if number > 1 else name for number in range(1, count + 1)]
    return " + ".join(names)


class _Merge:
    """One merge: the captures, renumbered like the first one, and the contradictions found."""

    def __init__(self, machines: Sequence[Machine], files: Sequence[str | None], source: str) -> None:
        self.source = source
        self.names = _names([file or machine.source for file, machine in zip(files, machines, strict=True)])
        self.kinds = dict(zip(self.names, _names([machine.source for machine in machines]), strict=True))
        self.said: dict[str, dict[str, str]] = {}
        self.machines: list[Machine] = []
        leader = first_with_gpus(machines)
        alike = [machine for machine in machines if leader is not None and machine.source == leader.source]
        leader = max(alike, key=lambda machine: len(machine.gpus), default=leader)
        cuda = cuda_order(leader, machines) if leader is not None else {}
        nics = next((machine.nics for machine in machines if machine.nics), ())
        numbered = leader and (leader if leader.nics else replace(leader, nics=nics))
        for name, machine in zip(self.names, machines, strict=True):
            if leader is None or numbered is None or machine is leader or not (machine.gpus or machine.nics):
                self.machines.append(machine)
                continue
            fitted, disagreements = aligned(numbered, machine, cuda)
            if gone := _gone(leader, machine, fitted):
                listed = f"listed at {_time(leader)}, not listed at {_time(machine)}"
                gpus = sorted(
                    (*fitted.gpus, *(Gpu(index=index, lost=True) for index in gone)),
                    key=lambda gpu: gpu.index,
                )
                reasons = {at_gpu(index): listed for index in gone}
                fitted = replace(fitted, gpus=tuple(gpus), missing=fitted.missing | reasons)
                disagreements = [said for said in disagreements if said.fact != "gpus"]
            self.machines.append(fitted)
            for said in disagreements:
                first = self.names[machines.index(leader)]
                self.said.setdefault(said.fact, {first: said.first})[name] = said.other
        self.captures = [*zip(self.names, self.machines, strict=True)]
        self.reserved = {
            name: frozenset(fact for fact in machine.missing if _is_filled(machine, fact))
            for name, machine in self.captures
        }
        self.sample: Collection[str] = self.names  # captures of the sample whose facts are used

    def machine(self) -> Machine:
        """Return the merged machine. Facts that change are from the last sample by time, else the first."""
        groups = self._groups()
        samples = [self._sample(group) for group in groups]
        if samples:
            doubts = [sum(len(self.reserved[self.names[place]]) for place in group) for group in groups]
            last = max(range(len(samples)), key=lambda n: (samples[n].time or "", -doubts[n], -n))
            self.sample = frozenset(self.names[place] for place in groups[last])
        merged = self._merged()
        if len(samples) > 1:
            lasting = {gpu.index: facts_of(gpu) for gpu in merged.gpus}
            samples = [
                without_settings(sample, lasting)
                for sample in sorted(samples, key=lambda sample: sample.time or "")
            ]
        else:
            samples = [
                Sample(source=sample.source, time=sample.time)
                for sample in samples
                if sample.time is not None
            ]
        return replace(merged, samples=tuple(samples))

    def _merged(self) -> Machine:
        sections = ("host", "driver", "gpus", "links", "nics", "pci")
        facts = {
            section: self._fact(section, [(name, getattr(part, section)) for name, part in self.captures])
            for section in sections
        }
        histories = sorted(
            (history for m in self.machines for history in m.series), key=lambda history: -history.samples
        )
        longest = {history.gpu: history for history in reversed(histories)}
        merged = Machine(
            source=self.source,
            **facts,
            bandwidth=joined_bandwidth([m.bandwidth for m in self.machines if m.bandwidth is not None]),
            unread=tuple(dict.fromkeys(unread for m in self.machines for unread in m.unread)),
            gaps=tuple(dict.fromkeys(gap for m in self.machines for gap in m.gaps)),
            kernel_events=tuple(dict.fromkeys(event for m in self.machines for event in m.kernel_events)),
            nccl=next((m.nccl for m in self.machines if m.nccl is not None), None),
            series=tuple(longest[gpu] for gpu in sorted(longest)),
        )
        earlier = {c.fact: c for m in self.machines for c in m.contradictions}
        new = {fact: Contradiction(fact=fact, said=_in_short(said)) for fact, said in self.said.items()}
        missing: dict[str, str] = {}
        for _, machine in sorted(self.captures, key=lambda capture: capture[0] not in self.sample):
            for fact, reason in machine.missing.items():
                if fact not in missing and (not _is_filled(merged, fact) or self._only_with_reserve(fact)):
                    missing[fact] = reason
        return replace(merged, missing=missing, contradictions=tuple((earlier | new).values()))

    def _groups(self) -> list[list[int]]:
        """Return the captures of each sample, by place; they all disagree with the same other captures.

        A capture without facts about the load that disagrees with none (states of NVLinks) is in each sample.
        """
        # A list of some of the throttle reasons can be compared with no other.
        facts = [
            {
                (gpu.index, path): value
                for gpu in machine.gpus
                for path, value in of_sample(facts_of(gpu)).items()
                if path != _REASONS or at_gpu(gpu.index, path) not in machine.missing
            }
            for machine in self.machines
        ]
        times = [seconds(_time(machine)) for machine in self.machines]
        places = [place for place, known in enumerate(facts) if known]
        if len(places) > _MAX_COMPARED:
            return [[place] for place in places]

        def others(place: int) -> frozenset[int]:
            return frozenset(
                at
                for at in places
                if abs((times[place] or times[at] or 0.0) - (times[at] or times[place] or 0.0)) > _MAX_GAP_S
                or any(
                    not same(key[1], facts[place][key], facts[at][key])
                    for key in facts[place].keys() & facts[at].keys()
                )
            )

        groups: dict[frozenset[int], list[int]] = {}
        everywhere: list[int] = []
        for place in places:
            differing = others(place)
            of_load = any(path in OF_LOAD for _, path in facts[place])
            (groups.setdefault(differing, []) if of_load or differing else everywhere).append(place)
        return [
            sorted([*group, *everywhere]) for group in groups.values() or ([everywhere] if everywhere else [])
        ]

    def _sample(self, group: Sequence[int]) -> Sample:
        """Return the sample of these captures, with all their settings."""
        self.sample = frozenset(self.names[place] for place in group)
        gpus = self._fact("gpus", [(self.names[place], self.machines[place].gpus) for place in group])
        times = [time for place in group if (time := _time(self.machines[place])) is not None]
        return Sample(
            source=" + ".join(self.kinds[self.names[place]] for place in group),
            time=max(times, default=None),
            gpus=tuple({"index": gpu.index} | of_sample(facts_of(gpu)) for gpu in gpus),
        )

    def _fact(self, path: str, reports: Reports) -> Any:
        """Return the first known value of a fact; note a contradiction if a later value differs."""
        field = field_at(Machine, path)
        passes = field.stability in ("state", "volatile") or field.counter
        if passes and path.startswith("gpus["):
            of_sample = [report for report in reports if report[0] in self.sample]
            if not of_sample:
                return type(reports[0][1])() if isinstance(reports[0][1], Struct) else field.default
            reports = of_sample
        known = [(name, value) for name, value in reports if field.is_known(value)]
        if path == _STATUS:  # an error wins, also over an output of nvidia-smi without one
            known = [report for report in known if report[1] != "ok"][:1] or known
        if not known:
            return reports[0][1]
        first = known[0][1]
        is_list = any(
            isinstance(value, tuple) and isinstance(next(iter(value), 0), Struct) for _, value in known
        )
        if is_list and (not passes or path.endswith(_JOINED)):
            # Each device is listed once, with its facts from all lists that have it.
            lists = [(name, {key_of(value): value for value in values}) for name, values in known]
            return tuple(
                self._fact(
                    item(path, key_text(k)), [(name, values[k]) for name, values in lists if k in values]
                )
                for k in sorted({k for _, values in lists for k in values})
            )
        if path.endswith(f".{_ONE_READING}"):
            reported = [report for report in known if report[1] != type(report[1])()] or known
            whole = [report for report in reported if within(path, "reasons") not in self.reserved[report[0]]]
            return (whole or reported)[0][1]
        if isinstance(first, Struct):
            return type(first)(
                **{
                    f: self._fact(within(path, f), [(n, getattr(v, f)) for n, v in known])
                    for f in first.__struct_fields__
                }
            )
        if isinstance(first, dict):
            keys = dict.fromkeys(key for _, value in known for key in value)
            return {k: self._fact(within(path, k), [(n, v[k]) for n, v in known if k in v]) for k in keys}
        exact = [report for report in known if not self._is_vague(*report, path)] or known
        first = exact[0][1]
        if field.counter and isinstance(first, int):
            return max(value for _, value in exact)
        if not passes and not all(field.same(first, value) for _, value in exact[1:]):
            self.said[path] = {
                name: str(value.value if isinstance(value, Enum) else value) for name, value in exact
            }
        return first

    def _only_with_reserve(self, fact: str) -> bool:
        """Return whether every source of a fact (in the sample, if it changes) has a reservation about it."""
        passes = FactPath.parse(fact).fact in PASSING
        sources = [
            name
            for name, machine in self.captures
            if _is_filled(machine, fact) and (name in self.sample or not passes)
        ]
        return bool(sources) and all(fact in self.reserved[name] for name in sources)

    def _is_vague(self, name: str, value: Any, path: str) -> bool:
        if path in self.reserved[name]:
            return True
        at, source = FactPath.parse(path), self.kinds[name]
        if (
            source.startswith("lspci") and at.group == "gpus"
        ):  # link capabilities in lspci change with power saving
            return at.fact.startswith("pcie.") or at.fact == "name"
        if not source.startswith(_VAGUE_SOURCES):
            return False
        return value is Hop.PHB or (at.group == "pci" and at.fact in _VAGUE)


def _gone(leader: Machine, machine: Machine, fitted: Machine) -> list[int]:
    """Return the GPUs, known by identity, that NVML counted at one time but not at another."""
    counted = leader.driver.status == machine.driver.status == "ok"
    if not counted or None in (_time(leader), _time(machine)) or len(fitted.gpus) < len(machine.gpus):
        return []
    known = all(gpu.uuid or gpu.pci_address for gpu in (*leader.gpus, *machine.gpus))
    return sorted({gpu.index for gpu in leader.gpus} - {gpu.index for gpu in fitted.gpus}) if known else []


def _in_short(said: Mapping[str, str]) -> dict[str, str]:
    """Return what sources say; if there are many, only the first source of each value."""
    if len(said) <= _MAX_SAID:
        return dict(said)
    firsts = {words: name for name, words in reversed([*said.items()])}
    return {name: words for name, words in said.items() if firsts[words] == name}


def joined_bandwidth(measured: Sequence[Bandwidth]) -> Bandwidth | None:
    """Join measurements: all their lists, and every other fact from the first one that has it.

    A value that an earlier list has is skipped; repeated samples within one list are kept.
    """
    if len(measured) < 2:
        return measured[0] if measured else None
    joined: dict[str, Any] = {}
    for name in ("samples", "failures", "not_measured", "uplink_groups", "notes"):
        values: tuple[Any, ...] = ()
        for bandwidth in measured:
            values += tuple(value for value in getattr(bandwidth, name) if value not in values)
        joined[name] = values if name == "samples" else tuple(dict.fromkeys(values))
    for name in ("level", "measured_at", "duration_s", "driver_version", "cuda_version"):
        joined[name] = next(
            (v for bandwidth in measured if (v := getattr(bandwidth, name)) is not None), None
        )
    return Bandwidth(
        source=" + ".join(dict.fromkeys(bandwidth.source for bandwidth in measured)),
        complete=all(bandwidth.complete for bandwidth in measured),
        **joined,
    )


def _is_filled(machine: Machine, fact: str) -> bool:
    """Return whether a fact such as `gpus[0].pcie.gen_now` or `links[*].hop` is known for all its devices."""
    values = values_at(machine, fact)
    return bool(values) and all(_is_known(fact, value) for value in values)


def _is_known(path: str, value: Any) -> bool:
    if isinstance(value, Gpu):
        return not value.lost
    if isinstance(value, Struct) and not any(f.required for f in fields(value)):
        return bool(value != type(value)())
    return field_at(Machine, path).is_known(value) and (value != () or path.endswith(_REASONS))
