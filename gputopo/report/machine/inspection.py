"""What `gputopo inspect` shows: the answer, the findings and one line per GPU; the rest on request."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from gputopo.reference import clock_event_words, throttle_reasons
from gputopo.report.document import Block, Document, Drawing, Rows, Styled, block_lines, of_sections
from gputopo.report.findings import SCREEN_WIDTH, TIMES, findings_block, short_findings, verdict, worst_by_gpu
from gputopo.report.layout import QUIET, SEVERITY_STYLES, plain
from gputopo.report.machine.facts import count_not_read, grouped_missing, not_read, reason_in_words
from gputopo.report.machine.gpus import gpu_notes, gpu_table, health_rows
from gputopo.report.machine.matrix import (
    PAIRS_SHOWN,
    is_summary,
    matrix_view,
    peer_rows,
    topology_in_words,
)
from gputopo.report.units import counted, gib
from gputopo.topology import class_name
from gputopo.values.facts import at_gpu, single_facts
from gputopo.values.fields import field_at, path_in_words
from gputopo.values.finding import Inspection
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import gpu_ranges, pairs_in_words
from gputopo.values.machine import Gpu, LineCounts, Machine, Unread

_UNREAD_SHOWN = 8  # the rest is in the JSON
_UNREAD_WIDTH = 100
_MATRIX_GPUS = 8  # with more, the first screen has no matrix

# Facts without a row.
_NO_ROWS = (
    "index",
    "uuid",
    "fingerprint",
    "name",
    "throttle",
    "processes",
    "nvlinks",
    "detail",
    "rings",
    "trees",
    "warnings",
)

_DRIVER_WORDS = {
    "no_device": "no NVIDIA device on this machine",
    "not_loaded": "not loaded",
    "library_missing": "libnvidia-ml.so.1 not found",
    "version_mismatch": "library and kernel module of different versions",
    "too_old": "older than the CUDA runtime",
    "not_ready": "waits for the fabric manager",
    "no_permission": "no permission to open /dev/nvidia*",
    "other_driver": "the device is bound to another kernel driver",
    "hung": "a call into the driver did not return",
    "crashed": "a call into the driver crashed",
    "failed": "not working",
}

Detail = Literal["all", "topology"] | Sequence[int]


def inspection_document(inspection: Inspection, detail: Detail | None = None, *, checks: int = 0) -> Document:
    """Return the answer, the findings and one line per GPU.

    `detail`: everything, the topology, or GPUs by index. `checks`: the number of checks that had data.
    """
    if detail is None:
        return _first_screen(inspection, checks)
    if detail == "all":
        return _whole(inspection, checks)
    if detail == "topology":
        return of_sections(_topology_sections(inspection.machine))
    return _of_gpus(inspection, detail, checks)


def _first_screen(inspection: Inspection, checks: int) -> Document:
    machine, findings = inspection.machine, inspection.findings
    serious = [finding for finding in findings if finding.severity != "info"]
    table = gpu_table(machine, worst_by_gpu(serious))
    gpus: list[Block] = [] if table is None else [table]
    rest = [
        *_short_topology(machine, calm=not serious, numa=table is None),
        *_short_nvlinks(machine),
        *_block_of(nccl_rows(machine)),
        *(Styled(words, QUIET) for words in _context(machine)),
    ]
    answer = Styled(
        verdict(machine, findings, checks), SEVERITY_STYLES[serious[0].severity] if serious else ""
    )
    lines = sum(len(block_lines(block, SCREEN_WIDTH)) for block in (answer, *gpus, *rest))
    items = short_findings(findings, above=len(block_lines(answer, SCREEN_WIDTH)), beside=lines)
    return of_sections([("", [answer, *([items] if items.items else [])]), ("", gpus), ("", rest)])


def _short_topology(machine: Machine, *, calm: bool, numa: bool) -> list[Block]:
    """Return the topology in words. If words cannot describe it and nothing is wrong, return a matrix.

    `numa`: with the NUMA nodes, which no table shows.
    """
    words = topology_in_words(machine)
    if not words or words.startswith("unknown between"):  # a finding reports unknown pairs
        return []
    nodes = grouped((gpu.numa_node, gpu.index) for gpu in machine.gpus if gpu.numa_node is not None)
    near = "; ".join(f"node {node}: {gpu_ranges(gpus)}" for node, gpus in sorted(nodes.items()))
    affinity = [f"NUMA {near}."] if numa and near else []
    if is_summary(words) and calm and len(machine.gpus) <= _MATRIX_GPUS:
        matrix = Drawing(lambda width: matrix_view(machine, width, short=True))
        return [matrix, *(Styled(sentence, "") for sentence in affinity)]
    return [" ".join([f"Topology: {words}.", *affinity])]


def _short_nvlinks(machine: Machine) -> list[Block]:
    """Return how many NVLinks are up and what is unknown about them, if no topology shows them."""
    if machine.links or (not any(gpu.nvlinks for gpu in machine.gpus) and "nvlink" not in machine.source):
        return []
    states: dict[str, list[int]] = {}
    for gpu in machine.gpus:
        up = [link.active for link in gpu.nvlinks or () if link.active is not None]
        why = machine.missing.get(at_gpu(gpu.index, "nvlinks"), "no state")
        state = f"{sum(up)} of {len(up)} up on" if up else f"not known ({why}) of"
        states.setdefault(state, []).append(gpu.index)
    words = "; ".join(f"{state} {gpu_ranges(gpus)}" for state, gpus in states.items())
    return [
        plain(f"NVLinks: {words}. The capture does not show which GPUs they connect; add nvidia-smi topo -m.")
    ]


def _context(machine: Machine) -> Iterator[str]:
    """Yield the host and the driver, what was read and what was not, and how to see details."""
    host = machine.host
    cpu = re.sub(r"\((?:R|TM)\)| CPU| @.*", "", host.cpu_model or "")
    driver = machine.driver
    cuda = f"CUDA {driver.cuda_version}" if driver.cuda_version else None
    versions = ", ".join(filter(None, (_DRIVER_WORDS.get(driver.status), driver.version, cuda)))
    known = [
        f"{f'{host.sockets} {TIMES} ' if host.sockets else ''}{cpu}" if cpu else "",
        f"{gib(host.memory_mib)} memory" if host.memory_mib else "",
        f"{host.virtual_machine} virtual machine" if host.virtual_machine not in (None, "none") else "",
        f"container ({host.container})" if host.container not in (None, "none") else "",
        f"driver {versions}" if versions and driver.status != "no_device" else "",
    ]
    if any(known):
        words = ", ".join(filter(None, known))
        yield plain(f"{words[0].upper()}{words[1:]}.")
    yield from (f"{label}: {words}." for label, words in _sample_rows(machine))
    missed, unread = sum(line.not_understood for line in machine.lines), count_not_read(machine)
    sentences = [
        f"Source: {plain(machine.source)}." if machine.source != "live" else "",
        f"{counted(unread, 'value')} not read." if unread else "",
        f"{counted(missed, 'line')} not understood." if missed else "",
        "Details: --all, --topology, -i N.",
    ]
    yield " ".join(filter(None, sentences))


def _whole(inspection: Inspection, checks: int) -> Document:
    machine, findings = inspection.machine, inspection.findings
    serious = [finding for finding in findings if finding.severity != "info"]
    table = gpu_table(machine, worst_by_gpu(serious), whole=True)
    missing = not_read(machine)
    nothing = "No problems found in the data available. Missing data was not checked." if missing else "None."
    unread = (
        (who, f"{reason_in_words(why)}: {facts}") for (who, why), facts in grouped_missing(missing).items()
    )
    return of_sections(
        [
            ("", [verdict(machine, findings, checks)]),
            ("Findings", [findings_block(findings, nothing=nothing)]),
            ("Machine", _block_of(about_rows(machine))),
            ("GPUs", [] if table is None else [table, *_block_of(gpu_notes(machine))]),
            *_topology_sections(machine),
            ("Health", _block_of(health_rows(machine, findings))),
            ("Lines not understood", _block_of(_unread_lines(machine.unread))),
            ("Not read", _block_of(unread)),
        ]
    )


def _topology_sections(machine: Machine) -> list[tuple[str, list[Block]]]:
    from gputopo.report.machine.tree import pci_branches, tree_view  # the first screen does not need it

    tree: list[Block] = [Drawing(lambda width: tree_view(machine, width))] if pci_branches(machine) else []
    return [
        ("Topology", _topology(machine)),
        ("PCI tree", tree),
        ("Network ports", _block_of(port_rows(machine))),
    ]


def _of_gpus(inspection: Inspection, indices: Sequence[int], checks: int) -> Document:
    """Return the findings about some GPUs, and all facts of each GPU, one row per part."""
    machine = inspection.machine
    shown = [gpu for gpu in machine.gpus if gpu.index in indices]
    findings = [finding for finding in inspection.findings if set(indices).intersection(finding.subject.gpus)]
    only_shown = msgspec.structs.replace(machine, gpus=tuple(shown))
    return of_sections(
        [
            ("", [verdict(only_shown, findings, checks)]),
            ("Findings", [findings_block(findings)] if findings else []),
            *((f"GPU {gpu.index}", _block_of(_facts_of(gpu, machine))) for gpu in shown),
            ("Health", _block_of(health_rows(only_shown, findings))),
        ]
    )


def _facts_of(gpu: Gpu, machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield the facts of a GPU, one row per part, and how near the other GPUs are."""
    for part, words in _facts_in_words(gpu).items():
        yield path_in_words(Gpu, part), ", ".join(words)
    if throttled := clock_event_words(throttle_reasons(gpu.throttle)):
        yield "throttled", ", ".join(throttled)
    others = [other_gpu.index for other_gpu in machine.gpus if other_gpu is not gpu]
    links = grouped((class_name(machine.link(gpu.index, other)), other) for other in others)
    if links:
        yield "Topology", "; ".join(f"{name} {gpu_ranges(gpus)}" for name, gpus in links.items())


