"""Words of a command line to texts, and what the help shows."""

from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from gputopo.cli.parsing import Command, declared_to_typer
from gputopo.values.errors import UsageError
from gputopo.values.option import Option


def texts_of(*words: str) -> dict[str, Any]:
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

    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("tried", cls=Command, add_help_option=False)(declared_to_typer("tried", tried))
    with get_command(app).make_context("app", ["tried", *words]) as context:
        context.command.invoke(context)
    return taken


def test_words_come_to_their_options_and_a_program_behind_two_dashes() -> None:
    found = texts_of("--from", "a", "--count=-3", "--from=b", "--quick", "--", "prog", "--quick", "--", "x")
    assert found == {
        "program": ("prog", "--quick", "--", "x"),
        "sources": ("a", "b"),
        "count": -3,
        "quick": True,
    }
    assert texts_of() == {"program": (), "sources": (), "count": 1, "quick": False}


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

    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("reading", cls=Command, add_help_option=False)(declared_to_typer("reading", reading))
    words = ["reading", "--from", "a", "b", "--quick", "--from", "c"]
    with get_command(app).make_context("app", words) as context:
        context.command.invoke(context)
    assert taken == [(("a", "b", "c"), True)]


def test_a_mistake_is_a_usage_error() -> None:
    cases: list[tuple[list[str], str]] = [
        (["--qick"], "there is no option '--qick'"),
        (["-q"], "there is no option '-q'"),
        (["--count"], "--count needs a value"),
        (["--quick=some"], "--quick takes no value"),
        (["prog"], "takes no argument 'prog'"),
        (["prog", "--", "other"], "takes no argument 'prog'"),
    ]
    for words, what in cases:
        with pytest.raises(UsageError, match=what):
            texts_of(*words)


def test_the_help_has_a_heading_for_each_theme(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        texts_of("--quick", "-h")
    shown = capsys.readouterr().out
    headings = ("Arguments:", "Options:", "Numbers:")
    assert [line for line in shown.splitlines() if line in headings] == list(headings)
    assert "Usage: app tried [OPTIONS] [-- PROGRAM...]\n" in shown
    assert "--count N  Count. Default: 1." in shown
    assert "<" not in shown
