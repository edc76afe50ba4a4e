"""Several runs of one program: sections of a log, the output of a loop, logs of before and after, of hosts.

A measurement repeated with another value belongs to another run. Runs are never merged: each sample has the
name of its run, which is a heading, a file or a number, and a note says that there are several.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from gputopo.captures import merging
from gputopo.captures.bandwidth.texts import ProgramRead
from gputopo.captures.matching import aligned
from gputopo.values.bandwidth import Bandwidth, CollectiveRate, Sample, Samples, identity
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu
from gputopo.values.machine import Machine

Mark = tuple[int, Hashable]  # line of a measurement, from 1, and what was measured

_START = re.compile(
    r"\[P2P \(Peer-to-Peer\) GPU Bandwidth|\[?CUDA Bandwidth Test\]|nvbandwidth Version"
    r"|(?:Send|RDMA_Write|RDMA_Read|Atomic)(?:_imm)? .{0,60}Test$"
    r"|(?:\+ |\S{0,60}[$#%] )?(?:\S{1,40}=\S{0,40} )*(?:\S*/)?"
    r"(?:bandwidthTest|p2pBandwidthLatencyTest|nvbandwidth|iperf3|ib_(?:write|read|send|atomic)_(?:bw|lat))\b"
)
_HEADING = re.compile(  # `==> NAME <==` of head and tail, `=== NAME ===`, `# NAME`
    r"(?:# |[-=*#~+_>]{2,}) *(?P<name>[^\W_](?:.{0,78}[^\s<=*#~+_-])?)[ <=*#~+_-]*$"
)
_PROGRAM = re.compile(r"bandwidth|nvidia|cuda", re.IGNORECASE)
_MAX_NAMED = 4
_what = identity()  # identity of a sample without its run
_OF_SEVERAL_GPUS = ("nvbandwidth", "p2pBandwidthLatencyTest")  # bandwidthTest sees only one


class Scanned(Protocol):
    """The content of a program's lines, before it becomes a machine."""

    def measured(self) -> Iterable[Mark]:
        """Return what was measured, with line numbers."""

    def read(self, *, origin: str) -> ProgramRead:
        """Return the machine, with the numbers of the lines that were understood."""


_S = TypeVar("_S", bound=Scanned)


def read(text: str, scan: Callable[[str, _S | None], _S], source: str, *, origin: str) -> ProgramRead:
    """Read the runs of a text. `scan` gets a run and the scan of the run above (first: of the whole text).

    Raises InputError if the runs list different GPUs.
    """
    whole = scan(text, None)
    parts = split_runs(text, sorted(whole.measured(), key=lambda mark: mark[0]))
    if not parts:
        return whole.read(origin=origin)
    scanned = whole
    lines = text.splitlines()
    machines: list[Machine] = []
    understood: set[int] = set()
    for part in parts.values():
        scanned = scan("\n".join(lines[part.start - 1 : part.stop - 1]), scanned)
        read = scanned.read(origin=origin)
        machines.append(read.machine)
        understood |= {part.start - 1 + line for line in read.understood}
    if not _differ([_samples(machine) for machine in machines]):
        return whole.read(origin=origin)
    machine = joined([*parts], machines, source, origin=origin)
    return ProgramRead(machine, frozenset(understood))


