"""The GPUs of a machine as a table, and notes on what its columns do not show."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gputopo.reference import name_of, under_load
from gputopo.report.document import Table
from gputopo.report.layout import LOST, NOT_ASKED, SEVERITY_STYLES, UNKNOWN, Column, plain
from gputopo.report.machine.facts import reason_for
from gputopo.values.facts import at_gpu, label
from gputopo.values.finding import Finding
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import gpu_ranges, index_ranges
from gputopo.values.machine import Gpu, GpuProcess, Machine

_NAME_WIDTH = 34  # longer names are folded
_PROCESSES_SHOWN = 8  # of one GPU; the rest is in the JSON
_IDLE_MARK = "*"
_LOST = SEVERITY_STYLES["error"]


class _Facts(msgspec.Struct, frozen=True):
    """A column: its head, and the paths of the facts in a cell, which are separated by a slash."""

    head: str
    paths: tuple[str, ...]
    whole: bool = False  # only in the full table


_NUMA = _Facts("NUMA", ("numa_node",))
_PCIE = _Facts("PCIe", ("pcie.gen_now", "pcie.width_now"))
_MEMORY = _Facts("Memory GiB", ("memory_mib.used", "memory_mib.total"))
_COLUMNS = (
    _Facts("PCI address", ("pci_address",), whole=True),
    _Facts("P-state", ("pstate",), whole=True),
    _Facts("Graphics MHz", ("clocks_mhz.graphics.now", "clocks_mhz.graphics.max"), whole=True),
    _Facts("Memory MHz", ("clocks_mhz.memory.now", "clocks_mhz.memory.max")),
    _PCIE,
    _NUMA,
    _Facts("Temp C", ("temperature_c.gpu",)),
    _Facts("Power W", ("power_w.draw", "power_w.limit")),
    _Facts("Fan %", ("fan_percent",), whole=True),
    _Facts("Load %", ("utilization_percent.gpu",)),
    _MEMORY,
)
# Heads of the columns that are dropped first on a narrow screen; the model only if all GPUs have the same.
_OPTIONAL = ("NUMA", "Temp C", "Load %", "Name", "Power W", "Memory GiB", "PCIe", "Memory MHz")


def gpu_table(machine: Machine, worst: Mapping[int, str], *, whole: bool = False) -> Table | None:
    """Return one row for each GPU, or None if the matrix shows as much.

    `worst`: severity of each GPU's worst finding. `whole`: with all columns; on a narrow screen they continue
    below. `?` is a fact that was requested but not available (`Machine.missing` has the reason), `-` one that
    the source does not report. Columns without any fact are skipped.
    """
    gpus = machine.gpus
    shown = [facts for facts in _COLUMNS if whole >= facts.whole and _is_shown(machine, facts)]
    named = any(map(name_of, gpus))
    if not worst and not named and shown in ([], [_NUMA]):
        return None
    names = (plain((name_of(gpu) or "").removeprefix("NVIDIA ")) for gpu in gpus)
    cells = (name or _absent(machine, gpu, "name") for name, gpu in zip(names, gpus, strict=True))
    columns = [Column("Name", tuple(cells), max_width=_NAME_WIDTH)] if named else []
    for facts in shown:
        columns.append(Column(facts.head, tuple(_cell(machine, gpu, facts) for gpu in gpus), "right"))
    states = tuple(LOST if gpu.lost else worst.get(gpu.index, "") for gpu in gpus)
    if any(states):
        styles = tuple(SEVERITY_STYLES.get(state, _LOST) for state in states)
        columns.append(Column("Finding", states, styles=styles))
    one_model = len({*filter(None, map(name_of, gpus))}) < 2
    optional = ("Name", *_OPTIONAL) if one_model else _OPTIONAL
    slow = any(link_is_slow_while_idle(gpu) for gpu in gpus)
    notes = (f"{_IDLE_MARK} an idle GPU lowers its PCIe generation",) if slow else ()
    head = Column("GPU", tuple(label(machine, gpu) for gpu in gpus), "right")
    return Table(head, (tuple(columns),), notes, optional=() if whole else optional)


def _is_shown(machine: Machine, facts: _Facts) -> bool:
    """Return whether any GPU has a fact of the column, or, unless lost, a reason why it is missing."""
    asked = machine.driver.status in ("ok", "not_read", "hung", "crashed")
    return any(
        _fact(gpu, path) is not None
        or (asked and not gpu.lost and reason_for(machine.missing, at_gpu(gpu.index, path)) is not None)
        for gpu in machine.gpus
        for path in facts.paths
    )


def _cell(machine: Machine, gpu: Gpu, facts: _Facts) -> str:
    """Return a cell: sizes in GiB, the PCIe link as `gen4 x16` or `gen1/4 x8/16`."""
    values = [_fact(gpu, path) for path in facts.paths]
    if all(value is None for value in values):
        return _absent(machine, gpu, facts.paths[0])
    if facts == _PCIE:
        now = zip(("gen", "x"), values, (gpu.pcie.gen_max, gpu.pcie.width_max), strict=True)
        known = [
            f"{before}{value}{f'/{top}' if top not in (None, value) else ''}"
            for before, value, top in now
            if value is not None
        ]
        return " ".join(known) + (_IDLE_MARK if link_is_slow_while_idle(gpu) else "")
    if facts == _MEMORY:
        values = [None if mib is None else f"{mib / 1024:.1f}" for mib in values]
    return "/".join(
        _absent(machine, gpu, path)
        if value is None
        else f"{value:.0f}"
        if isinstance(value, float)
        else plain(str(value))
        for path, value in zip(facts.paths, values, strict=True)
    )


def _absent(machine: Machine, gpu: Gpu, path: str) -> str:
    return NOT_ASKED if reason_for(machine.missing, at_gpu(gpu.index, path)) is None else UNKNOWN


def _fact(gpu: Gpu, path: str) -> Any:
    value: Any = gpu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def gpu_notes(machine: Machine) -> Iterator[tuple[str, str]]:
    """Return what the columns do not show: slow slots and bridges."""
    slots = grouped(((gpu.pcie.gen_max_device, gpu.pcie.gen_max_host), gpu.index) for gpu in machine.gpus)
    for (card, slot), gpus in slots.items():
        if card is not None and slot is not None and card != slot:
            yield "PCIe generation", f"card {card}, slot {slot}: {gpu_ranges(gpus)}"
    bridges = [
        f"{plain(gpu.pcie.limiting_hop)} above GPU {gpu.index}"
        for gpu in machine.gpus
        if gpu.pcie.limiting_hop is not None
    ]
    if bridges and not machine.pci:  # the tree shows them at their position
        yield "Slower than the card", ", ".join(bridges)


def link_is_slow_while_idle(gpu: Gpu) -> bool:
    """Return whether the PCIe generation is below its maximum on a GPU that was not observed under load."""
    now, top = gpu.pcie.gen_now, gpu.pcie.gen_max
    return now is not None and top is not None and now < top and not under_load(gpu)


def health_rows(machine: Machine, findings: Sequence[Finding] = ()) -> list[tuple[str, str]]:
    """Return (`GPU 0-3`, words) for what no finding reports, in the order of the GPUs; each label once."""
    unseen = not machine.pci and not any(link.nvlinks for link in machine.links)
    ids = {
        gpu.index: {finding.id for finding in findings if gpu.index in finding.subject.gpus}
        for gpu in machine.gpus
    }
    states = grouped(
        (words, gpu.index)
        for gpu in machine.gpus
        for words in _health_words(gpu, ids[gpu.index], with_nvlinks=unseen)
    )
    by_gpus = grouped((gpu_ranges(gpus), words) for words, gpus in states.items())
    return [
        (label if number == 0 else "", plain(words))
        for label, all_words in by_gpus.items()
        for number, words in enumerate(all_words)
    ]


def _health_words(gpu: Gpu, ids: Collection[str], *, with_nvlinks: bool) -> Iterator[str]:
    """Yield a GPU's settings, counters below their limits, and processes.

    `ids`: of its findings. `with_nvlinks`: matrix and tree do not show the number of its NVLinks.
    """
    if gpu.ecc.mode is False:
        yield "ECC is off"
    corrected = (gpu.ecc.corrected_volatile, gpu.ecc.corrected_aggregate)
    if any(corrected):
        now, ever = (0 if count is None else count for count in corrected)
        yield f"corrected ECC errors: {now} since the driver was loaded, {ever} in total"
    if gpu.remapped_rows.correctable:
        yield f"{gpu.remapped_rows.correctable} memory rows remapped after correctable errors"
    if gpu.pcie.replay_counter and "pcie.replays" not in ids:
        yield f"PCIe replays: {gpu.pcie.replay_counter}"
    if (errors := _nonzero(gpu.pcie.aer)) and "pcie.errors" not in ids:
        yield f"PCIe errors (AER): {errors}"
    bar1, memory = gpu.bar1_mib.total, gpu.memory_mib.total
    if bar1 is not None and memory is not None and 0 < bar1 < memory:
        yield f"BAR1 of {bar1} MiB is smaller than the memory of {memory} MiB"
    down = [link.link for link in gpu.nvlinks or () if link.active is False]
    if down and "nvlink.down" not in ids:
        yield f"NVLinks: {index_ranges(down)} down, of {len(gpu.nvlinks or ())}"
    for link in gpu.nvlinks or ():
        if (errors := _nonzero(link.errors)) and "nvlink.errors" not in ids:
            yield f"NVLink {link.link} errors: {errors}"
    if gpu.virtualization not in (None, "none"):
        yield f"virtualization: {gpu.virtualization}"
    if gpu.display_active:
        yield "drives a display"
    processes = gpu.processes or ()
    yield from map(_process_words, processes[:_PROCESSES_SHOWN])
    if len(processes) > _PROCESSES_SHOWN:
        yield f"and {len(processes) - _PROCESSES_SHOWN} more processes"
    speeds = [link.gb_per_s for link in gpu.nvlinks or () if link.active and link.gb_per_s is not None]
    if speeds and with_nvlinks:
        each = " or ".join(f"{speed:g}" for speed in sorted(set(speeds)))
        yield f"NVLinks: {len(speeds)} up, {each} GB/s per direction"


def _process_words(process: GpuProcess) -> str:
    """Return a process without the path and arguments of its program, which may identify people."""
    words = (process.name or "").split()
    name = words[0].replace("\\", "/").rstrip("/").rpartition("/")[2] if words else "name unknown"
    memory = None if process.memory_mib is None else f"{process.memory_mib} MiB"
    about = ", ".join(filter(None, (process.kind, process.user and f"user {process.user}", memory)))
    return f"process {process.pid} {name}{f' ({about})' if about else ''}"


def _nonzero(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in (counts or {}).items() if count)
