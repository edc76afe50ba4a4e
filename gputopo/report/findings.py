"""Findings as a block of a document, and what a watch found."""

from collections.abc import Sequence

from gputopo.findings import Finding
from gputopo.report.document import Block, Document, Item, Items, of_sections
from gputopo.report.layout import SEVERITY_STYLES
from gputopo.values.subject import subjects_in_words


def findings_block(findings: Sequence[Finding], *, nothing: str = "None.") -> Items:
    """Return findings in their order; those of one id, severity and remedy are one item."""
    groups: dict[tuple[str, str, str | None], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.id, finding.severity, finding.remedy), []).append(finding)
    return Items(
        tuple(
            Item(
                severity,
                id,
                subjects_in_words(one.subject for one in group),
                tuple(dict.fromkeys(one.says for one in group)),
                remedy,
            )
            for (id, severity, remedy), group in groups.items()
        ),
        nothing,
    )


def counts_in_words(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each severity: `1 error, 2 warnings`."""
    counts = [(sum(finding.severity == name for finding in findings), name) for name in SEVERITY_STYLES]
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts if count) or (
        "no findings"
    )


def watched_document(findings: Sequence[Finding], xid_reason: str | None) -> Document:
    """Return the findings of a watch, and what could not be watched."""
    not_watched: list[Block] = [] if xid_reason is None else [f"Xid errors: {xid_reason}"]
    return of_sections([("Seen while watching", [findings_block(findings)]), ("Not watched", not_watched)])
