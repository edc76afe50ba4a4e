"""What differs from another reading, a line each; what several GPUs share is written once."""

from collections.abc import Iterator, Sequence

from gputopo.findings import Finding
from gputopo.findings.difference import Change, Difference, FindingChanges
from gputopo.report.findings import findings_view
from gputopo.report.layout import INDENT, QUIET, Line, line, paragraph, plain, printable, section
from gputopo.report.units import counted
from gputopo.values.index_ranges import index_ranges


def difference_view(difference: Difference, width: int) -> list[Line]:
    """Return the changes in lines of at most `width` columns, and what could not be compared."""
    said = changes_in_words(difference.changes)
    lines = [one for words in said for one in _item(plain(words), width)]
    if not said:
        lines = [line(_nothing(difference))]
    other = plain(difference.old_source)
    sources = f"Compared with {other} (left of ->): {counted(difference.compared, 'fact')}"
    if difference.one_sided:
        sources += f"; left out: {counted(difference.one_sided, 'fact')} that only one of the two has"
    lines += paragraph(f"{sources}.", width, QUIET)
    for title, findings in _findings(difference.findings):
        lines += [line(), *section(title, findings_view(findings, width - INDENT))[:-1]]
    return printable(lines)


def difference_markdown(difference: Difference) -> str:
    """Return the changes as a Markdown list."""
    from gputopo.report.markdown import escaped

    said = [f"- {escaped(words)}\n" for words in changes_in_words(difference.changes)]
    text = f"## Differences from {escaped(difference.old_source)}\n\n"
    text += "".join(said) or f"{_nothing(difference)}\n"
    for title, findings in _findings(difference.findings):
        text += f"\n### {title}\n\n"
        text += "".join(
            f"- **{one.severity}** `{one.subject.text}` `{one.id}`: {escaped(one.says)}\n" for one in findings
        )
    return text


def _nothing(difference: Difference) -> str:
    if not difference.compared:
        return "Nothing could be compared."
    changed = difference.findings.came or difference.findings.went
    return "No fact that lasts differs." if changed else "No difference."


def _findings(changes: FindingChanges) -> Iterator[tuple[str, Sequence[Finding]]]:
    """Return the findings only here, only there and of both, as far as there are any, with a title."""
    titled = (("only here", changes.came), ("only there", changes.went), ("of both", changes.stayed))
    for title, findings in titled:
        if findings:
            yield f"Findings {title}", findings


def changes_in_words(changes: tuple[Change, ...]) -> list[str]:
    """Return each change in a sentence; one that several GPUs share once, as `GPUs 0-3: ...`."""
    said: dict[str, list[int]] = {}
    for change in changes:
        if change.gpu is None:
            said.setdefault(change.says, [])
        else:
            said.setdefault(change.words, []).append(change.gpu)
    return [f"{_gpus(gpus)}: {words}" if gpus else words for words, gpus in said.items()]


def _gpus(gpus: list[int]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {index_ranges(gpus)}"


def _item(words: str, width: int) -> list[Line]:
    first, *rest = paragraph(words, width - 2)
    return [(("* ", QUIET), *first), *(((("  ", ""), *more)) for more in rest)]
