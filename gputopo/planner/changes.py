"""The changes to a machine that `--what-if` accepts: a link, ACS, NVLink, another GPU model.

Measured copies are not used before and after the change. All links have the rate of their class and width.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec

from gputopo.prediction import paths_of, pcie_link
from gputopo.reference import (
    GpuExpectation,
    LinkExpectation,
    expected_gpu,
    expected_link,
    expected_of,
    fitting_links,
    known_gpus,
)
from gputopo.topology import redirected_pairs, why_p2p_off
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import gpu_ranges, index_ranges, parse_ranges
from gputopo.values.machine import Gpu, Link, Machine, Pcie
from gputopo.values.option import listed, nearest

EXAMPLES = '"gpu3: x16", "gpu3: gen4 x16", "acs off", "p2p on", "nvlink 0-1", "all: RTX 4090"'
# With more GPUs than this, one more bridge is no faster path: their gradients cross PCIe in any case.
_FEW_GPUS = 4
_WIDEST = 16
_LINK = re.compile(r"(?:(?:pcie )?gen ?([1-6]))?\s*(?:x ?([0-9]+))?", re.IGNORECASE)


class ChangedMachine(NamedTuple):
    """A machine after changes. `replaced`: GPUs of another model; `notes`: assumptions."""

    machine: Machine
    replaced: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def changes_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the single changes in some texts; `;`, or `,` before a word, separates changes."""
    changes = (change.strip() for text in texts for change in re.split(r";|,(?!\s*[0-9])", text))
    return tuple(filter(None, changes))


def as_expected(machine: Machine) -> Machine:
    """Return the machine without measurements, each GPU with the link that its copies fit."""
    gpus = tuple(_with_link(gpu, _link_of(gpu, machine)) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus, bandwidth=None)


def changed(machine: Machine, changes: Sequence[str]) -> ChangedMachine:
    """Return a machine `as_expected` after changes, applied in order. Raises UsageError."""
    replaced, notes = frozenset[int](), list[str]()
    for text in changes:
        after = _change(text, machine)
        machine, replaced = after.machine, replaced | after.replaced
        notes += after.notes
    return ChangedMachine(machine, replaced, tuple(notes))


def single_changes(machine: Machine) -> tuple[str, ...]:
    """Return the changes to try one by one: cards in slots with fewer lanes, ACS, peer access, NVLink."""
    changes = [f"gpu{index}: x{width}" for index, width in _narrow(machine).items()]
    changes += ["acs off"] if redirected_pairs(machine) else []
    changes += ["p2p on"] if _denied(machine) else []
    for a, b in combinations(machine.gpus, 2) if len(machine.gpus) <= _FEW_GPUS else ():
        row = expected_of(a)
        if row is not None and row.nvlink_by_bridge and row == expected_of(b) and _free(machine, a, b):
            changes.append(f"nvlink {a.index}-{b.index}")
    return tuple(changes)


def full_links(machine: Machine) -> tuple[str, ...]:
    """Return the changes that give all cards all their lanes."""
    narrow = _narrow(machine)
    if len(narrow) == len(machine.gpus) and len({*narrow.values()}) == 1:
        return (f"all: x{next(iter(narrow.values()))}",)
    return tuple(f"gpu{index}: x{width}" for index, width in narrow.items())


def _link_of(gpu: Gpu, machine: Machine) -> LinkExpectation:
    """Return the PCIe link of a GPU: reported, else as its copies fit, else of its model or assumed."""
    link, basis = pcie_link(gpu, machine)
    host = paths_of(machine).hosts[gpu.index]
    if basis == "link" or host.basis != "measured":
        return link
    return next(iter(fitting_links(min(host.up, host.down), [gpu])), link)


def _with_link(gpu: Gpu, link: LinkExpectation) -> Gpu:
    pcie = msgspec.structs.replace(
        gpu.pcie, gen_max=link.generation, width_now=link.width, width_max=link.width, limiting_hop=None
    )
    return msgspec.structs.replace(gpu, pcie=pcie)


