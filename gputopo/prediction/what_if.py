"""Changes to a machine, as `--what-if` names them: a link, ACS, NVLink, another model of GPU. Pure.

Measured copies that a change affects are scaled by how much faster the links become, as far as the path stays
the same; where it does not they are left out, so that the new path counts as its class and width.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec

from gputopo.copies.expected import links_for
from gputopo.prediction.links.paths import paths_of
from gputopo.prediction.links.shared_links import ASSUMED_GENERATION, ASSUMED_WIDTH
from gputopo.reference.expectations import (
    GpuExpectation,
    LinkExpectation,
    expected_gpu,
    expected_link,
    expected_nvlink,
    known_gpus,
    observed_link,
)
from gputopo.topology.peer_access import redirected_pairs
from gputopo.values.bandwidth import Path, Sample, gpu_of
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import gpu_ranges, index_ranges, parse_ranges
from gputopo.values.machine import Gpu, Link, Machine, Pcie
from gputopo.values.option import listed, nearest

EXAMPLES = '"gpu3: x16", "gpu3: gen4 x16", "acs off", "nvlink 0-1", "all: RTX 4090"'
# One bridge more is no faster path for more GPUs than these: their gradients cross PCIe all the same.
_FEW_GPUS = 4
_LANES = (1, 2, 4, 8, 16)
_LINK = re.compile(r"(?:(?:pcie )?gen ?([1-6]))?\s*(?:x ?([0-9]+))?", re.IGNORECASE)
_BETWEEN_GPUS = ("p2p_direct", "p2p_staged", "bidirectional")


class ChangedMachine(NamedTuple):
    """A machine after changes. `replaced`: GPUs that are of another model; `notes`: what was assumed."""

    machine: Machine
    replaced: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def changes_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the changes that texts name, one each: several are separated by `;` or `,` and a word."""
    return tuple(one.strip() for text in texts for one in re.split(r";|,(?!\s*[0-9])", text) if one.strip())


def changed(machine: Machine, changes: Sequence[str]) -> ChangedMachine:
    """Return the machine after changes, in their order. Raises UsageError for one that cannot be."""
    found = ChangedMachine(machine)
    for text in changes:
        after = _change_of(text, found.machine)(found.machine)
        found = ChangedMachine(after.machine, found.replaced | after.replaced, (*found.notes, *after.notes))
    return found


def link_of(gpu: Gpu, machine: Machine) -> LinkExpectation:
    """Return the PCIe link of a GPU: as reported, else as its copies fit, else of its model or assumed."""
    model = expected_gpu(gpu.name, gpu.pci_device_id)
    found, _ = observed_link(gpu, None, machine) or (None, "")
    host = paths_of(machine).hosts[gpu.index]
    if found is None and host.basis == "measured":
        found = next(iter(links_for(min(host.up, host.down), gpu)), None)
    if found is None and model is not None:
        found = expected_link(model.pcie_generation, model.pcie_width_seen or model.pcie_width)
    found = found or expected_link(ASSUMED_GENERATION, ASSUMED_WIDTH)
    assert found is not None
    return found


def single_changes(machine: Machine) -> tuple[str, ...]:
    """Return the changes to try one by one: cards in slots with fewer lanes, NVLink bridges, ACS."""
    found = [f"gpu{index}: x{width}" for index, width in _narrow(machine).items()]
    if redirected_pairs(machine):
        found.append("acs off")
    for a, b in combinations(machine.gpus, 2) if len(machine.gpus) <= _FEW_GPUS else ():
        rows = [expected_gpu(gpu.name, gpu.pci_device_id) for gpu in (a, b)]
        free = all(_free_nvlinks(machine, gpu.index, row) > 0 for gpu, row in zip((a, b), rows, strict=True))
        if free and rows[0] == rows[1] and rows[0] is not None and rows[0].nvlink_by_bridge:
            found.append(f"nvlink {a.index}-{b.index}")
    return tuple(found)


def full_links(machine: Machine) -> tuple[str, ...]:
    """Return the changes after which all cards have all their lanes."""
    narrow = _narrow(machine)
    if len(narrow) == len(machine.gpus) and len(set(narrow.values())) == 1:
        return (f"all: x{next(iter(narrow.values()))}",)
    return tuple(f"gpu{index}: x{width}" for index, width in narrow.items())


