"""The GPUs of a machine as a table, and what its columns do not show."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gputopo.reference.clock_events import idle, under_load
from gputopo.reference.expectations import name_of
from gputopo.report.document import Table
from gputopo.report.layout import LOST, NOT_ASKED, SEVERITY_STYLES, UNKNOWN, Column, Side, plain
from gputopo.values.finding import Finding
from gputopo.values.index_ranges import gpu_ranges, index_ranges
from gputopo.values.machine import Gpu, GpuProcess, Machine
from gputopo.values.subject import at_gpu, label, reason_for

_NAME_WIDTH = 34  # longer names are folded
_LOST = SEVERITY_STYLES["error"]


class _Facts(msgspec.Struct, frozen=True):
    """A column: its head, and the paths of the facts in a cell, with a slash between them."""

    head: str
    paths: tuple[str, ...]
    side: Side = "right"
    before: str = ""


_GENERATION = ("pcie.gen_now", "pcie.gen_max")
_IDLE_MARK = "*"

_LINK = (
    _Facts("Name", ("name",), "left"),
    _Facts("PCI address", ("pci_address",), "left"),
    _Facts("NUMA", ("numa_node",)),
    _Facts("PCIe gen\nnow/max", _GENERATION),
    _Facts("Lanes\nnow/max", ("pcie.width_now", "pcie.width_max"), before="x"),
)
_STATE = (
    _Facts("P-state", ("pstate",)),
    _Facts("Graphics MHz\nnow/max", ("clocks_mhz.graphics.now", "clocks_mhz.graphics.max")),
    _Facts("Memory MHz\nnow/max", ("clocks_mhz.memory.now", "clocks_mhz.memory.max")),
    _Facts("Power W\nnow/limit", ("power_w.draw", "power_w.limit")),
    _Facts("Temp\nC", ("temperature_c.gpu",)),
    _Facts("Fan\n%", ("fan_percent",)),
    _Facts("Load\n%", ("utilization_percent.gpu",)),
    _Facts("Memory MiB\nused/total", ("memory_mib.used", "memory_mib.total")),
)


def gpu_table(machine: Machine) -> Table | None:
    """Return the table of the GPUs; None if the matrix shows as much.

    `?` is a fact that was asked for and not given (the reason stands in `Machine.missing`), `-` one that
    the source does not report. A column without any fact is left out.
    """
    head = Column("GPU", tuple(label(machine, gpu) for gpu in machine.gpus), "right")
    shown = [
        tuple(_column(machine, facts) for facts in group if _is_shown(machine, facts))
        for group in (_LINK, _STATE)
    ]
    if [column.head for group in shown for column in group] in ([], ["NUMA"]):
        return None  # the matrix shows the NUMA nodes
    return Table(head, tuple(group for group in shown if group))


# Heads of the columns that go first where the screen is narrow; the model only where all have the same.
_OPTIONAL = ("NUMA", "Temp C", "Load %", "Name", "Power W", "Memory GiB", "PCIe", "Memory MHz")
_SHORT = (
    _Facts("Memory MHz", ("clocks_mhz.memory.now", "clocks_mhz.memory.max")),
    _Facts("PCIe", ("pcie.gen_now", "pcie.width_now")),
    _Facts("NUMA", ("numa_node",)),
    _Facts("Temp C", ("temperature_c.gpu",)),
    _Facts("Power W", ("power_w.draw", "power_w.limit")),
    _Facts("Load %", ("utilization_percent.gpu",)),
    _Facts("Memory GiB", ("memory_mib.used", "memory_mib.total")),
)


def short_gpu_table(machine: Machine, worst: Mapping[int, str]) -> Table | None:
    """Return one line for each GPU; None where nothing is known of them. `worst`: severity of its finding."""
    gpus = machine.gpus
    shown = [facts for facts in _SHORT if _is_shown(machine, facts)]
    named = any(map(name_of, gpus))
    if not worst and [facts.head for facts in shown] in ([], ["NUMA"]) and not named:
        return None
    names = tuple(_name(machine, gpu) for gpu in gpus)
    columns = [Column("Name", names, max_width=_NAME_WIDTH)] if named else []
    for facts in shown:
        cells = tuple(_short_cell(machine, gpu, facts) for gpu in gpus)
        columns.append(Column(facts.head, cells, facts.side))
    found = tuple(LOST if gpu.lost else worst.get(gpu.index, "") for gpu in gpus)
    if any(found):
        columns.append(
            Column("Finding", found, styles=tuple(SEVERITY_STYLES.get(one, _LOST) for one in found))
        )
    one_model = len({*filter(None, map(name_of, gpus))}) < 2
    optional = ("Name", *_OPTIONAL) if one_model else _OPTIONAL
    slow = any(link_is_slow_while_idle(gpu) for gpu in gpus)
    notes = (f"{_IDLE_MARK} an idle GPU lowers its PCIe generation",) if slow else ()
    head = Column("GPU", tuple(label(machine, gpu) for gpu in gpus), "right")
    return Table(head, (tuple(columns),), notes, optional=optional)


def _name(machine: Machine, gpu: Gpu) -> str:
    name = name_of(gpu)
    return plain(name.removeprefix("NVIDIA ")) if name else _absent(machine, gpu, "name")


def _short_cell(machine: Machine, gpu: Gpu, facts: _Facts) -> str:
    """Return a cell of the short table: sizes in GiB, the PCIe link as `gen4 x16` or `gen1/4 x8/16`."""
    if facts.head == "Memory GiB":
        sizes = [None if (mib := _fact(gpu, path)) is None else f"{mib / 1024:.1f}" for path in facts.paths]
        if any(sizes):
            return "/".join(size or _absent(machine, gpu, facts.paths[0]) for size in sizes)
    if facts.head != "PCIe":
        return _cell(machine, gpu, facts)
    link = gpu.pcie
    known = [
        f"{before}{now}{f'/{top}' if top is not None and top != now else ''}"
        for before, now, top in (("gen", link.gen_now, link.gen_max), ("x", link.width_now, link.width_max))
        if now is not None
    ]
    mark = _IDLE_MARK if link_is_slow_while_idle(gpu) else ""
    return f"{' '.join(known)}{mark}" if known else _absent(machine, gpu, facts.paths[0])


def _column(machine: Machine, facts: _Facts) -> Column:
    cells = tuple(_cell(machine, gpu, facts) for gpu in machine.gpus)
    idle = [facts.paths == _GENERATION and link_is_slow_while_idle(gpu) for gpu in machine.gpus]
    if any(idle):  # no fault, nor proof of the full speed
        cells = tuple(cell + (_IDLE_MARK if slow else " ") for cell, slow in zip(cells, idle, strict=True))
    return Column(facts.head, cells, facts.side, _NAME_WIDTH if facts.paths == ("name",) else None)


def _is_shown(machine: Machine, facts: _Facts) -> bool:
    """Whether any GPU has a fact of the column, or one that answers was asked for it by a working driver."""
    asked = machine.driver.status in ("ok", "not_read", "hung", "crashed")
    return any(
        _fact(gpu, path) is not None
        or (asked and not gpu.lost and reason_for(machine.missing, at_gpu(gpu.index, path)) is not None)
        for gpu in machine.gpus
        for path in facts.paths
    )


def _cell(machine: Machine, gpu: Gpu, facts: _Facts) -> str:
    values = [_fact(gpu, path) for path in facts.paths]
    if gpu.lost and facts.paths == ("pstate",):
        return LOST
    if all(value is None for value in values):
        return _absent(machine, gpu, facts.paths[0])
    return "/".join(
        _absent(machine, gpu, path) if value is None else facts.before + _shown(value)
        for path, value in zip(facts.paths, values, strict=True)
    )


def _absent(machine: Machine, gpu: Gpu, path: str) -> str:
    return NOT_ASKED if reason_for(machine.missing, at_gpu(gpu.index, path)) is None else UNKNOWN


def _fact(gpu: Gpu, path: str) -> Any:
    value: Any = gpu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float) else plain(str(value))


def gpu_notes(machine: Machine) -> Iterator[tuple[str, str]]:
    """Return what the columns do not show: other numberings, idle links, slow slots and bridges."""
    slow = [gpu for gpu in machine.gpus if link_is_slow_while_idle(gpu)]
    if slow:
        loads = {
            "unknown while idle": [gpu.index for gpu in slow if idle(gpu)],
            "load unknown": [gpu.index for gpu in slow if not idle(gpu)],
        }
        words = ", ".join(f"{load}: {gpu_ranges(gpus)}" for load, gpus in loads.items() if gpus)
        yield f"PCIe gen {_IDLE_MARK}", f"{words}; an idle GPU lowers its PCIe generation"
    slots: dict[tuple[int, int], list[int]] = {}
    bridges: list[str] = []
    for gpu in machine.gpus:
        card, slot = gpu.pcie.gen_max_device, gpu.pcie.gen_max_host
        if card is not None and slot is not None and card != slot:
            slots.setdefault((card, slot), []).append(gpu.index)
        if gpu.pcie.limiting_hop is not None and not machine.pci:  # the tree shows it in its place
            bridges.append(f"{plain(gpu.pcie.limiting_hop)} above GPU {gpu.index}")
    for (card, slot), gpus in slots.items():
        yield "PCIe generation", f"card {card}, slot {slot}: {gpu_ranges(gpus)}"
    if bridges:
        yield "Slower than the card", ", ".join(bridges)


def link_is_slow_while_idle(gpu: Gpu) -> bool:
    """Return whether the PCIe generation is below its maximum on a GPU that was not seen under load."""
    now, top = gpu.pcie.gen_now, gpu.pcie.gen_max
    return now is not None and top is not None and now < top and not under_load(gpu)


_PROCESSES_SHOWN = 8  # of one GPU; the rest is in the JSON


def health_rows(machine: Machine, findings: Sequence[Finding] = ()) -> list[tuple[str, str]]:
    """Return (`GPU 0-3`, words) of what no finding reports, in the order of the GPUs; a label once."""
    states: dict[str, list[int]] = {}
    unseen = not machine.pci and not any(link.nvlinks for link in machine.links)
    for gpu in machine.gpus:
        found = {one.id for one in findings if gpu.index in one.subject.gpus}
        for words in (*health_words(gpu, found), *(_nvlinks_up(gpu) if unseen else ())):
            states.setdefault(words, []).append(gpu.index)
    by_gpus: dict[str, list[str]] = {}
    for words, gpus in states.items():
        by_gpus.setdefault(gpu_ranges(gpus), []).append(words)
    return [
        (label if number == 0 else "", plain(words))
        for label, all_words in by_gpus.items()
        for number, words in enumerate(all_words)
    ]


def health_words(gpu: Gpu, found: Collection[str] = ()) -> Iterator[str]:
    """Return settings, counters below their limits and processes of a GPU. `found`: ids of its findings."""
    if gpu.ecc.mode is False:
        yield "ECC is off"
    corrected = (gpu.ecc.corrected_volatile, gpu.ecc.corrected_aggregate)
    if any(corrected):
        now, ever = (0 if count is None else count for count in corrected)
        yield f"corrected ECC errors: {now} since the driver was loaded, {ever} in all"
    if gpu.remapped_rows.correctable:
        yield f"{gpu.remapped_rows.correctable} memory rows remapped after correctable errors"
    if gpu.pcie.replay_counter and "pcie.replays" not in found:
        yield f"PCIe replays: {gpu.pcie.replay_counter}"
    if (errors := _nonzero(gpu.pcie.aer)) and "pcie.errors" not in found:
        yield f"PCIe errors (AER): {errors}"
    bar1, memory = gpu.bar1_mib.total, gpu.memory_mib.total
    if bar1 is not None and memory is not None and 0 < bar1 < memory:
        yield f"BAR1 of {bar1} MiB is smaller than the memory of {memory} MiB"
    down = [link.link for link in gpu.nvlinks or () if link.active is False]
    if down and "nvlink.down" not in found:
        yield f"NVLinks: {index_ranges(down)} down, of {len(gpu.nvlinks or ())}"
    for link in gpu.nvlinks or ():
        if (errors := _nonzero(link.errors)) and "nvlink.errors" not in found:
            yield f"NVLink {link.link} errors: {errors}"
    if gpu.virtualization not in (None, "none"):
        yield f"virtualization: {gpu.virtualization}"
    if gpu.display_active:
        yield "drives a display"
    yield from _processes(gpu.processes or ())


def short_process_name(name: str | None) -> str:
    """Return the name of the program without path and arguments, which may identify people."""
    words = (name or "").split()
    return words[0].replace("\\", "/").rstrip("/").rpartition("/")[2] if words else "name unknown"


def _nvlinks_up(gpu: Gpu) -> Iterator[str]:
    """Return the speeds of the active NVLinks; matrix and tree show their number."""
    speeds = [link.gb_per_s for link in gpu.nvlinks or () if link.active and link.gb_per_s is not None]
    if speeds:
        each = " or ".join(f"{speed:g}" for speed in sorted(set(speeds)))
        yield f"NVLinks: {len(speeds)} up, {each} GB/s per direction"


def _processes(processes: tuple[GpuProcess, ...]) -> Iterator[str]:
    for process in processes[:_PROCESSES_SHOWN]:
        known = [
            process.kind,
            process.user and f"user {process.user}",
            None if process.memory_mib is None else f"{process.memory_mib} MiB",
        ]
        about = ", ".join(word for word in known if word)
        name = short_process_name(process.name)
        yield f"process {process.pid} {name}{f' ({about})' if about else ''}"
    if len(processes) > _PROCESSES_SHOWN:
        yield f"and {len(processes) - _PROCESSES_SHOWN} more processes"


def _nonzero(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in (counts or {}).items() if count)