def _narrow(machine: Machine) -> dict[int, int]:
    """Return the full number of lanes of each card that has fewer in its slot, by GPU."""
    narrow = {}
    for gpu in machine.gpus:
        row, now = expected_of(gpu), _link_of(gpu, machine)
        widest = row.pcie_width if row and row.pcie_width else _WIDEST
        if not gpu.lost and now.width < widest and (row is None or row.pcie_width_seen != now.width):
            narrow[gpu.index] = widest
    return narrow


def _change(text: str, machine: Machine) -> ChangedMachine:
    """Return a machine after one change. Raises UsageError for an unknown change."""
    if re.fullmatch(r"acs\s*[:=]?\s*off", text, re.IGNORECASE):
        return _without_acs(machine)
    if re.fullmatch(r"p2p\s*[:=]?\s*on", text, re.IGNORECASE):
        return _with_p2p(machine)
    if pair := re.fullmatch(r"nvlink\s*:?\s*([0-9]+)\s*-\s*([0-9]+)", text, re.IGNORECASE):
        a, b = (_gpus(text, word, machine)[0] for word in pair.groups())
        return _with_nvlink(machine, a, b)
    named = re.fullmatch(r"(?:gpus?\s*([0-9][0-9, -]*)|all)\s*:\s*(.+)", text, re.IGNORECASE)
    if named is None:
        raise UsageError(f"--what-if does not know {text!r}", f"such as {EXAMPLES}")
    gpus, words = _gpus(text, named[1], machine), named[2].strip()
    if link := _LINK.fullmatch(words):
        generation, width = (None if word is None else int(word) for word in link.groups())
        return _with_links(machine, gpus, generation, width)
    return _replaced(machine, gpus, _model(words))


def _gpus(text: str, named: str | None, machine: Machine) -> list[Gpu]:
    everyone = {gpu.index: gpu for gpu in machine.gpus}
    indices = tuple(everyone) if named is None else parse_ranges(named.replace(" ", "")) or ()
    if not indices or not set(indices) <= everyone.keys():
        what = f"--what-if {text!r}: this machine has no such GPU"
        raise UsageError(what, f"it has {index_ranges(everyone)}")
    return [everyone[index] for index in indices]


def _model(name: str) -> GpuExpectation:
    """Return the row of a model by its name or the end of it. Raises UsageError with the nearest names."""
    if (row := expected_gpu(name)) is not None:
        return row
    names = {each.casefold(): row for row in known_gpus() for each in (row.name, *row.other_names)}
    ends = {row.name: row for each, row in names.items() if each.endswith(f" {name.casefold()}")}
    if len(ends) == 1:
        return next(iter(ends.values()))
    known = list(ends) or [names[each].name for each in nearest(name, names)]
    hint = f"did you mean {listed(known)}?" if known else f"such as {EXAMPLES}"
    raise UsageError(f"--what-if does not know the GPU or link {name!r}", hint)


