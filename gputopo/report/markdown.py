"""An inspection as GitHub Markdown, to be pasted into a bug report."""

import re
from collections.abc import Iterable, Sequence

from gputopo.findings import Finding, Inspection
from gputopo.report.findings import grouped_findings, nothing_found
from gputopo.report.layout import Line, plain, printable, text_of
from gputopo.report.machine.about import about_rows
from gputopo.report.machine.facts import grouped_missing, not_read, reason_in_words
from gputopo.report.machine.gpus import gpu_columns, gpu_notes, order_warning
from gputopo.report.machine.health import health_rows
from gputopo.report.machine.matrix import matrix_view, peer_rows
from gputopo.report.machine.ports import port_rows
from gputopo.report.machine.tree import tree_view
from gputopo.values.machine import Machine
from gputopo.values.subject import subjects_in_words

_CODE_WIDTH = 120  # GitHub scrolls wider blocks sideways
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")
_MENTION = re.compile(r"@(?=\w)")


def markdown(inspection: Inspection) -> str:
    """Return the whole inspection as Markdown: tables, matrix and tree as code, the findings as a list."""
    machine = inspection.machine
    parts = [("Machine", table(("", ""), about_rows(machine)))]
    if machine.gpus:
        parts += [("GPUs", _gpus(machine)), ("Topology", _topology(machine))]
    if tree := tree_view(machine, _CODE_WIDTH):
        parts.append(("PCI tree", code(tree)))
    if ports := port_rows(machine):
        parts.append(("Network ports", table(("", ""), ports)))
    if health := _filled(health_rows(machine)):
        parts.append(("Health", table(("", ""), health)))
    parts.append(("Findings", findings_list(inspection.findings, nothing=nothing_found(machine))))
    if machine.contradictions:
        values = ((one.fact, "; ".join(f"{who}: {what}" for who, what in one.said.items()))
                for one in machine.contradictions)  # fmt: skip
        parts.append(("Contradictions (the first one is used)", table(("Fact", "Sources"), values)))
    if machine.unread:
        lines = [((f"{one.source}:{one.line}  {plain(one.text)}", ""),) for one in machine.unread]
        parts.append(("Lines not understood", code(lines)))
    if missing := not_read(machine):
        rows = ((who, reason_in_words(why), facts) for (who, why), facts in grouped_missing(missing).items())
        parts.append(("Not read", table(("", "Reason", "Facts"), rows)))
    return "\n".join(f"### {title}\n\n{body}" for title, body in parts)


def escaped(text: str) -> str:
    """Return text from outside with its markup escaped, on one line; `@name` notifies nobody."""
    return _MENTION.sub("&#64;", _MARKUP.sub(r"\\\1", plain(" ".join(text.splitlines()))))


def _gpus(machine: Machine) -> str:
    columns = gpu_columns(machine)
    heads = [column.head.replace("\n", " ") for column in columns]
    rows = list(zip(*(column.cells for column in columns), strict=True))
    sides = ["---:" if column.side == "right" else "---" for column in columns]
    notes = [f"- {escaped(label)}: {escaped(words)}\n" for label, words in gpu_notes(machine)]
    if warning := order_warning(machine):
        notes.append(f"- **{escaped(warning)}**\n")
    return table(heads, rows, sides) + ("\n" + "".join(notes) if notes else "")


def _topology(machine: Machine) -> str:
    peers = "".join(f"- {escaped(words)}\n" for _, words in peer_rows(machine))
    return code(matrix_view(machine, _CODE_WIDTH)) + (f"\nPeer access:\n\n{peers}" if peers else "")


def findings_list(findings: Sequence[Finding], *, nothing: str = "None.") -> str:
    """Return findings as a list; those that share a block on the screen share an item."""
    if not findings:
        return f"{nothing}\n"
    items = []
    for group in grouped_findings(findings):
        first = group[0]
        subjects = escaped(subjects_in_words(one.subject for one in group))
        items.append(f"- **{first.severity}** `{first.id}` ({subjects})\n")
        items += [f"  - {escaped(says)}\n" for says in dict.fromkeys(finding.says for finding in group)]
        if first.remedy:
            items.append(f"  - To do: {escaped(first.remedy)}\n")
    return "".join(items)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], sides: Sequence[str] = ()) -> str:
    """Return a table whose cells are shown as they are."""
    lines = [[escaped(head) for head in heads], list(sides) or ["---"] * len(heads)]
    lines += [[escaped(cell).strip() for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(lines: Iterable[Line]) -> str:
    """Return lines as a block that is shown as it is."""
    text = text_of(printable(lines))
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}{fence}\n"


def _filled(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return rows with the label repeated where the screen's table leaves it out."""
    filled: list[tuple[str, str]] = []
    for label, words in rows:
        filled.append((label or (filled[-1][0] if filled else ""), words))
    return filled