def documents(text: str, start: re.Pattern[str], *, origin: str, hint: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text that start with `start`. Raises InputError if one is cut."""
    end = 0
    while match := start.search(text, end):
        try:
            document, end = json.JSONDecoder().raw_decode(text, match.start())
        except RecursionError as error:
            raise InputError(f"{origin} is JSON that is nested too deep", hint) from error
        except ValueError as error:
            raise InputError(f"{origin} is not complete JSON: {error}", hint) from error
        yield document


def of_documents(machines: Sequence[Machine], source: str, *, origin: str, hint: str) -> Machine:
    """Return the machines of several documents as one. Raises InputError without a document."""
    if not machines:
        raise InputError(f"{origin} holds no JSON of {source}", hint)
    if len(machines) == 1:
        return machines[0]
    return joined(_numbered(machines), machines, source, origin=origin)


def split_runs(text: str, measured: Sequence[Mark]) -> dict[str, range]:
    """Return the lines of each part in which nothing is measured twice; empty if the text is one such part.

    A part starts at the first heading, command or start of a program after the previous measurement, else at
    the repeated measurement. Each has the name in its heading, unless a heading is missing, repeated or about
    a program; then parts are numbered.
    """
    if len({what for _, what in measured}) == len(measured):
        return {}
    lines = ["", *(line.strip(" \t`|")[:200] for line in text.splitlines())]
    starts: list[int] = []
    seen: set[Hashable] = set()
    last = 0
    for line, what in measured:
        if not starts or what in seen:
            above = range(last + 1, line)
            heads = (n for n in above if _HEADING.match(lines[n]) or _START.match(lines[n]))
            starts.append(next(heads, line))
            seen = set()
        seen.add(what)
        last = line
    names = [match["name"] for start in starts if (match := _HEADING.match(lines[start]))]
    if len({*names}) < len(starts) or any(map(_PROGRAM.search, names)):
        names = _numbered(starts)
    bounds = [1, *starts[1:], len(lines) + 1]
    return dict(zip(names, itertools.starmap(range, itertools.pairwise(bounds)), strict=True))


def with_runs(bandwidth: Bandwidth, text: str, lines: Sequence[int]) -> Bandwidth:
    """Return a measurement with each sample's run, if there are several runs. `lines`: the samples' lines."""
    in_order = sorted(zip(lines, bandwidth.samples, strict=True), key=lambda placed: placed[0])
    parts = split_runs(text, [(line, _what(sample)) for line, sample in in_order])
    runs = [[sample for line, sample in in_order if line in part] for part in parts.values()]
    named = in_runs([*parts], runs)
    if named is None:
        return bandwidth
    note = several(bandwidth.source, [name for name, run in zip(parts, named, strict=True) if run])
    samples = tuple(itertools.chain.from_iterable(named))
    return replace(bandwidth, samples=samples, notes=(*bandwidth.notes, note))


def _numbered(runs: Sequence[object]) -> list[str]:
    return [f"run {number}" for number in range(1, len(runs) + 1)]


def joined(names: Sequence[str], machines: Sequence[Machine], source: str, *, origin: str) -> Machine:
    """Return the runs of one program as one machine.

    If GPUs have the same names but other PCI addresses, the runs are from several machines, and the addresses
    are removed. A run may list fewer GPUs than another. Raises InputError if the runs list different GPUs.
    """
    names_of_gpus = {tuple(gpu.name for gpu in machine.gpus) for machine in machines}
    addresses = {tuple(gpu.pci_address for gpu in machine.gpus) for machine in machines}
    if len(names_of_gpus) == 1 < len(addresses):
        why = "the runs list other PCI addresses: they are of several machines"
        machines = [
            replace(
                machine,
                gpus=tuple(replace(gpu, pci_address=None) for gpu in machine.gpus),
                missing=machine.missing | {at_gpu(EVERY, "pci_address"): why},
            )
            for machine in machines
        ]
    most = max(machines, key=lambda machine: len(machine.gpus))
    fitted = [aligned(most, machine)[0] for machine in machines]
    known = {gpu.index: gpu.name for gpu in most.gpus}
    if any(
        len(aligned_run.gpus) < len(machine.gpus)
        or any(len({gpu.name, known[gpu.index]} - {None}) > 1 for gpu in aligned_run.gpus)
        for aligned_run, machine in zip(fitted, machines, strict=True)
    ):
        raise InputError(
            f"{origin} holds runs of {source} on different GPUs: {_listed(names)}",
            "they are of several machines: copy the lines of one",
        )
    named = name_differing_runs(names, fitted)
    lists = [{gpu.index: gpu for gpu in (*most.gpus, *run.gpus)} for run in named]
    machine = merging.merge(
        [
            replace(run, bandwidth=None, gpus=tuple(gpus.values()))
            for run, gpus in zip(named, lists, strict=True)
        ]
    )
    bandwidths = [run.bandwidth for run in named if run.bandwidth is not None]
    return replace(machine, source=source, bandwidth=merging.joined_bandwidth(bandwidths))


def name_differing_runs(names: Sequence[str], machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines; if machines of a program have different values, their samples get run names."""
    named = list(machines)
    done: set[int] = set()
    for source in dict.fromkeys(program for machine in machines for program in _programs(machine)):
        of_program = [at for at, run in enumerate(named) if source in _programs(run) and at not in done]
        samples = in_runs([names[at] for at in of_program], [_samples(named[at]) for at in of_program])
        if samples is None:
            continue
        note = several(source, [names[at] for at, own in zip(of_program, samples, strict=True) if own])
        done |= set(of_program)
        for at, own in zip(of_program, samples, strict=True):
            bandwidth = named[at].bandwidth or Bandwidth(source=source)
            new = replace(bandwidth, samples=tuple(own), notes=(*bandwidth.notes, note))
            named[at] = replace(named[at], bandwidth=new)
    return named


def in_runs(names: Sequence[str], runs: Sequence[Sequence[Sample]]) -> list[list[Sample]] | None:
    """Return the samples of runs, each with its run's name; None if no measurement differs between runs.

    A run that an earlier run includes completely is skipped: it is the same output again.
    """
    if not _differ(runs):
        return None
    named_runs: list[list[Sample]] = []
    seen: list[set[object]] = []
    for name, run in zip(names, runs, strict=True):
        own: set[object] = {(_what(sample), _value(sample)) for sample in run}
        again = any(own <= earlier for earlier in seen)
        seen.append(own)
        named = [replace(s, run=f"{name}: {s.run}" if s.run else name) for s in run]
        named_runs.append([] if again else named)
    return named_runs


def several(source: str, names: Sequence[str]) -> str:
    """Return the note on several runs of a program."""
    return (
        f"{source}: {len({*names})} runs ({_listed(names)}), of the same GPUs at other times, or several "
        "machines; the number of each run is kept"
    )


def by_files(names: Sequence[str], machines: Sequence[Machine]) -> tuple[list[str], list[Machine]]:
    """Return names and machines of files that are read together; each run has the name of its file.

    Files of one program with different values become one machine if their GPUs can be the same or have the
    same model: a merge would drop GPUs with other PCI addresses.
    """
    by_place: dict[int, Machine] = dict(enumerate(machines))
    for program in {machine.source for machine in machines} & set(_OF_SEVERAL_GPUS):
        own = [at for at, machine in enumerate(machines) if machine.source == program]
        runs = [_samples(machines[at]) for at in own]
        if _differ(runs):
            with contextlib.suppress(InputError):  # other GPUs: a merge reports the contradiction
                whole = joined([names[at] for at in own], [machines[at] for at in own], program, origin="")
                others = {at: machine for at, machine in by_place.items() if at not in own}
                by_place = others | {own[0]: whole}
    places = sorted(by_place)
    kept = [names[at] for at in places]
    return kept, name_differing_runs(kept, [by_place[at] for at in places])


def _differ(runs: Sequence[Sequence[Sample]]) -> bool:
    """Return whether a measurement has different values between two runs, not only within a run."""
    first: dict[Hashable, set[object]] = {}
    for run in runs:
        values: dict[Hashable, set[object]] = {}
        for sample in run:
            values.setdefault(_what(sample), set()).add(_value(sample))
        for what, own in values.items():
            earlier = first.setdefault(what, own)
            if not (own <= earlier or earlier <= own):
                return True
    return False


def _value(sample: Sample) -> object:
    return sample.value, sample.median_us if isinstance(sample, CollectiveRate) else None


def _samples(machine: Machine) -> Samples:
    return machine.bandwidth.samples if machine.bandwidth else Samples()


def _programs(machine: Machine) -> list[str]:
    return machine.bandwidth.source.split(" + ") if machine.bandwidth else []


def _listed(names: Sequence[str]) -> str:
    shown = list(dict.fromkeys(names))
    return ", ".join([*shown[:_MAX_NAMED], *["..."] * (len(shown) > _MAX_NAMED)])