def _with_gpus(machine: Machine, changed: Iterable[Gpu]) -> Machine:
    by_index = {gpu.index: gpu for gpu in changed}
    gpus = tuple(by_index.get(gpu.index, gpu) for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


def _with_links(
    machine: Machine, gpus: Sequence[Gpu], generation: int | None, width: int | None
) -> ChangedMachine:
    """Return the machine with another PCIe link for some GPUs; None: unchanged."""
    after, notes = list[Gpu](), dict[str, list[int]]()
    for gpu in gpus:
        now, row = _link_of(gpu, machine), expected_of(gpu)
        link = expected_link(generation or now.generation, width or now.width)
        if link is None:
            raise UsageError(f"--what-if: there is no PCIe link x{width}", "use one of x1, x2, x4, x8, x16")
        for what, most, asked in (
            ("lanes", row.pcie_width if row else None, width),
            ("PCIe generation", row.pcie_generation if row else None, generation),
        ):
            if most is not None and asked is not None and asked > most:
                limit = f"--what-if: {what} of a {gpu.name}: {most} at most, not {asked}"
                raise UsageError(limit, f"use up to {most}")
        after.append(_with_link(gpu, link))
        how = f"Gen{link.generation} x{link.width} instead of Gen{now.generation} x{now.width}"
        notes.setdefault(how, []).append(gpu.index)
    words = (f"{gpu_ranges(indices)}: {how}" for how, indices in notes.items())
    return ChangedMachine(_with_gpus(machine, after), notes=tuple(words))


def _without_acs(machine: Machine) -> ChangedMachine:
    pci = tuple(msgspec.structs.replace(node, acs=False) if node.acs else node for node in machine.pci)
    after = msgspec.structs.replace(machine, pci=pci)
    notes = () if redirected_pairs(machine) else ("ACS redirects no traffic between GPUs",)
    return ChangedMachine(after, notes=notes)


def _denied(machine: Machine) -> dict[tuple[int, int], str]:
    """Return the pairs without peer access that a setting can enable, and how."""
    offs = {(link.a, link.b): why_p2p_off(machine, link) for link in machine.links if not link.nvlinks}
    settings = ("registry_key", "acs", "iommu", "bar1")
    return {pair: off.fix for pair, off in offs.items() if off and off.cause in settings and off.fix}


def _with_p2p(machine: Machine) -> ChangedMachine:
    """Return the machine with peer access for the pairs that a setting denies it."""
    fixes = _denied(machine)
    links = tuple(
        msgspec.structs.replace(link, p2p_read="OK", p2p_write="OK", p2p_reason=None)
        if (link.a, link.b) in fixes
        else link
        for link in machine.links
    )
    notes = tuple(dict.fromkeys(fixes.values())) or ("no setting denies GPUs peer access",)
    return ChangedMachine(msgspec.structs.replace(machine, links=links), notes=notes)


def _free(machine: Machine, a: Gpu, b: Gpu) -> int:
    """Return how many more NVLinks two GPUs can have between them; 0 for different models."""
    row = expected_of(a)
    if row is None or row != expected_of(b):
        return 0
    used = (
        sum(link.nvlinks or 0 for link in machine.links if gpu.index in (link.a, link.b)) for gpu in (a, b)
    )
    return (row.nvlinks or 0) - max(used)


def _with_nvlink(machine: Machine, a: Gpu, b: Gpu) -> ChangedMachine:
    count, (low, high) = _free(machine, a, b), sorted((a.index, b.index))
    if low == high or count < 1:
        what = f"--what-if: GPUs {low} and {high} have no free NVLinks of one generation"
        raise UsageError(what, "use other GPUs")
    link = machine.link(low, high) or Link(a=low, b=high)
    more = msgspec.structs.replace(link, nvlinks=(link.nvlinks or 0) + count)
    others = (other for other in machine.links if other != link)
    links = tuple(sorted((more, *others), key=lambda link: (link.a, link.b)))
    note = f"GPUs {low} and {high}: {count} NVLinks"
    return ChangedMachine(msgspec.structs.replace(machine, links=links), notes=(note,))


def _replaced(machine: Machine, gpus: Sequence[Gpu], row: GpuExpectation) -> ChangedMachine:
    after = []
    for gpu in gpus:
        now, old = _link_of(gpu, machine), expected_of(gpu)
        generation, width = row.pcie_generation or now.generation, row.pcie_width or now.width
        # A slot provides what its card uses; it may provide more if the card uses all its lanes or its
        # generation.
        if old is None or old.pcie_width is None or old.pcie_width > now.width:
            width = min(width, now.width)
        if old is not None and now.generation < (old.pcie_generation or 0):
            generation = min(generation, now.generation)
        new = Gpu(
            index=gpu.index, name=row.name, uuid=gpu.uuid, pci_address=gpu.pci_address,
            numa_node=gpu.numa_node, cpu_affinity=gpu.cpu_affinity, pcie=Pcie(),
        )  # fmt: skip
        after.append(_with_link(new, expected_link(generation, width) or now))
    moved = {gpu.index for gpu in gpus}
    links = tuple(
        msgspec.structs.replace(
            link, nvlinks=link.nvlinks if row.nvlinks else 0, p2p_read=None, p2p_write=None, p2p_reason=None
        )
        if {link.a, link.b} & moved
        else link
        for link in machine.links
    )
    note = f"GPUs of another model: {row.name}, in the same slots"
    changed_links = msgspec.structs.replace(machine, links=links)
    return ChangedMachine(_with_gpus(changed_links, after), frozenset(moved), (note,))
