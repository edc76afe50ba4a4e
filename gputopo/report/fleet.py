"""Several hosts compared: their kinds, what differs on outliers, and what most of them share."""

from collections.abc import Sequence

from gputopo.findings.fleet import Fleet
from gputopo.report.document import Document, Rows, of_sections
from gputopo.report.findings import counts_in_words, findings_block
from gputopo.report.layout import plain
from gputopo.report.units import counted

_NOTHING = "None: no host differs from the others of its kind."
_NAMED = 8  # hosts of a kind; the rest is in the JSON


def fleet_document(fleet: Fleet) -> Document:
    """Return the hosts by kind, and the findings of single hosts and of most of them."""
    return of_sections(
        [
            ("", [_answer(fleet)]),
            ("Hosts", [Rows(tuple(_rows(fleet)))]),
            ("Findings of single hosts", [findings_block(fleet.findings, nothing=_NOTHING)]),
            ("Findings of most hosts", [findings_block(fleet.shared)] if fleet.shared else []),
        ]
    )


def _answer(fleet: Fleet) -> str:
    """Return how many hosts are like their peers, and which are not."""
    count = sum(len(kind.hosts) for kind in fleet.kinds) + len(fleet.unread)
    verb = "differ" if len(fleet.outliers) > 1 else "differs"
    odd = [
        *([f"{len(fleet.outliers)} {verb} ({_names(fleet.outliers)})"] if fleet.outliers else []),
        *([f"{len(fleet.unread)} not read ({_names(fleet.unread)})"] if fleet.unread else []),
    ]
    found = counts_in_words(fleet.findings)
    return f"{counted(count, 'host')}: {', '.join(odd) or 'no outlier'}. {found.capitalize()}."


def _rows(fleet: Fleet) -> list[tuple[str, str]]:
    """Return the kinds with their hosts, the hosts without a reading, and the outliers."""
    rows = []
    for kind in fleet.kinds:
        facts = counted(kind.compared, "fact") if len(kind.hosts) > 1 else "no facts"
        words = plain(f"{kind.name}: {_names(kind.hosts)}; {facts} compared")
        rows.append((counted(len(kind.hosts), "host"), words))
    if fleet.unread:
        rows.append(("Not read", _names(fleet.unread)))
    if fleet.outliers:
        rows.append(("Outliers", _names(fleet.outliers)))
    return rows


def _names(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return plain(", ".join(hosts[:_NAMED]) + more)
