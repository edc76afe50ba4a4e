"""Machines compared: several hosts with similar ones, and two readings of one machine."""

import re
import shlex
from collections.abc import Sequence

import msgspec

from gputopo.report import units
from gputopo.report.document import Block, Bullets, Document, Rows, Styled, of_sections
from gputopo.report.findings import counts_in_words, findings_block
from gputopo.report.layout import QUIET, plain
from gputopo.report.units import counted
from gputopo.values.difference import Change, Difference
from gputopo.values.finding import SEVERITIES, Fleet, HostFinding, Severity
from gputopo.values.index_ranges import host_ranges, host_set, natural
from gputopo.values.option import shown
from gputopo.values.subject import Subject

_NOTHING = "None: no host differs from the others of its kind."
_MAX_REASON = 200  # characters


def fleet_document(fleet: Fleet) -> Document:
    """Return the hosts by kind, and the findings of single hosts and of most of them."""
    return of_sections(
        [
            ("", [_answer(fleet)]),
            ("Hosts", [Rows(tuple(_rows(fleet)))]),
            ("Findings of single hosts", [findings_block(_together(fleet.findings), nothing=_NOTHING)]),
            ("Findings of most hosts", [findings_block(fleet.shared)] if fleet.shared else []),
        ]
    )


def _together(findings: Sequence[HostFinding]) -> list[HostFinding]:
    """Join the findings of several hosts with the same words, with a set of nodes."""
    alike: dict[tuple[str, str, Subject, str], list[HostFinding]] = {}
    for one in findings:
        words = one.says.removeprefix(f"host {one.hosts[0]}: ")
        alike.setdefault((one.id, one.severity, one.subject, words), []).append(one)
    found = []
    for (*_, words), same in alike.items():
        hosts = host_set(host for one in same for host in one.hosts)
        says = same[0].says if len(same) == 1 else f"hosts {hosts}: {words}"
        found.append(msgspec.structs.replace(same[0], says=says))
    return found


def _answer(fleet: Fleet) -> str:
    """Return how many hosts match their peers, and which do not."""
    count = sum(len(kind.hosts) for kind in fleet.kinds) + len(fleet.unread)
    verb = "differ" if len(fleet.outliers) > 1 else "differs"
    odd = [
        *([f"{len(fleet.outliers)} {verb} ({plain(host_set(fleet.outliers))})"] if fleet.outliers else []),
        *([f"{len(fleet.unread)} not read ({plain(host_set(fleet.unread))})"] if fleet.unread else []),
    ]
    found = counts_in_words(fleet.findings)
    return f"{counted(count, 'host')}: {', '.join(odd) or 'no outlier'}. {found.capitalize()}."


def _rows(fleet: Fleet) -> list[tuple[str, str]]:
    """Return the kinds with their hosts, the hosts without a reading, and the outliers."""
    rows = []
    for kind in fleet.kinds:
        facts = counted(kind.compared, "fact") if len(kind.hosts) > 1 else "no facts"
        words = plain(f"{kind.name}: {host_set(kind.hosts)}; {facts} compared")
        rows.append((counted(len(kind.hosts), "host"), words))
    if fleet.unread:
        rows.append(("Not read", plain(host_set(fleet.unread))))
    if fleet.outliers:
        rows.append(("Outliers", plain(host_set(fleet.outliers))))
    return rows


# A node name in slurm.conf is a host name without its domain. ALL and DEFAULT are keywords there
# (slurm.conf(5), scontrol(1)). A number, such as the first part of an IP address, is not a node name.
_NODE = re.compile(r"(?!(?:all|default|[0-9]+)$)[a-z0-9_-]+", re.IGNORECASE)
_NOT_OF_REASON = re.compile(r"[^ -~]+|['\"]")


def drain_commands(fleet: Fleet, at_least: Severity = "error") -> str:
    """Return shell commands with which Slurm drains the faulty hosts, grouped by fault.

    Only faults of single hosts are used. `at_least`: their minimum severity. A host whose name is not a valid
    node name is in a comment. A reason may contain another host's text, so it is quoted: the shell must
    expand nothing in it.
    """
    by_reason: dict[str, dict[str, None]] = {}
    strange: dict[str, None] = {}
    seen: set[str] = set()
    for one in fleet.findings:
        (host, *others), grave = one.hosts, one.rank >= SEVERITIES.index(at_least)
        if others or not grave or host in seen:
            continue
        seen.add(host)
        node = host.partition(".")[0]
        if _NODE.fullmatch(node):
            reason = f"Reason=gputopo: {one.says.removeprefix(f'host {host}: ')}"
            by_reason.setdefault(_NOT_OF_REASON.sub(" ", reason)[:_MAX_REASON], {})[node] = None
        else:
            strange[shown(host)] = None
    commands = (
        ["scontrol", "update", f"NodeName={host_ranges(sorted(nodes, key=natural))}", "State=DRAIN", reason]
        for reason, nodes in by_reason.items()
    )
    lines = [shlex.join(command) for command in commands]
    lines += [f"# not drained, because it is not a node name: {name}" for name in strange]
    return "".join(f"{line}\n" for line in lines)


def difference_document(difference: Difference) -> Document:
    """Return the changes, the number of compared facts, and the findings of both readings."""
    said = changes_in_words(difference.changes)
    compared = f"{counted(difference.compared, 'fact')} compared"
    if difference.one_sided:
        compared += f"; not compared: {counted(difference.one_sided, 'fact')} that only one of the two has"
    shown: Block = Bullets(tuple(said)) if said else _nothing(difference)
    found = difference.findings
    titled = (("only here", found.came), ("only there", found.went), ("of both", found.stayed))
    counts = [
        f"{counted(len(said), 'difference')} in {counted(difference.compared, 'fact')}",
        *(f"{counted(len(of), 'finding')} {title}" for title, of in titled[:2] if of),
    ]
    return of_sections(
        [
            ("", [f"{', '.join(counts)}."] if said or len(counts) > 1 else []),
            (f"Compared with {difference.old_source} (left of ->)", [shown, Styled(f"{compared}.", QUIET)]),
            *((f"Findings {title}", [findings_block(of)]) for title, of in titled if of),
        ]
    )


def _nothing(difference: Difference) -> str:
    if not difference.compared:
        return "Nothing could be compared."
    changed = difference.findings.came or difference.findings.went
    return "No permanent fact differs." if changed else "No difference."


def changes_in_words(changes: tuple[Change, ...]) -> list[str]:
    """Return a sentence for each change.

    A change that several GPUs share has one sentence: `GPUs 0-3: ...`.
    """
    said: dict[str, list[int]] = {}
    for change in changes:
        if change.gpu is None:
            said.setdefault(change.says, [])
        else:
            said.setdefault(change.words, []).append(change.gpu)
    return [f"{units.gpus(gpus)}: {words}" if gpus else words for words, gpus in said.items()]
