"""What `gputopo inspect` shows: the machine, its matrix, the findings, what is in doubt or missing."""

from collections.abc import Iterable, Sequence

from gputopo.findings import Inspection
from gputopo.report.document import Block, Document, Drawing, Rows, Styled, of_sections
from gputopo.report.findings import findings_block, findings_title
from gputopo.report.layout import SEVERITY_STYLES
from gputopo.report.machine.about import about_rows, port_rows
from gputopo.report.machine.facts import grouped_missing, not_read, reason_in_words
from gputopo.report.machine.gpus import gpu_notes, gpu_table, order_warning
from gputopo.report.machine.health import health_rows
from gputopo.report.machine.matrix import matrix_view, peer_rows
from gputopo.report.machine.tree import pci_branches, tree_view
from gputopo.values.machine import Machine, Unread

_UNREAD_SHOWN = 8  # the rest is in the JSON
_UNREAD_WIDTH = 100


def inspection_document(inspection: Inspection) -> Document:
    """Return all that an inspection has to show."""
    machine = inspection.machine
    missing = not_read(machine)
    nothing = "None in what was read. What was not read was not checked." if missing else "None."
    found = findings_block(inspection.findings, nothing=nothing)
    contradictions = (
        (one.fact, "; ".join(f"{source}: {words}" for source, words in one.said.items()))
        for one in machine.contradictions
    )
    unread = (
        (who, f"{reason_in_words(why)}: {facts}") for (who, why), facts in grouped_missing(missing).items()
    )
    tree = [Drawing(lambda width: tree_view(machine, width))] if pci_branches(machine) else []
    return of_sections(
        [
            ("Machine", rows(about_rows(machine))),
            ("GPUs", _gpus(machine)),
            ("Topology", _topology(machine)),
            ("PCI tree", tree),
            ("Network ports", rows(port_rows(machine))),
            ("Health", rows(health_rows(machine))),
            (findings_title(inspection.findings), [found]),
            ("Contradictions (the first one is used)", rows(contradictions)),
            ("Lines not understood", rows(_lines(machine.unread))),
            ("Not read", rows(unread)),
        ]
    )


def rows(of: Iterable[tuple[str, str]]) -> list[Block]:
    """Return a block of rows, none where there is no row."""
    found = tuple(of)
    return [Rows(found)] if found else []


def _gpus(machine: Machine) -> list[Block]:
    if not machine.gpus and machine.driver.status == "no_device":
        return ["No NVIDIA device is on the PCI bus of this machine."]
    if not machine.gpus:
        return ["None is known."]
    table = gpu_table(machine)
    if table is None:
        return []  # the matrix shows as much
    warning = order_warning(machine)
    styled = [Styled(warning, SEVERITY_STYLES["warning"])] if warning else []
    return [table, *rows(gpu_notes(machine)), *styled]


def _topology(machine: Machine) -> list[Block]:
    if not machine.gpus:
        return []
    return [Drawing(lambda width: matrix_view(machine, width)), *rows(peer_rows(machine))]


def _lines(unread: Sequence[Unread]) -> Iterable[tuple[str, str]]:
    """Return the first lines that were not understood, each with its source and number."""
    for one in unread[:_UNREAD_SHOWN]:
        text = one.text if len(one.text) <= _UNREAD_WIDTH else f"{one.text[: _UNREAD_WIDTH - 3]}..."
        yield f"{one.source}:{one.line}", text
    if len(unread) > _UNREAD_SHOWN:
        yield "", f"and {len(unread) - _UNREAD_SHOWN} more; --json has them all"
