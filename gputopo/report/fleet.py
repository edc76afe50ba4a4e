"""Machines compared: several hosts with similar ones, and two readings of one machine."""

import re
import shlex
from collections.abc import Sequence

import msgspec

from gputopo.report.document import Block, Bullets, Document, Rows, Styled, of_sections
from gputopo.report.findings import counts_in_words, findings_block
from gputopo.report.layout import QUIET, plain
from gputopo.report.units import counted
from gputopo.values.difference import Change, Difference
from gputopo.values.finding import SEVERITIES, Fleet, HostFinding, Severity
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import gpu_ranges, host_ranges, host_set, natural
from gputopo.values.option import shown

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
    alike = grouped(
        (
            (
                finding.id,
                finding.severity,
                finding.subject,
                finding.says.removeprefix(f"host {finding.hosts[0]}: "),
            ),
            finding,
        )
        for finding in findings
    )
    together = []
    for (*_, words), (first, *others) in alike.items():
        if others:
            hosts = host_set(host for finding in (first, *others) for host in finding.hosts)
            first = msgspec.structs.replace(first, says=f"hosts {hosts}: {words}")
        together.append(first)
    return together


def _answer(fleet: Fleet) -> str:
    """Return how many hosts match their peers, and which do not."""
    count = sum(len(kind.hosts) for kind in fleet.kinds) + len(fleet.unread)
    verb = "differ" if len(fleet.outliers) > 1 else "differs"
    odd = [
        f"{len(hosts)} {words} ({plain(host_set(hosts))})"
        for words, hosts in ((verb, fleet.outliers), ("not read", fleet.unread))
        if hosts
    ]
    findings = counts_in_words(fleet.findings).capitalize()
    return f"{counted(count, 'host')}: {', '.join(odd) or 'no outlier'}. {findings}."


def _rows(fleet: Fleet) -> list[tuple[str, str]]:
    """Return the kinds with their hosts, the hosts without a reading, and the outliers."""
    rows = []
    for kind in fleet.kinds:
        facts = counted(kind.compared, "fact") if len(kind.hosts) > 1 else "no facts"
        words = plain(f"{kind.name}: {host_set(kind.hosts)}; {facts} compared")
        rows.append((counted(len(kind.hosts), "host"), words))
    for label, hosts in (("Not read", fleet.unread), ("Outliers", fleet.outliers)):
        rows += [(label, plain(host_set(hosts)))] if hosts else []
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
    for finding in fleet.findings:
        (host, *others), grave = finding.hosts, finding.rank >= SEVERITIES.index(at_least)
        if others or not grave or host in seen:
            continue
        seen.add(host)
        node = host.partition(".")[0]
        if _NODE.fullmatch(node):
            reason = f"Reason=gputopo: {finding.says.removeprefix(f'host {host}: ')}"
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
    findings = difference.findings
    titled = (("only here", findings.came), ("only there", findings.went), ("of both", findings.stayed))
    counts = [
        f"{counted(len(said), 'difference')} in {counted(difference.compared, 'fact')}",
        *(f"{counted(len(some), 'finding')} {title}" for title, some in titled[:2] if some),
    ]
    changes: Block = Bullets(tuple(said))
    if not said:
        changes = "No permanent fact differs." if len(counts) > 1 else "No difference."
        changes = changes if difference.compared else "Nothing could be compared."
    return of_sections(
        [
            ("", [f"{', '.join(counts)}."] if said or len(counts) > 1 else []),
            (f"Compared with {difference.old_source} (left of ->)", [changes, Styled(f"{compared}.", QUIET)]),
            *((f"Findings {title}", [findings_block(some)]) for title, some in titled if some),
        ]
    )


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
    return [f"{gpu_ranges(gpus)}: {words}" if gpus else words for words, gpus in said.items()]
