"""The commands by name, and how one is called. Only the module of the command that is asked for is loaded."""

import importlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, cast

import typer
from typer.main import get_command

from gputopo.cli.lean import LeanCommand, LeanGroup
from gputopo.cli.printing import emit
from gputopo.values.errors import UsageError

# name: module, function, and what `gputopo --help` says of it, in the order of the help.
COMMANDS = {
    "inspect": ("gputopo.cli.inspect", "inspect", "Show the machine, its GPUs and links, and what is wrong."),
    "bandwidth": (
        "gputopo.cli.bandwidth.command",
        "bandwidth",
        "Measure what the links really do, and judge it.",
    ),
    "plan": ("gputopo.cli.plan", "plan", "Choose the GPUs of a job, and say why."),
    "run": ("gputopo.cli.run.command", "run", "Train a model on the best GPUs, and watch each of them."),
    "make-data": ("gputopo.cli.make_data", "make_data", "Write a small data folder to try real input with."),
}

# Their options may be written with underscores and as in tf_cnn_benchmarks.
OTHER_SPELLINGS = ("plan", "run")

# Some releases of typer bring their own click, others use the installed one; this class is the same in both.
_ParserError = cast(type[Exception], typer.BadParameter.__bases__[0])


def invoke(arguments: list[str]) -> int:
    """Call the command that the arguments name and give its exit code.

    Raises UsageError for arguments that no command takes, and whatever GputopoError the command raises.
    """
    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if named is not None and named not in COMMANDS:
        raise _unknown_command(named)
    command = get_command(_app(COMMANDS if named is None else (named,)))
    if named in OTHER_SPELLINGS:
        from gputopo.cli.run import aliases

        parameters = cast(Any, command).commands[named].params
        flags = [name for one in parameters if getattr(one, "is_flag", False) for name in one.opts]
        arguments = [named, *aliases.translate(arguments[1:], flags)]
    try:
        with command.make_context("gputopo", list(arguments)) as context:
            result: Any = command.invoke(context)
    except typer.Exit as exit_:
        return int(exit_.exit_code)
    except _ParserError as error:
        from gputopo.cli import usage

        asked = command if named is None else cast(Any, command).commands[named]
        raise usage.explain(error, f"gputopo {named or ''}".rstrip(), asked.params) from error
    return int(result) if isinstance(result, int) else 0


def _app(names: Iterable[str]) -> typer.Typer:
    """Build the application with these commands; the module of each is loaded."""
    app = typer.Typer(
        name="gputopo",
        cls=LeanGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_gputopo)
    for name in names:
        module, function, short_help = COMMANDS[name]
        app.command(name, cls=LeanCommand, short_help=short_help)(_function(module, function))
    return app


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _gputopo(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Tell whether a machine with several GPUs is healthy and how its links run, choose the GPUs of a job,
    and train on them.

    Every command explains itself: gputopo inspect --help
    """
    if version:
        from gputopo import __version__

        emit(f"gputopo {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        emit(f"{context.get_help()}\n")


def _unknown_command(name: str) -> UsageError:
    from gputopo.cli.choices import listed, nearest, shown

    near = nearest(name, COMMANDS)
    hint = f"did you mean gputopo {near[0]}?" if near else f"the commands are {listed(COMMANDS, 'and')}"
    return UsageError(f"there is no command {shown(name)}", hint)
