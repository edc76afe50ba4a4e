"""The commands by name, and how one is called. Only the module of the requested command is loaded."""

import importlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gputopo.cli.printing import emit
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, listed, nearest, parameters_of, shown


class CommandPlace(NamedTuple):
    """The module of a command, its line of help, and its heading there. Its function has its name."""

    module: str
    summary: str
    group: str = "More"


_LOOK, _TRAIN = "Look at the machine", "Train"
# In the order of the help.
COMMANDS: Mapping[str, CommandPlace] = {
    "inspect": CommandPlace(
        "inspect", "Show the machine, its GPUs and links, and what is wrong with them.", _LOOK
    ),
    "bandwidth": CommandPlace(
        "bandwidth", "Measure the bandwidth of all links and compare it with what they should reach.", _LOOK
    ),
    "plan": CommandPlace("plan", "Choose the GPUs of a training job, with reasons.", _LOOK),
    "run": CommandPlace("run.command", "Train a model on the best GPUs, and monitor each.", _TRAIN),
    "screen": CommandPlace(
        "run.screen", "Find slow GPUs: train on each GPU alone, then on all of them together.", _TRAIN
    ),
    "sweep": CommandPlace("run.sweep", "Train a grid of configurations; can be resumed.", _TRAIN),
    "report": CommandPlace(
        "report", "Summarize measured runs: best configuration, scaling, comparisons.", _TRAIN
    ),
    "bench-reduction": CommandPlace(
        "bench_reduction", "Time the reduction of a model's gradients, by method."
    ),
    "make-data": CommandPlace("make_data", "Generate a small ImageNet or CIFAR-10 data set for testing."),
    "models": CommandPlace("explain", "List the models that can be trained."),
    "explain": CommandPlace("explain", "Show reference pages; explain a finding, a model, an option."),
    "completion": CommandPlace("completion", "Print a shell completion script."),
}
_OWN_FLAGS = ("--version", "--help", "-h")


def options_of_command(name: str) -> tuple[Declared, ...]:
    """Return the options of a command as they are declared."""
    return parameters_of(_function(name))


def invoke(arguments: list[str]) -> int:
    """Call the command that the arguments name and return its exit code.

    Raises UsageError for arguments that no command accepts, and the GputopoErrors of the command.
    """
    first = arguments[0] if arguments else None
    named = first if first in COMMANDS else None
    if first is not None and named is None and first not in _OWN_FLAGS:
        raise _unknown(first)
    command = _group(named)
    try:
        with command.make_context("gputopo", list(arguments)) as context:
            result: Any = command.invoke(context)
    except typer.Exit as exit_:
        return int(exit_.exit_code)
    return int(result) if isinstance(result, int) else 0


class _Commands(TyperGroup):
    """The list of commands, by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its summary under its group."""
        for group in dict.fromkeys(place.group for place in COMMANDS.values()):
            with formatter.section(group):
                formatter.write_dl(
                    [(name, place.summary) for name, place in COMMANDS.items() if place.group == group]
                )


def _group(named: str | None) -> TyperGroup:
    """Build the application with the named command only, or for None with the summaries of all commands."""
    app = typer.Typer(
        name="gputopo",
        cls=_Commands,
        add_completion=False,
        add_help_option=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_gputopo)
    if named is None:
        for name, place in COMMANDS.items():
            app.command(name, short_help=place.summary)(_not_loaded)
    group = cast(TyperGroup, get_command(app))
    if named is not None:
        from gputopo.cli.parsing import Command

        group.add_command(Command(named, _function(named)))
    return group


def _not_loaded() -> None:
    """Represent a command in the list of all commands."""


def _function(name: str) -> Callable[..., Any]:
    module = importlib.import_module(f"gputopo.cli.{COMMANDS[name].module}")
    function: Callable[..., Any] = getattr(module, name.replace("-", "_"))
    return function


def _gputopo(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    help: Annotated[bool, typer.Option("--help", "-h", help="Show this message and exit.")] = False,
) -> None:
    """Diagnose multi-GPU machines: health, topology, bandwidth. Choose the GPUs of a job, and train on them.

    Help for a command: gputopo inspect --help; all its options: --help-all. Reference pages: gputopo explain
    """
    if version:
        from gputopo import __version__

        emit(f"gputopo {__version__}\n")
        raise typer.Exit
    if help or context.invoked_subcommand is None:
        emit(f"{context.get_help()}\n")
        raise typer.Exit


def _unknown(word: str) -> UsageError:
    if word.startswith("-"):
        from gputopo.cli.parsing import unknown_option

        return unknown_option(word.partition("=")[0], _OWN_FLAGS, "gputopo")
    near = nearest(word, COMMANDS)
    hint = f"did you mean gputopo {near[0]}?" if near else f"the commands are {listed(COMMANDS, 'and')}"
    return UsageError(f"there is no command {shown(word)}", hint)
