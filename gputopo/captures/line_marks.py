"""What a terminal, a log, a launcher or a page put around the lines of a capture, and how it comes off."""

import html
import re
import textwrap
from collections.abc import Sequence

from gputopo.values.errors import InputError

# ECMA-48: CSI and OSC sequences, character sets and single functions.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78DEHMZc])")
# A time that a container's runtime, a CI service or syslog puts before each line. TensorFlow's own lines have
# a colon behind theirs.
_TIME = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} \S{1,64}:)(?: std(?:out|err) [FP])?(?:[ \t]|$)"
)
# mpirun --tag-output, pdsh, clush, srun -l, kubectl logs --prefix and docker compose name where a line comes
# from; mails and comments quote it.
_FROM = re.compile(
    r"(?:\[\d{1,6}(?:,\d{1,6})?\]<std(?:out|err)>:|\[?[\w.-]{1,64}\]?:(?: |$)"
    r"|\[[\w.-]+(?:/[\w.-]+){1,3}\](?: |$)|[\w.-]{1,64} +\|(?: |$)|(?:[>#%;]|//) ?)"
)
_NUMBER = re.compile(r"[ \t]*(\d{1,6})[:.|)]?(?:[ \t]|(?=\r?$))")  # of a line, as cat -n and editors write it
_CONTINUED = re.compile(r"[ \t]+\\(?=\r?$)", re.MULTILINE)  # a line break in Markdown
_ENTITY = re.compile(r"&(?:[lg]t|amp|quot|nbsp|#\d{1,4});")
_TAG = re.compile(r"^\s*<", re.MULTILINE)
_FEWEST_LINES = 3  # of fewer, a mark may be a part of the text
_DEEPEST = 4  # around one line: a place in a page, a time, a host, a quotation
_MOST_PLACES = 64
_PLACES_NAMED = 4


def without_marks(text: str, *, origin: str) -> str:
    """Give a text without escapes, and without what stands before each of its lines. Line numbers stay.

    Raises InputError where the lines come from several machines or ranks.
    """
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if _ENTITY.search(text) and not _TAG.search(text):
        text = html.unescape(text).replace("\xa0", " ")
    if len(_CONTINUED.findall(text)) >= _FEWEST_LINES:
        text = _CONTINUED.sub("", text)
    for _ in range(_DEEPEST):
        bare = _one_off(text, origin)
        if bare is None:
            break
        text = bare
    return text


def _one_off(text: str, origin: str) -> str | None:
    """Take one mark off each line; None where not every line has one."""
    lines = text.split("\n")
    told = [line for line in lines if line.strip()]
    if len(told) < _FEWEST_LINES:
        return None
    if _is_indented(told):
        return textwrap.dedent(text)
    if all(map(_TIME.match, told)):
        return "\n".join(_TIME.sub("", line, count=1) for line in lines)
    if _is_numbered(told):
        return textwrap.dedent("\n".join(_NUMBER.sub("", line, count=1) for line in lines))
    first = _FROM.match(told[0])
    if first is None:
        return None
    mark = first[0].rstrip()
    if all(_is_marked(line, mark) for line in told):
        return "\n".join(_without(line, mark) for line in lines)
    _refuse_several(told, origin)
    return None


def _is_indented(told: Sequence[str]) -> bool:
    """Tell whether all lines have a margin; one blank is none, which a tool writes before all of a table."""
    if not told[0].startswith((" ", "\t")):
        return False
    first = textwrap.dedent("\n".join(told)).split("\n", 1)[0]
    return len(told[0]) - len(first) > (0 if told[0].startswith("\t") else 1)


def _is_numbered(told: Sequence[str]) -> bool:
    """Tell whether the lines are counted one by one, from 1 or later. (Rows of a matrix begin at 0.)"""
    found = [_NUMBER.match(line) for line in told]
    numbers = [int(number[1]) for number in found if number]
    first = numbers[0] if numbers else 0
    return first > 0 and numbers == [*range(first, first + len(told))]


def _is_marked(line: str, mark: str) -> bool:
    found = _FROM.match(line)
    return found is not None and found[0].rstrip() == mark


def _without(line: str, mark: str) -> str:
    return line.removeprefix(mark).removeprefix("" if mark.endswith(">:") else " ")


def _refuse_several(told: Sequence[str], origin: str) -> None:
    """Refuse lines that come from several places, each with as good a share of them as the others."""
    marks = [found[0].rstrip() if (found := _FROM.match(line)) else "" for line in told]
    places = list(dict.fromkeys(marks))
    counts = [marks.count(place) for place in places[:_MOST_PLACES]]
    named = all(re.fullmatch(r"\[.*|[\w.-]+\d[\w.-]*:|\d+:", place) for place in places)
    if not named or not 1 < len(places) <= _MOST_PLACES or min(counts) < max(_FEWEST_LINES, max(counts) // 2):
        return
    shown = [place.rstrip(":") for place in places[:_PLACES_NAMED]]
    shown += ["..."] if len(places) > _PLACES_NAMED else []
    raise InputError(
        f"{origin} mixes the lines of several places: {', '.join(shown)}",
        f"give one machine alone: grep '^{places[0]}' FILE | gputopo ... --from -",
    )
