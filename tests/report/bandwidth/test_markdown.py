import re

from gputopo.findings import Finding
from gputopo.report.bandwidth.markdown import bandwidth_markdown
from tests.invented_bandwidths import bandwidth_of, machine_with

FOUND = (Finding(id="a.b", severity="warning", subject="gpu:1", says="odd | words", remedy="do *this*"),)


def test_markdown_has_the_same_numbers_in_tables_with_equally_many_cells() -> None:
    text = bandwidth_markdown(machine_with(4), bandwidth_of(4), FOUND)
    assert re.search(r"^\| GPU2 \| 6\.25 \| 6\.25 \|  \| 0\.73 \|$", text, re.MULTILINE)
    assert re.search(r"^\| GPU0 \| 12\.2 \| 12\.6 \(97%\) \| 13\.1 \|", text, re.MULTILINE)
    assert "░░ 0.77s" in text
    table: list[int] = []
    for row in [*text.splitlines(), ""]:
        if row.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", row)))
        else:
            assert len(set(table)) <= 1
            table = []


def test_markdown_has_the_findings_the_failures_and_what_was_not_measured_as_they_are() -> None:
    text = bandwidth_markdown(machine_with(4), bandwidth_of(4), FOUND)
    assert "- **warning** `a.b` (gpu:1)\n  - odd \\| words\n  - To do: do \\*this\\*" in text
    assert "| p2p\\_direct gpu:0 to gpu:1 (kernel\\_read) | WRONG\\_DATA: 3 words differ |" in text
    assert "### Not measured" in text
