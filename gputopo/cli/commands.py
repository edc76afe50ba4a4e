"""The commands by name, and how one is called. Only the module of the command that is asked for is loaded."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from gputopo.cli.printing import emit
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, Text, arguments_for, nearest, parameters_of, shown

if TYPE_CHECKING:
    from gputopo.values.option import Declared


_NO_THEME = "Options"
_HELP = typer.Option("--help", "-h", help="Show this message and exit.")


def declared_to_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command as typer wants it: with a parameter of text for each option."""

    def call(**texts: Any) -> Any:
        typed = {name: text for name, text in texts.items() if text not in (None, False, [])}
        return command(**arguments_for(command, typed))

    parameters = [_parameter(one) for one in parameters_of(command)]
    help_flag = inspect.Parameter(
        "help", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, _HELP]
    )
    vars(call)["__signature__"] = inspect.Signature([*parameters, help_flag])
    call.__doc__ = command.__doc__
    return call


def _parameter(one: Declared) -> inspect.Parameter:
    if one.is_positional:
        info: Any = typer.Argument(metavar=one.option.flag, help=one.help)
    else:
        info = typer.Option(
            one.option.flag,
            metavar=one.placeholder or None,
            help=one.help,
            rich_help_panel=one.theme or None,
            show_default=False,
        )
    kind: Any = bool if one.is_flag else list[str] if one.option.repeated else str
    default: Any = False if one.is_flag else None
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if one.is_flag else kind | None, info],
    )


class Command(TyperCommand):
    """A command whose parameters are texts and flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the context's parameters. Raises UsageError; prints the help where it is asked for."""
        ctx.params = {**self._unset(), **self._texts(list(args), ctx.command_path)}
        if ctx.params.pop("help"):
            emit(f"{ctx.get_help()}\n")
            raise typer.Exit
        ctx.args = []
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line behind the command."""
        return ["[OPTIONS]", *(one.metavar for one in self._arguments())]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the heading of their theme; those without one come first."""
        headed: dict[str, list[tuple[str, str]]] = {"Arguments": [], _NO_THEME: []}
        for one in self.params:
            is_argument = one.param_type_name == "argument"
            flags = "" if is_argument else ", ".join(reversed(one.opts))
            theme = "Arguments" if is_argument else getattr(one, "rich_help_panel", None)
            record = (f"{flags} {one.metavar or ''}".strip(), str(getattr(one, "help", None) or ""))
            headed.setdefault(theme or _NO_THEME, []).append(record)
        for heading, records in headed.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def _arguments(self) -> list[Any]:
        return [one for one in self.params if one.param_type_name == "argument"]

    def _unset(self) -> dict[str, Any]:
        return {str(one.name): False if getattr(one, "is_flag", False) else None for one in self.params}

    def _texts(self, words: list[str], command: str) -> dict[str, Text]:
        by_flag: Mapping[str, Any] = {
            flag: one for one in self.params for flag in one.opts if flag[:1] == "-"
        }
        texts: dict[str, Any] = {}
        before: list[str] = []
        behind: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                behind, words = words, []
            elif word.startswith("-") and word != "-":
                flag, has_value, value = word.partition("=")
                option = by_flag.get(flag)
                if option is None:
                    raise unknown_option(flag, by_flag, command)
                if getattr(option, "is_flag", False):
                    if has_value:
                        raise UsageError(f"{flag} takes no value", f"write {flag} alone")
                    texts[option.name] = True
                    continue
                if str(option.metavar).startswith("[") and (not words or words[0].startswith("-")):
                    has_value = "="  # a value in brackets may be left out
                if not has_value and not words:
                    raise UsageError(f"{flag} needs a value", f"give {flag} {option.metavar}: {option.help}")
                text = value if has_value else words.pop(0)
                texts[option.name] = [*texts.get(option.name, ()), text] if option.multiple else text
                while option.multiple and not self._arguments() and words and not words[0].startswith("-"):
                    texts[option.name].append(words.pop(0))  # --from *.json
            else:
                before.append(word)
        return {**texts, **self._positional(before, behind, command)}

    def _positional(self, before: list[str], behind: list[str], command: str) -> dict[str, Text]:
        argument = next(iter(self._arguments()), None)
        if argument is not None and argument.nargs == -1:
            if not str(argument.metavar).startswith("[--"):
                return {argument.name: [*before, *behind]}
            if before:
                raise UsageError(
                    f"{command} takes no argument {shown(before[0])}",
                    f"leave it out; a program comes after --: {command} [options] -- PROGRAM",
                )
            return {argument.name: behind}
        words = [*before, *behind]
        taken = 0 if argument is None else 1
        if len(words) > taken:
            can_read = any("--from" in one.opts for one in self.params) and argument is None
            hint = f"to read a file: --from {words[taken]}" if can_read else _help_hint(command)
            raise UsageError(f"{command} takes no argument {shown(words[taken])}", hint)
        return {argument.name: words[0]} if argument is not None and words else {}


