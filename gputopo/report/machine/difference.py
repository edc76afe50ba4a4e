"""What differs from another reading, a line each; what several GPUs share is written once."""

from collections.abc import Iterator, Sequence

from gputopo.findings import Finding
from gputopo.findings.difference import Change, Difference, FindingChanges
from gputopo.report.document import Block, Bullets, Document, Styled, of_sections
from gputopo.report.findings import findings_block
from gputopo.report.layout import QUIET
from gputopo.report.units import counted
from gputopo.values.index_ranges import index_ranges


def difference_document(difference: Difference) -> Document:
    """Return the changes, the numbers of facts that were compared, and the findings of both."""
    said = changes_in_words(difference.changes)
    compared = f"{counted(difference.compared, 'fact')} compared"
    if difference.one_sided:
        compared += f"; left out: {counted(difference.one_sided, 'fact')} that only one of the two has"
    shown: Block = Bullets(tuple(said)) if said else _nothing(difference)
    return of_sections(
        [
            (f"Compared with {difference.old_source} (left of ->)", [shown, Styled(f"{compared}.", QUIET)]),
            *((title, [findings_block(found)]) for title, found in _findings(difference.findings)),
        ]
    )


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
