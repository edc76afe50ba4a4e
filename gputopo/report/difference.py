"""What changed since an earlier reading, a line each; what several GPUs share is written once."""

from gputopo.findings.difference import Change, Difference
from gputopo.report.layout import QUIET, Line, line, paragraph, plain
from gputopo.report.units import counted
from gputopo.values.index_ranges import index_ranges


def difference_view(difference: Difference, width: int) -> list[Line]:
    """Return the changes in lines of at most `width` columns, and what could not be compared."""
    said = changes_in_words(difference.changes)
    lines = [one for words in said for one in _item(plain(words), width)]
    if not said:
        lines = [line("Nothing changed." if difference.compared else "Nothing could be compared.")]
    sources = f"Compared with {plain(difference.old_source)}: {counted(difference.compared, 'fact')}"
    if difference.one_sided:
        sources += f"; left out: {counted(difference.one_sided, 'fact')} that only one of the two has"
    return [*lines, *paragraph(f"{sources}.", width, QUIET)]


def difference_markdown(difference: Difference) -> str:
    """Return the changes as a Markdown list."""
    from gputopo.report.markdown import escaped

    said = [f"- {escaped(words)}\n" for words in changes_in_words(difference.changes)]
    nothing = "Nothing changed.\n" if difference.compared else "Nothing could be compared.\n"
    return f"## What changed since {escaped(difference.old_source)}\n\n" + ("".join(said) or nothing)


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
