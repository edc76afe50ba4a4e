"""Reference pages on a terminal: nothing is cut, code stays as it is."""

import re

import pytest

from gputopo import pages
from tests.cli.conftest import OnTerminal

# The narrowest that is common; the largest page has no other elements than the sections of the others.
NARROW = 60
SHOWN = ("plan", "run", "formats", "hosts")  # with all elements that a page has
PAGE = """# title: what it is

A paragraph with `code`, a [link](run.md) and **weight**.

```
a line of code that is wider than any terminal of eighty columns, and must stay one line to be pasted
```

| name | what |
| --- | --- |
| `--ps` | `auto\\|cpu` |
| `a-long-name-that-stays-whole` | words that are folded since they are many, more than a row has columns |
"""


@pytest.mark.parametrize("columns", [NARROW, 120])
def test_code_and_names_stay_whole_at_any_width(
    columns: int, on_terminal: OnTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "explain", lambda topic: PAGE)
    lines = [line.strip() for line in on_terminal("explain", "it", columns=columns).text.splitlines()]
    assert PAGE.split("```\n")[1].strip() in lines
    assert any(line.startswith("a-long-name-that-stays-whole ") for line in lines)
    assert any(re.fullmatch(r"--ps +auto\|cpu", line) for line in lines)
    assert "columns" in " ".join(lines)


def test_a_page_is_not_cut(on_terminal: OnTerminal) -> None:
    for page in SHOWN:
        markdown = pages.read(page)
        text = on_terminal("explain", page, columns=NARROW).text
        code = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
        lines = {line.rstrip() for line in text.splitlines()}
        assert not {line.rstrip() for part in code for line in part.splitlines()} - lines, page
        assert text.count("\N{HORIZONTAL ELLIPSIS}") == markdown.count("\N{HORIZONTAL ELLIPSIS}"), page
