"""The GPUs of a machine as a table, and what its columns do not show."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gputopo.findings.usage import idle, under_load
from gputopo.reference.clock_events import in_words, reasons_of
from gputopo.report.document import Table
from gputopo.report.layout import LOST, NOT_ASKED, UNKNOWN, Column, Side, plain
from gputopo.report.machine.facts import reason_for
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, GpuProcess, Machine
from gputopo.values.subject import at_gpu

_CUDA_ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"
_NAME_WIDTH = 34  # longer names are folded


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
    head = Column("GPU", tuple(str(gpu.index) for gpu in machine.gpus), "right")
    shown = [
        tuple(_column(machine, facts) for facts in group if _is_shown(machine, facts))
        for group in (_LINK, _STATE)
    ]
    if [column.head for group in shown for column in group] in ([], ["NUMA"]):
        return None  # the matrix shows the NUMA nodes
    return Table(head, tuple(group for group in shown if group))


def _column(machine: Machine, facts: _Facts) -> Column:
    cells = tuple(_cell(machine, gpu, facts) for gpu in machine.gpus)
    if facts.paths == _GENERATION:
        cells = _with_idle_marks(machine, cells)
    return Column(facts.head, cells, facts.side, _NAME_WIDTH if facts.paths == ("name",) else None)


def _is_shown(machine: Machine, facts: _Facts) -> bool:
    """Whether any GPU has a fact of the column, or a working driver was asked for one."""
    asked = machine.driver.status in ("ok", "not_read", "hung", "crashed")
    return any(
        _fact(gpu, path) is not None
        or (asked and reason_for(machine.missing, at_gpu(gpu.index, path)) is not None)
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


def _with_idle_marks(machine: Machine, cells: tuple[str, ...]) -> tuple[str, ...]:
    """Mark a generation below the maximum on an idle GPU: that is no fault, nor proof of the full speed."""
    idle = [link_is_slow_while_idle(gpu) for gpu in machine.gpus]
    if not any(idle):
        return cells
    return tuple(cell + (_IDLE_MARK if slow else " ") for cell, slow in zip(cells, idle, strict=True))


def gpu_notes(machine: Machine) -> Iterator[tuple[str, str]]:
    """Return what the columns do not show: other numberings, idle links, slow slots and bridges."""
    yield from index_rows(machine)
    slow = [gpu for gpu in machine.gpus if link_is_slow_while_idle(gpu)]
    if slow:
        loads = {
            "unknown while idle": [gpu.index for gpu in slow if idle(gpu)],
            "load unknown": [gpu.index for gpu in slow if not idle(gpu)],
        }
        words = ", ".join(f"{load}: GPU {index_ranges(gpus)}" for load, gpus in loads.items() if gpus)
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
        yield "PCIe generation", f"card {card}, slot {slot}: GPU {index_ranges(gpus)}"
    if bridges:
        yield "Slower than the card", ", ".join(bridges)


def link_is_slow_while_idle(gpu: Gpu) -> bool:
    """Return whether the PCIe generation is below its maximum on a GPU that was not seen under load."""
    now, top = gpu.pcie.gen_now, gpu.pcie.gen_max
    return now is not None and top is not None and now < top and not under_load(gpu)


def index_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """Return the numberings as one row: PCI order, NVML, CUDA, TensorFlow. None if CUDA was not asked."""
    gpus = machine.gpus
    asked = any(
        gpu.cuda_index is not None or reason_for(machine.missing, at_gpu(gpu.index, "cuda_index"))
        for gpu in gpus
    )
    if not asked:
        return
    # TensorFlow numbers the GPUs that CUDA shows it, from 0; CUDA leaves out those that do not answer.
    answering = [gpu.index for gpu in gpus if not gpu.lost]
    place = {index: number for number, index in enumerate(answering)}
    nvml = _numbers([gpu.index for gpu in gpus])
    cuda = _numbers([gpu.cuda_index for gpu in gpus])
    tensorflow = _numbers([place.get(gpu.index) for gpu in gpus])
    yield "Index", f"NVML and PCI {nvml}, CUDA {cuda}, TensorFlow (gputopo) /GPU:{tensorflow}"


def order_warning(machine: Machine) -> str | None:
    """Return the warning where CUDA's default order differs from that of nvidia-smi, or may differ."""
    answering = [gpu for gpu in machine.gpus if not gpu.lost]
    if len(machine.gpus) < 2 or not list(index_rows(machine)):
        return None
    if all(gpu.cuda_index == place for place, gpu in enumerate(answering)):
        return None
    certain = all(gpu.cuda_index is not None for gpu in answering)
    fact = "differs" if certain else "may differ (the fastest GPU first)"
    return f"CUDA's default order {fact}: set {_CUDA_ORDER}, as gputopo run does"


