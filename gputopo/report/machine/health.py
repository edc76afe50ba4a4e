"""State, errors and modes of each GPU beyond the tables; what several GPUs share is written once."""

from collections.abc import Iterator, Mapping

from gputopo.findings.usage import idle
from gputopo.reference.clock_events import in_words, reasons_of
from gputopo.report.layout import plain
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, GpuProcess, Machine

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
