"""Reference pages in Markdown, and the lookup of a topic in them.

A topic is a page (`bandwidth`), the heading of a section (`pcie.slot_narrow`) or the first cell of a table
row (`alexnet`; `Xid 79`, also found by `79`; `--batch-size`, also found by `batch-size`). Case, dashes and
underscores do not matter. `python -m tests.pages.generate` writes the pages that are generated from the code.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

# Order of the list that `gputopo explain` shows.
PAGES = (
    "install",
    "terms",
    "inspect",
    "fleet",
    "findings",
    "bandwidth",
    "network",
    "measuring",
    "screen",
    "plan",
    "run",
    "verdicts",
    "samples",
    "program",
    "strategy",
    "python",
    "hosts",
    "ranks",
    "security",
    "sweep",
    "report",
    "options",
    "models",
    "reductions",
    "settings",
    "formats",
    "files",
    "prediction",
    "numbers",
    "integrations",
    "contributing",
)


_CODE = re.compile(r"(?P<switch>s?)xid *(?P<number>[0-9]+)", re.IGNORECASE)  # SXid: of an NVSwitch


@cache
def read(page: str) -> str:
    """Return the text of a page in `PAGES`."""
    return resources.files(__package__).joinpath(f"{page}.md").read_text(encoding="utf-8")


def title(page: str) -> str:
    """Return a page's first heading, in which a colon separates its name from what it is about."""
    return read(page).partition("\n")[0].removeprefix("# ")


def explain(topic: str) -> str | None:
    """Return the page, sections or table rows that explain a topic, as Markdown; None for an unknown one."""
    if topic in PAGES:
        return read(topic)
    if code := _CODE.fullmatch(topic):
        topic = _written(code)
    return _explained(topic) or next(
        (_explained(known) for known in topics() if _folded(known) == _folded(topic)), None
    )


def _explained(topic: str) -> str | None:
    if topic in PAGES:
        return read(topic)
    both = [(name, text) for name in (topic, f"--{topic}") for text in map(read, PAGES) if name in text]
    for look_up in (_sections, _rows):
        if texts := dict.fromkeys(explained for name, text in both for explained in look_up(text, name)):
            return "\n".join(texts)
    return None


def search(word: str) -> dict[str, list[str]]:
    """Return the lines that contain a word, in any case, by page; lines of code and tables included."""
    by_page: dict[str, list[str]] = {}
    for page in PAGES:
        lines = [line for line in read(page).splitlines() if word.casefold() in line.casefold()]
        if lines:
            by_page[page] = lines
    return by_page


def topics() -> list[str]:
    """Return every topic: the pages, their sections and their table rows."""
    names = dict.fromkeys(PAGES)
    for text in map(read, PAGES):
        names |= dict.fromkeys(_plain(heading) for heading in re.findall(r"^##+ (.+)$", text, re.MULTILINE))
        names |= dict.fromkeys(name for _, _, *rows in _tables(text) for row in rows for name in _quoted(row))
    return list(names)


def _sections(text: str, topic: str) -> Iterator[str]:
    """Yield the sections with this heading, each up to the next heading of the same or a higher level."""
    for heading in re.finditer(r"^(##+) (.+)\n", text, re.MULTILINE):
        if _plain(heading[2]) == topic:
            after = re.search(rf"^#{{1,{len(heading[1])}}} ", text[heading.end() :], re.MULTILINE)
            yield text[heading.start() : heading.end() + after.start() if after else None].rstrip() + "\n"


def _rows(text: str, topic: str) -> Iterator[str]:
    """Yield the header and the rows of every table that has a row for this topic."""
    for header, rule, *rows in _tables(text):
        named = [row for row in rows if topic in row and topic in _names(row)]
        if named:
            yield "\n".join([header, rule, *named]) + "\n"


@cache
def _tables(text: str) -> tuple[list[str], ...]:
    return tuple(table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE))


def _names(row: str) -> list[str]:
    """Return the topics of a row: names in backticks in its first cell, or an error code and its number."""
    code = _CODE.fullmatch(row[1:].partition(" |")[0].partition(" (")[0].strip())
    return [_written(code), code["number"]] if code else _quoted(row)


def _quoted(row: str) -> list[str]:
    return [_plain(name) for name in re.findall(r"`[^`]+`", row[1:].partition(" |")[0])]


def _written(code: re.Match[str]) -> str:
    """Return an error code in the spelling of the pages: `Xid 79`, `SXid 20034`."""
    return f"{code['switch'].upper()}Xid {code['number']}"


def _folded(topic: str) -> str:
    """Return a topic without differences in spelling: case, dashes, underscores and blanks."""
    return re.sub(r"[-_ ]", "", topic).casefold()


def _plain(heading: str) -> str:
    return heading.strip().strip("`")
