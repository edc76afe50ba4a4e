"""The commands by name, the words of a command line as the texts of its options, and the help.

Only the module of the command that is asked for is loaded. Mistakes are UsageErrors with a hint.
"""

import importlib
import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from gputopo.cli.printing import emit
from gputopo.cli.refusals import refuse
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, Text, arguments_for, listed, nearest, parameters_of, shown


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
_OWN_HELP = (("--version", "Print the version and exit."), ("-h, --help", "Show this message and exit."))
_ABOUT = """Diagnose multi-GPU machines: health, topology, bandwidth. Choose the GPUs of a job, and train on
them.

Options of a command: gputopo inspect --help
"""
_WIDEST = 100  # columns of the help
_NARROWEST = 50
_WIDEST_FLAG = 30  # columns of the options before their help; what is longer has a line of its own


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


def options_of_command(name: str) -> tuple[Declared, ...]:
    """Return what a command takes, as it is declared."""
    return parameters_of(_function(COMMANDS[name]))


def invoke(arguments: list[str]) -> int:
    """Call the command that the arguments name and return its exit code.

    Raises UsageError for arguments that no command takes, and whatever GputopoError the command raises.
    """
    first = arguments[0] if arguments else "--help"
    if first == "--version":
        from gputopo import __version__

        emit(f"gputopo {__version__}\n")
        return 0
    if first in _OWN_FLAGS:
        commands = [(name, place.summary) for name, place in COMMANDS.items()]
        emit(_help("gputopo", "COMMAND [ARGS]...", _ABOUT, {"Options": _OWN_HELP, "Commands": commands}))
        return 0
    if first not in COMMANDS:
        raise _unknown(first)
    place, words = COMMANDS[first], arguments[1:]
    function = _function(place)
    declared = parameters_of(function)
    if place.aliases:
        from gputopo.cli.run import aliases

        words = aliases.translate(words, [one.option.flag for one in declared if one.is_flag])
    _refuse_moved(words, place.moved)
    texts = texts_of(words, declared, f"gputopo {first}")
    if texts.pop("help", None):
        emit(help_of(f"gputopo {first}", function.__doc__ or "", declared))
        return 0
    refuse(first, texts)
    result = function(**arguments_for(function, texts))
    return int(result) if isinstance(result, int) else 0


def _function(place: CommandPlace) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(place.module), place.function)
    return function


def _refuse_moved(words: Sequence[str], moved: Mapping[str, str]) -> None:
    own = takewhile(lambda word: word != "--", words)
    for flag in (word.partition("=")[0] for word in own):
        if flag in moved:
            raise UsageError(f"there is no option '{flag}'", moved[flag])


def _unknown(word: str) -> UsageError:
    if word.startswith("-"):
        return _unknown_option(word.partition("=")[0], _OWN_FLAGS, "gputopo")
    near = nearest(word, COMMANDS)
    hint = f"did you mean gputopo {near[0]}?" if near else f"the commands are {listed(COMMANDS, 'and')}"
    return UsageError(f"there is no command {shown(word)}", hint)


def texts_of(arguments: Sequence[str], declared: Sequence[Declared], command: str) -> dict[str, Text]:
    """Return what was typed for each option of a command, by its name; `help`: the help was asked for.

    Raises UsageError for an option that it does not have, a value that is missing or too much, and arguments
    that it does not take.
    """
    by_flag = {one.option.flag: one for one in declared if not one.is_positional}
    argument = next((one for one in declared if one.is_positional), None)
    texts: dict[str, Any] = {}
    before: list[str] = []
    behind: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            behind, words = words, []
        elif word.startswith("-") and word != "-":
            flag, has_value, value = word.partition("=")
            option = by_flag.get(flag)
            is_help = flag in ("--help", "-h")
            if option is None and not is_help:
                raise _unknown_option(flag, (*by_flag, "--help"), command)
            if option is None or option.is_flag:
                if has_value:
                    raise UsageError(f"{flag} takes no value", f"write {flag} alone")
                texts["help" if option is None else option.name] = True
                continue
            if option.placeholder.startswith("[") and (not words or words[0].startswith("-")):
                has_value = "="  # a value in brackets may be left out
            if not has_value and not words:
                raise UsageError(f"{flag} needs a value", f"give {flag} {option.placeholder}: {option.help}")
            text = value if has_value else words.pop(0)
            many = option.option.repeated
            texts[option.name] = [*texts.get(option.name, ()), text] if many else text
            while many and argument is None and words and not words[0].startswith("-"):
                texts[option.name].append(words.pop(0))  # --from *.json
        else:
            before.append(word)
    can_read = argument is None and "--from" in by_flag
    return {**texts, **_positional(argument, before, behind, command, can_read=can_read)}