def _facts_in_words(value: msgspec.Struct) -> dict[str, list[str]]:
    """Return the known facts of a value in words, by its parts: {"pcie": ["gen now 3", ...]}."""
    parts: dict[str, list[str]] = {}
    for path, fact in single_facts(value):
        field = field_at(type(value), path)
        part, _, rest = path.partition(".")
        if part in _NO_ROWS or "[" in part or not field.is_known(fact) or (field.counter and not fact):
            continue
        value_words = " ".join(map(str, fact)) if isinstance(fact, tuple) else field.value_in_words(fact)
        words = re.sub(r"[._]", " ", rest)
        parts.setdefault(part, []).append(plain(f"{words} {value_words}".strip()))
    return parts


def _facts_row(label: str, value: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Yield the known facts of a value as a row; nothing if none is known."""
    facts = _facts_in_words(value).items()
    if facts:
        yield (
            label,
            ", ".join(f"{path_in_words(type(value), part)} {', '.join(words)}" for part, words in facts),
        )


def _block_of(rows: Iterable[tuple[str, str]]) -> list[Block]:
    """Return a block of rows; empty if there are no rows."""
    listed = tuple(rows)
    return [Rows(listed)] if listed else []


def nccl_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield a row of what NCCL reports about itself, and a row of the pairs of each transport."""
    if machine.nccl is None:
        return
    yield from _facts_row("NCCL", machine.nccl)
    pairs = grouped((", ".join(link.nccl), (link.a, link.b)) for link in machine.links if link.nccl)
    for transport, transport_pairs in pairs.items():
        yield "", plain(f"{transport}: {pairs_in_words(transport_pairs, max_named=PAIRS_SHOWN)}")


def _topology(machine: Machine) -> list[Block]:
    if not machine.gpus:
        return []
    if topology_in_words(machine).startswith("unknown between all"):
        return ["Unknown for all pairs of GPUs.", *_block_of(nccl_rows(machine))]
    return [
        Drawing(lambda width: matrix_view(machine, width)),
        *_block_of([*peer_rows(machine), *nccl_rows(machine)]),
    ]


def _unread_lines(unread: Sequence[Unread]) -> Iterable[tuple[str, str]]:
    """Yield the first lines that were not understood, each with its source and line number."""
    for line in unread[:_UNREAD_SHOWN]:
        text = line.text if len(line.text) <= _UNREAD_WIDTH else f"{line.text[: _UNREAD_WIDTH - 3]}..."
        yield f"{line.source}:{line.line}", text
    if len(unread) > _UNREAD_SHOWN:
        yield "", f"and {len(unread) - _UNREAD_SHOWN} more; --json has them all"


def about_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return the facts of the host and the driver, and the source, as rows of a label and words."""
    rows = [*_facts_row("Host", machine.host)]
    for node in machine.host.numa_nodes or ():
        rows += _facts_row(f"NUMA {node.index}", node)
    rows += [*_facts_row("Driver", machine.driver), ("Source", plain(machine.source))]
    if any(capture.not_understood for capture in machine.lines):
        rows.append(("Lines", _lines_words(machine.lines)))
        if len(machine.lines) > 1:
            rows += [("", f"{plain(line.source)}: {_lines_words([line])}") for line in machine.lines]
    return [*rows, *_sample_rows(machine)]


def _lines_words(lines: Sequence[LineCounts]) -> str:
    read, known = sum(line.read for line in lines), sum(line.known for line in lines)
    missed = sum(line.not_understood for line in lines)
    return f"{counted(read + known + missed, 'line')}: {read} read, {known} known, {missed} not understood"


def _sample_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    samples = machine.samples
    count = max((history.samples for history in machine.series), default=len(samples))
    if len(samples) > 1:
        times = [sample.time for sample in samples if sample.time is not None]
        when = f", {plain(times[0])} to {plain(times[-1])}" if len(times) > 1 else ""
        shown = "last" if times else "first"
        yield "Samples", f"{count}{when}; changing values are from the {shown} one, findings of all"


def port_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return (`mlx5_0`, words) for each port of a card without a node in the PCI tree."""
    nodes = {node.address for node in machine.pci}
    return [
        row
        for nic in machine.nics
        if nic.pci_address not in nodes
        for port in nic.ports or ()
        for row in _facts_row(plain(port.name), port)
    ]
