"""Reference pages on a terminal: nothing is cut, code stays as it is."""

import re

import pytest

from gputopo import pages
from gputopo.report.layout import text_of
from gputopo.report.reference import reference_lines
from gputopo.workload import workloads

PAGE = """# title: what it is

A paragraph with `code`, a [link](run.md) and **weight**, which is
on two lines.

- one item
  on two lines
- another

```
a line of code that is wider than any terminal of eighty columns, and must stay one line to be pasted
```

| name | what |
| --- | --- |
| `--ps` | `auto\\|cpu` |
| a name of several words | words that are folded since they are many, as many as a terminal has columns |
"""


def shown(markdown: str, width: int = 80, *left_out: str) -> str:
    return text_of(reference_lines(markdown, width, left_out))


def test_a_page_is_laid_out_without_its_marks() -> None:
    text = shown(PAGE)
    assert text.startswith(
        "title: what it is\n\nA paragraph with code, a link and weight, which is on two lines.\n"
    )
    assert "\n- one item on two lines\n- another\n" in text
    assert re.search(r"^--ps +auto\|cpu$", text, re.MULTILINE)


MODELS = ("from", "features MiB", "multiply-adds")


@pytest.mark.parametrize("width", [60, 79, 120])
@pytest.mark.parametrize("page", pages.PAGES)
def test_no_page_loses_a_word_or_folds_its_code(page: str, width: int) -> None:
    markdown = pages.read(page)
    text = shown(markdown, width, *MODELS)
    code = {
        line.rstrip()
        for part in re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
        for line in part.splitlines()
    }
    lines = set(text.splitlines())
    assert not code - lines
    assert max(map(len, lines - code)) <= width
    if width == 120 and page != "models":  # a narrow terminal folds long words
        plain = re.sub(r"^```.*$|\]\([^)]*\)|^\|[ :|-]+$", "", markdown, flags=re.MULTILINE)
        assert not [word for word in re.findall(r"\w{3,}", plain) if word not in text]


@pytest.mark.parametrize("width", [59, 79, 200])
def test_the_names_of_all_models_are_whole_at_any_width(width: int) -> None:
    text = shown(pages.read("models"), width, *MODELS)
    first_words = {line.split()[0] for line in text.splitlines() if line}
    assert set(workloads.names()) <= first_words
    assert "145,924,969" in text
    assert ("Not shown for lack of width: from." in text) == (width == 79)


def test_the_recipe_of_the_page_on_security_can_be_copied() -> None:
    rule = "    meta skuid != 1000 ip daddr @hosts tcp dport 1024-65535 ct state new reject"
    assert rule in shown(pages.read("security"), 60).splitlines()
