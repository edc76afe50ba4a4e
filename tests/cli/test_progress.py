import io
from typing import NamedTuple

import pytest

from gputopo.cli.printing import ProgressLine, progress_in_words


class Step(NamedTuple):
    done: int
    total: int
    seconds_left: float | None
    now: str


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.tried: list[str] = []

    def write(self, text: str) -> int:
        self.tried.append(text)
        raise BrokenPipeError


def test_it_shows_how_far_it_is_what_is_left_and_what_runs() -> None:
    said = progress_in_words(Step(11, 87, 21.04, "h2d host -> gpu:0"))
    assert said == "measuring 12 of 87, about 21.0 s left: h2d host -> gpu:0"
    assert progress_in_words(Step(1, 1, None, "x\x1b[31m")) == "measuring 1 of 1: x?[31m"


def test_a_pipe_gets_a_line_a_quarter_and_no_control_characters() -> None:
    stream = io.StringIO()
    with ProgressLine(stream) as line:
        for done in range(100):
            line.show(Step(done, 100, 5.0, "copy"))
    assert [row.split()[2] for row in stream.getvalue().splitlines()] == ["1", "26", "51", "76"]
    assert stream.getvalue().replace("\n", "").isprintable()


def test_a_terminal_gets_one_line_that_is_drawn_again_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    with ProgressLine(stream) as line:
        for done in range(3):
            line.show(Step(done, 3, 1.0, "a long name of a copy that does not fit"))
    text = stream.getvalue()
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")
    assert max(len(part.replace("\x1b[K", "")) for part in text.split("\r")) <= 30


def test_a_stderr_that_nobody_reads_does_not_end_the_measuring_and_is_not_written_to_again() -> None:
    stream = Closed()
    with ProgressLine(stream) as line:
        for done in range(4):
            line.show(Step(done, 4, None, "copy"))
    assert stream.tried == ["gputopo: measuring 1 of 4: copy\n"]
