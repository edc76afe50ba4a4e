"""Words of a command line to texts, and what the help shows."""

from typing import Annotated, Any

import pytest

from gputopo.cli.commands import texts_of
from gputopo.values.errors import UsageError
from gputopo.values.option import Option, arguments_for, parameters_of
from tests.cli.conftest import Call


def tried_with(*words: str) -> dict[str, Any]:
    """Runs a command with some options, and returns its arguments."""
    taken: dict[str, Any] = {}

    def tried(
        *,
        program: Annotated[tuple[str, ...], Option("[-- PROGRAM...]", "Program", repeated=True)] = (),
        sources: Annotated[tuple[str, ...], Option("--from", "File", value="FILE", repeated=True)] = (),
        count: Annotated[int, Option("--count", "Count", theme="Numbers")] = 1,
        quick: Annotated[bool, Option("--quick", "Quick")] = False,
    ) -> None:
        """Try it."""
        taken.update(program=program, sources=sources, count=count, quick=quick)

    tried(**arguments_for(tried, texts_of(words, parameters_of(tried), "app tried")))
    return taken


def test_words_come_to_their_options_and_a_program_behind_two_dashes() -> None:
    found = tried_with("--from", "a", "--count=-3", "--from=b", "--quick", "--", "prog", "--quick", "--", "x")
    assert found == {
        "program": ("prog", "--quick", "--", "x"),
        "sources": ("a", "b"),
        "count": -3,
        "quick": True,
    }
    assert tried_with() == {"program": (), "sources": (), "count": 1, "quick": False}


def test_a_command_without_arguments_takes_several_values_after_a_repeatable_option() -> None:
    """As a shell writes `--from *.json`."""
    taken: list[tuple[tuple[str, ...], bool]] = []

    def reading(
        *,
        sources: Annotated[tuple[str, ...], Option("--from", "File", value="FILE", repeated=True)] = (),
        quick: Annotated[bool, Option("--quick", "Quick")] = False,
    ) -> None:
        """Read it."""
        taken.append((sources, quick))

    words = ["--from", "a", "b", "--quick", "--from", "c"]
    reading(**arguments_for(reading, texts_of(words, parameters_of(reading), "app reading")))
    assert taken == [(("a", "b", "c"), True)]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--qick"], "there is no option '--qick'"),
        (["-q"], "there is no option '-q'"),
        (["--count"], "--count needs a value"),
        (["--quick=yes"], "--quick takes no value"),
        (["prog"], "takes no argument 'prog'"),
        (["prog", "--", "other"], "takes no argument 'prog'"),
    ],
)
def test_a_mistake_is_a_usage_error(words: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        tried_with(*words)


def test_the_help_has_a_heading_for_each_theme(call: Call) -> None:
    shown = call("run", "-h").out
    headings = ("Arguments:", "Options:", "Optimizer:")
    assert [line for line in shown.splitlines() if line in headings] == list(headings)
    assert shown.startswith("Usage: gputopo run [OPTIONS] [-- PROGRAM ARGS...]\n")
    assert "  --seed N                        Random seed. Default: 1234.\n" in shown
    assert "<" not in shown