def _narrow(machine: Machine) -> dict[int, int]:
    """Return the lanes of the cards that have fewer in their slots."""
    found = {}
    for gpu in machine.gpus:
        row, now = expected_gpu(gpu.name, gpu.pci_device_id), link_of(gpu, machine)
        widest = row.pcie_width if row and row.pcie_width else max(_LANES)
        if not gpu.lost and now.width < widest and (row is None or row.pcie_width_seen != now.width):
            found[gpu.index] = widest
    return found


def _change_of(text: str, machine: Machine) -> Callable[[Machine], ChangedMachine]:
    """Return the function that a change names. Raises UsageError for words that it does not know."""
    if re.fullmatch(r"acs\s*[:=]?\s*off", text, re.IGNORECASE):
        return _without_acs
    if found := re.fullmatch(r"nvlink\s*:?\s*([0-9]+)\s*-\s*([0-9]+)", text, re.IGNORECASE):
        a, b = sorted(map(int, found.groups()))
        return lambda before: _with_nvlink(before, a, b)
    if (found := re.fullmatch(r"(?:gpus?\s*([0-9][0-9, -]*)|all)\s*:\s*(.+)", text, re.I)) is None:
        raise UsageError(f"--what-if does not know {text!r}", f"such as {EXAMPLES}")
    named, words = found.groups()
    everyone = tuple(gpu.index for gpu in machine.gpus)
    gpus = everyone if named is None else parse_ranges(named.replace(" ", "")) or ()
    if not gpus or not set(gpus) <= set(everyone):
        raise UsageError(
            f"--what-if {text!r}: this machine has no such GPU", f"it has {index_ranges(everyone)}"
        )
    if link := _LINK.fullmatch(words.strip()):
        generation, width = (None if word is None else int(word) for word in link.groups())
        return lambda before: _with_links(before, gpus, generation, width)
    row = _model(words.strip())
    return lambda before: _replaced(before, gpus, row)


def _model(name: str) -> GpuExpectation:
    """Return the row of a model by its name, or by the end of it. Raises UsageError with the nearest."""
    if (row := expected_gpu(name)) is not None:
        return row
    names = {each.casefold(): row for row in known_gpus() for each in (row.name, *row.other_names)}
    ends = {row.name: row for each, row in names.items() if each.endswith(f" {name.casefold()}")}
    if len(ends) == 1:
        return next(iter(ends.values()))
    known = list(ends) or [names[each].name for each in nearest(name, names)]
    hint = f"did you mean {listed(known)}?" if known else f"such as {EXAMPLES}"
    raise UsageError(f"--what-if does not know the GPU or link {name!r}", hint)


def _gpu(machine: Machine, index: int) -> Gpu:
    found = next((gpu for gpu in machine.gpus if gpu.index == index), None)
    if found is None:
        there = ", ".join(str(gpu.index) for gpu in machine.gpus)
        raise UsageError(f"--what-if: this machine has no GPU {index}", f"it has {there}")
    return found


