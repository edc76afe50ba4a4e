"""Reference pages on a terminal: nothing is cut, code stays as it is."""

import re

import pytest

from gputopo import pages
from gputopo.cli.reference_page import page_text
from gputopo.workload import workload_names

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


@pytest.fixture(params=[60, 80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def test_code_and_names_stay_whole_at_any_width(width: int) -> None:
    lines = [line.strip() for line in page_text(PAGE).splitlines()]
    assert PAGE.split("```\n")[1].strip() in lines
    assert any(line.startswith("a-long-name-that-stays-whole ") for line in lines)
    assert any(re.fullmatch(r"--ps +auto\|cpu", line) for line in lines)
    assert "columns" in page_text(PAGE)


@pytest.mark.parametrize("page", pages.PAGES)
def test_no_page_is_cut(page: str, width: int) -> None:
    markdown = pages.read(page)
    text = page_text(markdown)
    code = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    lines = {line.rstrip() for line in text.splitlines()}
    assert not {line.rstrip() for part in code for line in part.splitlines()} - lines
    assert text.count("\N{HORIZONTAL ELLIPSIS}") == markdown.count("\N{HORIZONTAL ELLIPSIS}")


def test_the_names_of_all_models_are_whole(width: int) -> None:
    first_words = {line.split()[0] for line in page_text(pages.read("models")).splitlines() if line.strip()}
    assert set(workload_names()) <= first_words