def unknown_option(flag: str, known: Sequence[str] | Mapping[str, Any], command: str) -> UsageError:
    """Return the error for an option that a command does not have, with the nearest that it has."""
    near = nearest(flag.lstrip("-"), [name[2:] for name in known if name.startswith("--")])
    hint = f"did you mean --{near[0]}? {_help_hint(command)}" if near else _help_hint(command)
    return UsageError(f"there is no option {shown(flag)}", hint)


def _help_hint(command: str) -> str:
    return f"`{command} --help` shows how it is called"


@dataclass(frozen=True)
class CommandPlace:
    """Where a command's function is, and a line of help.

    `aliases`: flags of other programs are read. `moved`: hints for flags that another command has now.
    """

    module: str
    function: str
    summary: str
    aliases: bool = False
    moved: Mapping[str, str] = field(default_factory=dict)


# In the order of the help.
COMMANDS: Mapping[str, CommandPlace] = {
    "inspect": CommandPlace(
        "gputopo.cli.inspect", "inspect", "Show the machine, its GPUs and links, and diagnose them."
    ),
    "bandwidth": CommandPlace(
        "gputopo.cli.bandwidth",
        "bandwidth",
        "Measure the bandwidth of all links, and judge it.",
        moved=dict.fromkeys(
            ("--allreduce", "--all-reduce", "--model"),
            "time reductions with gputopo bench-reduction --model NAME [--all-reduce METHOD]",
        ),
    ),
    "plan": CommandPlace(
        "gputopo.cli.plan",
        "plan",
        "Choose the GPUs of a training job, with reasons.",
        aliases=True,
    ),
    "run": CommandPlace(
        "gputopo.cli.run.command",
        "run",
        "Train a model on the best GPUs, and monitor each.",
        aliases=True,
        moved={"--program": "it is for plan; run trains with the built-in core, or your program after --"},
    ),
    "screen": CommandPlace(
        "gputopo.cli.run.screen",
        "screen",
        "Train on each GPU alone and on all at once: which is slow, and why.",
        moved={"--from": "runs here do not screen that machine; run it there"},
    ),
    "sweep": CommandPlace(
        "gputopo.cli.run.sweep",
        "sweep",
        "Run a matrix of trainings, each in a process of its own; resumable.",
        moved={
            "--from": "runs here do not measure that machine; run it there",
            "--model": "write it into a matrix: gputopo explain sweep",
            "--repeats": "write repeats = N into the matrix: gputopo explain sweep",
        },
    ),
    "report": CommandPlace(
        "gputopo.cli.report",
        "report",
        "Tables and observations from runs, logs of other programs and published figures.",
    ),
    "bench-reduction": CommandPlace(
        "gputopo.cli.bench_reduction",
        "bench_reduction",
        "Time the reduction of a model's gradients, by method.",
    ),
    "make-data": CommandPlace(
        "gputopo.cli.make_data", "make_data", "Write a small data folder to try real input with."
    ),
    "models": CommandPlace("gputopo.cli.explain", "models", "List the models that can be trained."),
    "explain": CommandPlace(
        "gputopo.cli.explain", "explain", "Show reference pages; explain a finding, a model, an option."
    ),
    "completion": CommandPlace(
        "gputopo.cli.completion", "completion", "Complete commands and options by the Tab key."
    ),
}
_OWN_FLAGS = ("--version", "--help", "-h")