def _with_gpu(machine: Machine, gpu: Gpu) -> Machine:
    gpus = tuple(gpu if one.index == gpu.index else one for one in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


def _with_links(
    machine: Machine, gpus: Sequence[int], generation: int | None, width: int | None
) -> ChangedMachine:
    """Return the machine with another PCIe link of GPUs; None: as it is."""
    after = machine
    notes: dict[str, list[int]] = {}
    for index in gpus:
        gpu = _gpu(machine, index)
        now = link_of(gpu, after)
        row = expected_gpu(gpu.name, gpu.pci_device_id)
        wanted = (generation or now.generation, width or now.width)
        link = expected_link(*wanted)
        if link is None:
            lanes = ", ".join(f"x{lanes}" for lanes in _LANES)
            raise UsageError(f"--what-if: there is no PCIe link x{wanted[1]}", f"use one of {lanes}")
        for what, most, asked in (
            ("lanes", row.pcie_width if row else None, width),
            ("PCIe generation", row.pcie_generation if row else None, generation),
        ):
            if most is not None and asked is not None and asked > most:
                raise UsageError(
                    f"--what-if: {what} of a {gpu.name}: {most} at most, not {asked}", f"use up to {most}"
                )
        after = _with_link(after, gpu, now, link)
        if link != now:
            how = f"Gen{link.generation} x{link.width} instead of Gen{now.generation} x{now.width}"
            notes.setdefault(how, []).append(index)
    scaled = "" if machine.bandwidth is None else ", measured copies scaled"
    words = (f"{gpu_ranges(indices)}: {how}{scaled}" for how, indices in notes.items())
    return ChangedMachine(after, notes=tuple(words))


def _with_link(machine: Machine, gpu: Gpu, now: LinkExpectation, link: LinkExpectation) -> Machine:
    if link == now:
        return machine
    pcie = msgspec.structs.replace(
        gpu.pcie, gen_max=link.generation, width_now=link.width, width_max=link.width, limiting_hop=None
    )
    rate = _rate(link) / _rate(now)
    by_direction = {
        "h2d": link.copy_to_device_gb_per_s / now.copy_to_device_gb_per_s,
        "d2h": link.copy_to_host_gb_per_s / now.copy_to_host_gb_per_s,
    }
    hosts = {index: min(host.up, host.down) for index, host in paths_of(machine).hosts.items()}
    before, after = hosts[gpu.index], hosts[gpu.index] * rate
    nvlinked = {(one.a, one.b) for one in machine.links if one.nvlinks}

    def scaled(sample: Sample) -> Sample:
        ends = [gpu_of(sample.source), gpu_of(sample.destination)]
        if gpu.index not in ends or sample.kind not in ("h2d", "d2h", *_BETWEEN_GPUS):
            return sample
        other = next((end for end in ends if end is not None and end != gpu.index), None)
        if other is None:
            return _times(sample, by_direction.get(sample.kind, rate))
        if (min(gpu.index, other), max(gpu.index, other)) in nvlinked or other not in hosts:
            return sample
        return _times(sample, min(after, hosts[other]) / min(before, hosts[other]))

    return _with_samples(_with_gpu(machine, msgspec.structs.replace(gpu, pcie=pcie)), scaled)


def _rate(link: LinkExpectation) -> float:
    return min(link.copy_to_host_gb_per_s, link.copy_to_device_gb_per_s)


def _times(sample: Sample, factor: float) -> Sample:
    median = sample.median_gb_per_s
    return msgspec.structs.replace(
        sample,
        median_gb_per_s=None if median is None else median * factor,
        repeats_gb_per_s=tuple(one * factor for one in sample.repeats_gb_per_s),
        conditions=(),
        runs=(),
    )


def _with_samples(machine: Machine, edit: Callable[[Sample], Sample | None]) -> Machine:
    if machine.bandwidth is None:
        return machine
    samples = tuple(after for one in machine.bandwidth.samples if (after := edit(one)) is not None)
    return msgspec.structs.replace(
        machine, bandwidth=msgspec.structs.replace(machine.bandwidth, samples=samples)
    )


def _without_pairs(
    machine: Machine, is_gone: Callable[[int, int], bool], *, only: Path | None = None
) -> Machine:
    """Return the machine without what was measured between pairs of GPUs (low index first), by one path."""

    def edit(sample: Sample) -> Sample | None:
        a, b = gpu_of(sample.source), gpu_of(sample.destination)
        if a is None or b is None or a == b or sample.kind not in _BETWEEN_GPUS:
            return sample
        path = sample.path or ("staged" if sample.kind == "p2p_staged" else "direct")
        if only is not None and path != only:
            return sample
        return None if is_gone(min(a, b), max(a, b)) else sample

    return _with_samples(machine, edit)


def _without_acs(machine: Machine) -> ChangedMachine:
    pairs = redirected_pairs(machine)
    pci = tuple(msgspec.structs.replace(node, acs=False) if node.acs else node for node in machine.pci)
    after = msgspec.structs.replace(machine, pci=pci)
    if not pairs:
        return ChangedMachine(after, notes=("ACS redirects no traffic between GPUs",))
    expected = paths_of(_without_pairs(after, lambda a, b: (a, b) in pairs)).pairs
    measured = paths_of(after).pairs
    faster = {pair for pair in pairs if expected[pair].gb_per_s > measured[pair].gb_per_s}
    return ChangedMachine(_without_pairs(after, lambda a, b: (a, b) in faster))


def _free_nvlinks(machine: Machine, index: int, row: GpuExpectation | None) -> int:
    used = sum(link.nvlinks or 0 for link in machine.links if index in (link.a, link.b))
    return (row.nvlinks or 0) - used if row else 0


def _with_nvlink(machine: Machine, a: int, b: int) -> ChangedMachine:
    if a == b:
        raise UsageError(f"--what-if: nvlink {a}-{b} names one GPU", "name two, such as nvlink 0-1")
    rows = [expected_gpu(gpu.name, gpu.pci_device_id) for gpu in (_gpu(machine, a), _gpu(machine, b))]
    count = min(_free_nvlinks(machine, gpu, row) for gpu, row in zip((a, b), rows, strict=True))
    lacking = next((gpu for gpu, row in zip((a, b), rows, strict=True) if not (row and row.nvlinks)), None)
    if lacking is not None:
        name = _gpu(machine, lacking).name or "GPU of an unknown model"
        raise UsageError(f"--what-if: GPU {lacking}, a {name}, has no NVLink", "name GPUs that have")
    versions = {row.nvlink_generation for row in rows if row}
    nvlink = expected_nvlink(versions.pop()) if len(versions) == 1 else None
    if count < 1 or nvlink is None:
        raise UsageError(
            f"--what-if: GPUs {a} and {b} have no free NVLinks of one generation", "name other GPUs"
        )
    link = machine.link(a, b) or Link(a=a, b=b)
    more = msgspec.structs.replace(link, nvlinks=(link.nvlinks or 0) + count)
    links = (more, *(one for one in machine.links if (one.a, one.b) != (a, b)))
    after = msgspec.structs.replace(machine, links=tuple(sorted(links, key=lambda one: (one.a, one.b))))
    unmeasured = _without_pairs(after, lambda *pair: pair == (a, b))
    rates = [paths_of(one).pair(a, b).gb_per_s for one in (after, unmeasured)]
    note = f"GPUs {a} and {b}: {count} NVLinks, generation {nvlink.version}"
    return ChangedMachine(unmeasured if rates[1] > rates[0] else after, notes=(note,))


def _replaced(machine: Machine, gpus: Sequence[int], row: GpuExpectation) -> ChangedMachine:
    after = machine
    for index in gpus:
        gpu = _gpu(machine, index)
        now = link_of(gpu, after)
        old = expected_gpu(gpu.name, gpu.pci_device_id)
        slot = gpu.pcie.gen_max_host or _slot_generation(gpu, old, now) or row.pcie_generation
        width = row.pcie_width or now.width
        # A slot whose card has all its lanes may have more.
        if old is None or old.pcie_width is None or old.pcie_width > now.width:
            width = min(width, now.width)
        link = expected_link(min(row.pcie_generation or now.generation, slot or now.generation), width)
        pcie = Pcie(gen_max_host=gpu.pcie.gen_max_host, limiting_hop=gpu.pcie.limiting_hop)
        if link is not None:
            after = _with_link(after, gpu, now, link)
            pcie = msgspec.structs.replace(
                pcie, gen_max=link.generation, width_now=link.width, width_max=link.width
            )
        new = Gpu(
            index=index, name=row.name, uuid=gpu.uuid, pci_address=gpu.pci_address,
            numa_node=gpu.numa_node, cpu_affinity=gpu.cpu_affinity, pcie=pcie,
        )  # fmt: skip
        after = _with_gpu(after, new)
    moved = set(gpus)
    links = tuple(
        msgspec.structs.replace(
            one, nvlinks=one.nvlinks if row.nvlinks else 0, p2p_read=None, p2p_write=None, p2p_reason=None
        )
        if {one.a, one.b} & moved
        else one
        for one in after.links
    )
    after = msgspec.structs.replace(after, links=links)
    # Copies through the host stay as measured; direct ones do where the new model allows P2P.
    joined = {(one.a, one.b) for one in machine.links if one.nvlinks}
    after = _without_pairs(after, lambda a, b: bool({a, b} & moved) and (a, b) in joined)
    if row.p2p_over_pcie is False:
        after = _without_pairs(after, lambda a, b: bool({a, b} & moved), only="direct")
    return ChangedMachine(after, frozenset(gpus), (f"GPUs of another model: {row.name}, in the same slots",))


def _slot_generation(gpu: Gpu, old: GpuExpectation | None, now: LinkExpectation) -> int | None:
    """Return the generation of a slot where it was lower than the card's that is in it; None: unknown."""
    card = gpu.pcie.gen_max_device or (old.pcie_generation if old else None)
    return now.generation if card is not None and now.generation < card else None
