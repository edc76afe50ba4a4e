import io
import re
import sys

import pytest

from gputopo.cli.printing import Screen, can_redraw, for_this_stdout, show


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "5")


def test_a_second_drawing_takes_the_place_of_the_first(
    size: None, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    screen.draw([(("one", ""),), (("two", ""),)])
    screen.draw([(("three", ""),)])
    first, second = capsys.readouterr().out.split("\x1b[2A\r")
    assert first.split("\x1b[K\n") == ["one", "two", "\x1b[J"]
    assert second.split("\x1b[K\n") == ["three", "\x1b[J"]


def test_what_does_not_fit_is_cut(size: None, capsys: pytest.CaptureFixture[str]) -> None:
    Screen().draw([(("x" * 20, ""), ("y" * 20, ""))] * 50)
    lines = capsys.readouterr().out.split("\x1b[K\n")[:-1]
    assert lines == ["x" * 20 + "y" * 9] * 4


def test_styles_become_codes_and_no_color_is_heard(
    size: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    Screen().draw([(("hot", "bold red"),)])
    assert "\x1b[1;31mhot\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    Screen().draw([(("hot", "bold red"),)])
    assert not re.search(r"\x1b\[[\d;]*m", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", "├─ ▁█"), ("ascii", "+- .#"), ("latin-1", "+- .#")]
)
def test_an_output_that_cannot_write_boxes_gets_ascii(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    (line,) = for_this_stdout([(("├─ ", "dim"), ("▁█", ""))])
    assert "".join(text for text, _ in line) == shown


def test_the_pseudo_terminal_of_a_rank_of_open_mpi_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    assert can_redraw()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert not can_redraw()
    show(lambda width: [(("hot", "bold red"),)])
    assert stdout.getvalue() == "hot\n"