@dataclass(frozen=True)
class OptionInfo:
    """An option of a command as a reference lists it. `value`: placeholder; empty for a flag."""

    command: str
    flags: tuple[str, ...]
    value: str
    help: str
    default: str
    theme: str


def list_options() -> tuple[OptionInfo, ...]:
    """Return every option and argument of every command, in the order of the help."""
    return tuple(
        OptionInfo(
            name, (one.option.flag,), one.placeholder, f"{one.option.help}.", one.default_text, one.theme
        )
        for name in COMMANDS
        for one in options_of_command(name)
    )


def options_of_command(name: str) -> "tuple[Declared, ...]":
    """Return what a command takes, as it is declared."""
    from gputopo.values.option import parameters_of

    return parameters_of(_function(COMMANDS[name]))


def invoke(arguments: list[str]) -> int:
    """Call the command that the arguments name and return its exit code.

    Raises UsageError for arguments that no command takes, and whatever GputopoError the command raises.
    """
    first = arguments[0] if arguments else None
    named = first if first in COMMANDS else None
    if first is not None and named is None and first not in _OWN_FLAGS:
        raise _unknown(first)
    if named is not None and COMMANDS[named].aliases:
        from gputopo.cli.run import aliases
        from gputopo.values.option import parameters_of

        flags = [one.option.flag for one in parameters_of(_function(COMMANDS[named])) if one.is_flag]
        arguments = [named, *aliases.translate(arguments[1:], flags)]
    if named is not None:
        _refuse_moved(arguments[1:], COMMANDS[named].moved)
    command = get_command(_app(named))
    try:
        with command.make_context("gputopo", list(arguments)) as context:
            result: Any = command.invoke(context)
    except typer.Exit as exit_:
        return int(exit_.exit_code)
    return int(result) if isinstance(result, int) else 0


def _app(named: str | None) -> typer.Typer:
    """Build the application: with the function of the command that is named, with all summaries for None."""
    app = typer.Typer(
        name="gputopo",
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
        return app
    from gputopo.cli.commands import Command, declared_to_typer

    app.command(named, cls=Command, add_help_option=False)(declared_to_typer(_function(COMMANDS[named])))
    return app


def _not_loaded() -> None:
    """Stand for a command in the list of all commands."""


def _function(place: CommandPlace) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(place.module), place.function)
    return function


def _gputopo(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    help: Annotated[bool, typer.Option("--help", "-h", help="Show this message and exit.")] = False,
) -> None:
    """Diagnose multi-GPU machines: health, topology, bandwidth. Choose the GPUs of a job, and train on them.

    Options of a command: gputopo inspect --help
    """
    if version:
        from gputopo import __version__

        emit(f"gputopo {__version__}\n")
        raise typer.Exit
    if help or context.invoked_subcommand is None:
        emit(f"{context.get_help()}\n")
        raise typer.Exit


def _refuse_moved(words: Sequence[str], moved: Mapping[str, str]) -> None:
    own = takewhile(lambda word: word != "--", words)
    for flag in (word.partition("=")[0] for word in own):
        if flag in moved:
            raise UsageError(f"there is no option '{flag}'", moved[flag])


def _unknown(word: str) -> UsageError:
    from gputopo.values.option import listed, nearest, shown

    if word.startswith("-"):
        from gputopo.cli.commands import unknown_option

        return unknown_option(word.partition("=")[0], _OWN_FLAGS, "gputopo")
    near = nearest(word, COMMANDS)
    hint = f"did you mean gputopo {near[0]}?" if near else f"the commands are {listed(COMMANDS, 'and')}"
    return UsageError(f"there is no command {shown(word)}", hint)