def _positional(
    argument: Declared | None, before: list[str], behind: list[str], command: str, *, can_read: bool
) -> dict[str, Text]:
    """Return the texts of the positional argument. `before`, `behind`: words around `--`."""
    words = [*before, *behind]
    if argument is not None and argument.option.repeated:
        if not argument.option.flag.startswith("[--"):
            return {argument.name: words} if words else {}
        if before:
            raise UsageError(
                f"{command} takes no argument {shown(before[0])}",
                f"leave it out; a program comes after --: {command} [options] -- PROGRAM",
            )
        return {argument.name: behind} if behind else {}
    taken = 0 if argument is None else 1
    if len(words) > taken:
        hint = f"to read a file: --from {words[taken]}" if can_read else _help_hint(command)
        raise UsageError(f"{command} takes no argument {shown(words[taken])}", hint)
    return {argument.name: words[0]} if argument is not None and words else {}


def _unknown_option(flag: str, known: Iterable[str], command: str) -> UsageError:
    """Return the error for an option that a command does not have, with the nearest that it has."""
    near = nearest(flag.lstrip("-"), [name[2:] for name in known if name.startswith("--")])
    hint = f"did you mean --{near[0]}? {_help_hint(command)}" if near else _help_hint(command)
    return UsageError(f"there is no option {shown(flag)}", hint)


def _help_hint(command: str) -> str:
    return f"`{command} --help` shows how it is called"


def help_of(command: str, about: str, declared: Sequence[Declared]) -> str:
    """Return the help of a command: its options under the heading of their theme, the first without one."""
    headed: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for one in declared:
        heading = "Arguments" if one.is_positional else one.theme or "Options"
        headed.setdefault(heading, []).append((f"{one.option.flag} {one.placeholder}".strip(), one.help))
    headed["Options"].append(_OWN_HELP[1])
    usage = " ".join(one.option.flag for one in declared if one.is_positional)
    return _help(command, usage, about, headed)


def _help(command: str, usage: str, about: str, headed: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    width = max(min(shutil.get_terminal_size().columns, _WIDEST) - 2, _NARROWEST)
    lines = [f"Usage: {command} [OPTIONS] {usage}".rstrip()]
    for paragraph in inspect.cleandoc(about).split("\n\n"):
        text = " ".join(paragraph.split())
        lines += ["", *textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")]
    for heading, rows in headed.items():
        if rows:
            first = min(max(len(row[0]) for row in rows), _WIDEST_FLAG) + 2
            lines += ["", f"{heading}:", *(line for row in rows for line in _row(*row, first, width))]
    return "".join(f"{line}\n" for line in lines)


def _row(flag: str, text: str, first: int, width: int) -> list[str]:
    """Return the lines of an option. `first`: columns before its help."""
    wrapped = textwrap.wrap(text, max(width - first - 2, 10)) or [""]
    if len(flag) > first - 2:
        return [f"  {flag}", *(f"  {'':{first}}{line}" for line in wrapped)]
    return [f"  {flag:{first}}{wrapped[0]}".rstrip(), *(f"  {'':{first}}{line}" for line in wrapped[1:])]
