"""Several hosts compared: their kinds, what differs on outliers, and what most of them share."""

from collections.abc import Sequence

from gputopo.findings.fleet import Fleet
from gputopo.report.findings import findings_view
from gputopo.report.layout import INDENT, Line, labelled, plain, printable, section
from gputopo.report.markdown import findings_list, table
from gputopo.report.units import counted

_NOTHING = "None: no host differs from the others of its kind."
_TITLES = ("Hosts", "Findings of single hosts", "Findings of most hosts")
_NAMED = 8  # hosts of a kind; the rest is in the JSON


def fleet_view(fleet: Fleet, width: int) -> list[Line]:
    """Return the fleet in lines of at most `width` columns."""
    space = width - INDENT
    lines = section(_TITLES[0], labelled(_rows(fleet), space))
    lines += section(_TITLES[1], findings_view(fleet.findings, space, nothing=_NOTHING))
    if fleet.shared:
        lines += section(_TITLES[2], findings_view(fleet.shared, space))
    return printable(lines[:-1])


def fleet_markdown(fleet: Fleet) -> str:
    """Return the fleet as Markdown."""
    parts = [
        (_TITLES[0], table(("", ""), _rows(fleet))),
        (_TITLES[1], findings_list(fleet.findings, nothing=_NOTHING)),
    ]
    if fleet.shared:
        parts.append((_TITLES[2], findings_list(fleet.shared)))
    return "\n".join(f"### {title}\n\n{body}" for title, body in parts)


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