def _numbers(values: Sequence[int | None]) -> str:
    """Return `0-3` for numbers that rise one by one, `1,0,2` for others, `?` for an unknown one."""
    if values and all(value is None for value in values):
        return "?"
    runs: list[list[int | None]] = []
    for value in values:
        if runs and value is not None and runs[-1][-1] is not None and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(_run(run) for run in runs)


def _run(run: Sequence[int | None]) -> str:
    first = "?" if run[0] is None else str(run[0])
    return first if len(run) == 1 else f"{first}-{run[-1]}"


_PROCESSES_SHOWN = 8  # of one GPU; the rest is in the JSON
_ECC_COUNTS = (
    ("uncorrected", "volatile", "uncorrected since the driver was loaded"),
    ("uncorrected", "aggregate", "uncorrected in all"),
    ("corrected", "volatile", "corrected since the driver was loaded"),
    ("corrected", "aggregate", "corrected in all"),
)


def health_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return (`GPU 0-3`, words) in the order of the GPUs; the label is empty where it repeats."""
    states: dict[str, list[int]] = {}
    unseen = not machine.pci and not any(link.nvlinks for link in machine.links)
    for gpu in machine.gpus:
        for words in (*health_words(gpu), *(_nvlinks_up(gpu) if unseen else ())):
            states.setdefault(words, []).append(gpu.index)
    by_gpus: dict[str, list[str]] = {}
    for words, gpus in states.items():
        by_gpus.setdefault(f"GPU {index_ranges(gpus)}", []).append(words)
    return [
        (label if number == 0 else "", plain(words))
        for label, all_words in by_gpus.items()
        for number, words in enumerate(all_words)
    ]


def health_words(gpu: Gpu) -> Iterator[str]:
    """Return what is not normal on one GPU, a sentence each."""
    # Some GPUs report a power cap while idle, which is no fault: see gputopo.findings.throttling.
    reasons = [one for one in reasons_of(gpu.throttle) if one != "sw_power_cap" or not idle(gpu)]
    if words := in_words(reasons):
        yield f"throttled: {', '.join(words)}"
    yield from _memory_errors(gpu)
    yield from _link_errors(gpu)
    yield from _nvlinks(gpu)
    yield from _modes(gpu)
    yield from _processes(gpu.processes or ())


def short_process_name(name: str | None) -> str:
    """Return the name of the program without path and arguments, which may identify people."""
    words = (name or "").split()
    return words[0].replace("\\", "/").rstrip("/").rpartition("/")[2] if words else "name unknown"


def _memory_errors(gpu: Gpu) -> Iterator[str]:
    ecc, rows, pages = gpu.ecc, gpu.remapped_rows, gpu.retired_pages
    if ecc.mode is not None and ecc.mode_pending is not None and ecc.mode != ecc.mode_pending:
        yield f"ECC is {_on(ecc.mode)}, and {_on(ecc.mode_pending)} after a reboot"
    elif ecc.mode is False:
        yield "ECC is off"
    counted = [
        f"{count} {words}" for what, since, words in _ECC_COUNTS if (count := getattr(ecc, f"{what}_{since}"))
    ]
    if counted:
        yield f"ECC errors: {', '.join(counted)}"
    if places := _nonzero(ecc.counts):
        yield f"ECC errors by place: {places}"
    remapped = [f"{n} {why}" for n, why in _causes(rows.correctable, rows.uncorrectable) if n]
    if remapped or rows.pending or rows.failure:
        yield _joined(
            f"remapped memory rows: {', '.join(remapped) or 'none yet'}",
            "one pending until a reset" if rows.pending else "",
            "remapping FAILED" if rows.failure else "",
        )
    few = [f"{n} {spare}" for n, spare in ((rows.banks.none, "without"), (rows.banks.low, "with few")) if n]
    if few:
        yield f"memory banks: {', '.join(few)} spare rows"
    repairs = (
        (ecc.channel_repair_pending, "repair of a memory channel pending"),
        (ecc.tpc_repair_pending, "repair of a TPC pending"),
        (ecc.unrepairable_memory, "unrepairable memory"),
    )
    yield from (words for present, words in repairs if present)
    retired = [
        f"{n} after {why} errors"
        for n, why in ((pages.single_bit, "single-bit"), (pages.double_bit, "double-bit"))
        if n
    ]
    if retired or pages.pending:
        waits = "one pending until a reboot" if pages.pending else ""
        yield _joined(f"retired memory pages: {', '.join(retired) or 'none yet'}", waits)


def _link_errors(gpu: Gpu) -> Iterator[str]:
    if gpu.pcie.replay_counter:
        yield f"PCIe replays: {gpu.pcie.replay_counter}"
    if errors := _nonzero(gpu.pcie.aer):
        yield f"PCIe errors (AER): {errors}"
    bar1, memory = gpu.bar1_mib.total, gpu.memory_mib.total
    if bar1 is not None and memory is not None and 0 < bar1 < memory:
        yield f"BAR1 of {bar1} MiB is smaller than the memory of {memory} MiB"


def _nvlinks(gpu: Gpu) -> Iterator[str]:
    links = gpu.nvlinks or ()
    down = [link.link for link in links if link.active is False]
    if down and len(down) == len(links):
        yield f"NVLinks: all {len(links)} are down"
    elif down:
        yield f"NVLinks: {index_ranges(down)} down, of {len(links)}"
    for link in links:
        if errors := _nonzero(link.errors):
            yield f"NVLink {link.link} errors: {errors}"


def _nvlinks_up(gpu: Gpu) -> Iterator[str]:
    """Return the speeds of the active NVLinks; matrix and tree show their number."""
    speeds = [link.gb_per_s for link in gpu.nvlinks or () if link.active and link.gb_per_s is not None]
    if speeds:
        each = " or ".join(f"{speed:g}" for speed in sorted(set(speeds)))
        yield f"NVLinks: {len(speeds)} up, {each} GB/s per direction"


def _modes(gpu: Gpu) -> Iterator[str]:
    mig = gpu.mig
    if mig.mode is not None and mig.mode_pending is not None and mig.mode != mig.mode_pending:
        yield f"MIG is {_on(mig.mode)}, and {_on(mig.mode_pending)} after a reset"
    elif mig.mode:
        yield "MIG is on" + ("" if mig.instances is None else f", {mig.instances} instances")
    if gpu.compute_mode not in (None, "default"):
        yield f"compute mode {(gpu.compute_mode or '').replace('_', ' ')}"
    if gpu.persistence_mode is False:
        yield "persistence mode is off"
    if gpu.virtualization not in (None, "none"):
        yield f"virtualization: {gpu.virtualization}"
    if gpu.display_active:
        yield "drives a display"


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


def _causes(correctable: int | None, uncorrectable: int | None) -> Iterator[tuple[int | None, str]]:
    yield uncorrectable, "after uncorrectable errors"
    yield correctable, "after correctable errors"


def _nonzero(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in (counts or {}).items() if count)


def _joined(*words: str) -> str:
    return "; ".join(word for word in words if word)


def _on(mode: bool) -> str:
    return "on" if mode else "off"
