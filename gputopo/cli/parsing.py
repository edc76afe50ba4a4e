"""Turns the words of a command line into the texts of its options. Mistakes are UsageErrors with a hint.

The options are declared to typer, which dispatches and prints help. Their values stay text here, and
`gputopo.values.option` reads them: typer 0.29 and later load pydantic (50 ms) even to turn text into text.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gputopo.cli.printing import emit
from gputopo.cli.refusals import refuse_moved, refuse_typed
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, Text, arguments_for, nearest, parameters_of, shown

EXPLAIN = "explain"  # the command whose argument may be an option
_NO_THEME = "Options"
_HELP = typer.Option("--help", "-h", help="Show the usual options.")
_HELP_ALL = typer.Option("--help-all", help="Show all options.")
_FLAGS_WIDTH = 28  # columns of an option and its value; the help of a wider one starts on the next line


def declared_to_typer(name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command as typer needs it: with a text parameter for each option.

    Options that exclude one another are refused before the command is called.
    """

    def call(**texts: Any) -> Any:
        typed = {option: text for option, text in texts.items() if text not in (None, False, [])}
        refuse_typed(name, typed)
        return command(**arguments_for(command, typed))

    parameters = [_parameter(declared) for declared in parameters_of(command)]
    helps = [
        inspect.Parameter(
            flag, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]
        )
        for flag, info in (("help", _HELP), ("help_all", _HELP_ALL))
    ]
    vars(call)["__signature__"] = inspect.Signature([*parameters, *helps])
    call.__doc__ = command.__doc__
    return call


def _parameter(declared: Declared) -> inspect.Parameter:
    if declared.is_positional:
        info: Any = typer.Argument(metavar=declared.option.flag, help=_both_helps(declared))
    else:
        info = typer.Option(
            *filter(None, (declared.option.flag, declared.option.letter)),
            metavar=declared.placeholder or None,
            help=_both_helps(declared),
            rich_help_panel=declared.option.theme or None,
            show_default=False,
            hidden=declared.option.more,
        )
    kind: Any = bool if declared.is_flag else list[str] if declared.option.repeated else str
    default: Any = False if declared.is_flag else None
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if declared.is_flag else kind | None, info],
    )


def _both_helps(declared: Declared) -> str:
    """Return the line of --help, followed after a line break by the text of --help-all."""
    return f"{declared.short_help}\n{declared.help}"


class Command(TyperCommand):
    """A command whose parameters are texts and flags. `--help` omits hidden ones."""

    shows_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the context's parameters. Raises UsageError; prints the help if it is requested."""
        unset = {
            str(parameter.name): False if getattr(parameter, "is_flag", False) else None
            for parameter in self.params
        }
        ctx.params = {**unset, **self._texts(list(args), ctx.command_path)}
        self.shows_all = ctx.params.pop("help_all")
        if ctx.params.pop("help") or self.shows_all:
            emit(f"{ctx.get_help()}\n")
            raise typer.Exit
        ctx.args = []
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command."""
        return ["[OPTIONS]", *(parameter.metavar for parameter in self._arguments())]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does: the first paragraph, or everything with --help-all."""
        whole = self.help
        self.help = whole if self.shows_all or whole is None else whole.partition("\n\n")[0]
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the headings of their themes; options without a theme come first."""
        headed: dict[str, list[tuple[str, str]]] = {"Arguments": [], _NO_THEME: []}
        hidden = [
            parameter
            for parameter in self.params
            if getattr(parameter, "hidden", False) and not self.shows_all
        ]
        for parameter in self.params:
            if parameter in hidden:
                continue
            is_argument = parameter.param_type_name == "argument"
            flags = "" if is_argument else ", ".join(reversed(parameter.opts))
            theme = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            short, _, whole = str(getattr(parameter, "help", None) or "").partition("\n")
            text = whole if self.shows_all and whole else short
            record = (f"{flags} {parameter.metavar or ''}".strip(), text)
            headed.setdefault(theme or _NO_THEME, []).append(record)
        for heading, records in headed.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=_FLAGS_WIDTH)
        if hidden:
            formatter.write(f"\n{len(hidden)} more options: {ctx.command_path} --help-all\n")

    def _arguments(self) -> list[Any]:
        return [parameter for parameter in self.params if parameter.param_type_name == "argument"]

    def _texts(self, words: list[str], command: str) -> dict[str, Text]:
        line = [*takewhile(lambda word: word != "--", words)]
        behind = words[len(line) + 1 :]
        given = _ReadOptions(
            {flag: parameter for parameter in self.params for flag in parameter.opts if flag[:1] == "-"}
        )
        before: list[str] = []
        left = list(line)
        while left:
            word = left.pop(0)
            if not word.startswith("-") or word == "-":
                before.append(word)
                continue
            flag, has_value, value = word.partition("=")
            flag = flag.replace("_", "-") if flag.startswith("--") else flag
            option = given.by_flag.get(flag)
            if option is None or (option.is_flag and has_value):
                from gputopo.cli.run import aliases  # its table is read only if it is needed

                refuse_moved(str(self.name), flag)
                if self._take_alias(given, flag, value if has_value else None, left, line):
                    continue
                option = given.by_flag.get(aliases.renamed(flag))
            if option is None and self.name == EXPLAIN:
                before.append(word)  # an option of another command
                continue
            if option is None:
                raise unknown_option(flag, given.by_flag, command)
            if option.is_flag and has_value:
                raise UsageError(f"{flag} takes no value", f"write {flag} alone")
            if option.is_flag:
                given.set(option, flag, True)
                continue
            if str(option.metavar).startswith("[") and (not left or left[0].startswith("-")):
                has_value = "="  # a value in brackets is optional
            if not has_value and not left:
                raise UsageError(
                    f"{flag} needs a value",
                    f"give {flag} {option.metavar}: {option.help.partition(chr(10))[0]}",
                )
            given.set(option, flag, value if has_value else left.pop(0))
            while option.multiple and not self._arguments() and left and not left[0].startswith("-"):
                given.set(option, flag, left.pop(0))  # --from *.json
        return {**given.texts, **self._positional(before, behind, command)}

    def _take_alias(
        self, given: "_ReadOptions", flag: str, value: str | None, left: list[str], line: Sequence[str]
    ) -> bool:
        """Set the options that a flag of another program means, or a form of a switch; return if it is one.

        `left`: the words after it, of which its value is taken. Raises UsageError.
        """
        from gputopo.cli.run import aliases

        if values := aliases.values_of(flag, line):
            if value is None and not left:
                raise UsageError(f"{flag} needs a value", f"give one of {', '.join(values)}")
            value = left.pop(0) if value is None else value
            aliases.require_known(flag, value)
            if value not in values:
                raise UsageError(f"{flag} cannot be {value!r}", f"give one of {', '.join(values)}")
            return given.set_words(flag, values[value])
        if flag not in given.by_flag:
            aliases.require_known(flag)
        own_switches = {name: ((name,), ()) for name, option in given.by_flag.items() if option.is_flag}
        switches = {**aliases.switches(), **own_switches}
        switch, is_on = flag, aliases.is_on(value)
        if flag not in switches and flag.startswith("--no"):
            switch, is_on = f"--{flag[4:]}", False
        if switch not in switches or (is_on is None and switch in own_switches):
            return False
        if is_on is None:
            raise UsageError(f"{flag} cannot be {value!r}", f"write {flag}, {flag}=true or {flag}=false")
        given.unset(switch)
        yes, no = switches[switch]
        return given.set_words(switch, yes if is_on else no)

    def _positional(self, before: list[str], behind: list[str], command: str) -> dict[str, Text]:
        argument = next(iter(self._arguments()), None)
        if argument is not None and argument.nargs == -1:
            if not str(argument.metavar).startswith("[--"):
                return {argument.name: [*before, *behind]}
            if before:
                raise UsageError(
                    f"{command} takes no argument {shown(before[0])}",
                    f"remove it; a program comes after --: {command} [options] -- PROGRAM",
                )
            return {argument.name: behind}
        words = [*before, *behind]
        taken = 0 if argument is None else 1
        if len(words) > taken:
            can_read = any("--from" in parameter.opts for parameter in self.params) and argument is None
            hint = f"to read a file: --from {words[taken]}" if can_read else _help_hint(command)
            raise UsageError(f"{command} takes no argument {shown(words[taken])}", hint)
        return {argument.name: words[0]} if argument is not None and words else {}


class _ReadOptions:
    """The texts of options as they are read, and the flag that was typed for each."""

    def __init__(self, by_flag: Mapping[str, Any]) -> None:
        self.by_flag = by_flag
        self.texts: dict[str, Any] = {}
        self._flags: dict[str, str] = {}

    def set(self, option: Any, flag: str, text: str | bool) -> None:
        """Set an option; the last text of a flag counts. Raises UsageError if two flags disagree."""
        name, before = option.name, self._flags.setdefault(option.name, flag)
        if option.multiple:
            self.texts[name] = [*self.texts.get(name, ()), text]
            return
        if before != flag and self.texts[name] != text:
            raise UsageError(
                f"{before} and {flag} both mean {option.opts[0]}, with different values",
                f"use only one of them, or only {option.opts[0]}",
            )
        self.texts[name] = text

    def set_words(self, flag: str, words: Sequence[str]) -> bool:
        """Set the options that a flag means: `--precision fp16`. Return whether the command has them."""
        settings = [(words[at], words[at + 1 : at + 2]) for at, word in enumerate(words) if word[:2] == "--"]
        if any(name not in self.by_flag for name, _ in settings):
            return False
        for name, value in settings:
            option = self.by_flag[name]
            self.set(option, flag, True if option.is_flag else value[0])
        return True

    def unset(self, flag: str) -> None:
        """Remove what a switch has set."""
        for name in [name for name, typed in self._flags.items() if typed == flag]:
            del self._flags[name], self.texts[name]


def unknown_option(flag: str, known: Sequence[str] | Mapping[str, Any], command: str) -> UsageError:
    """Return the error for an option that a command does not have, with the nearest one that it has."""
    near = nearest(flag.lstrip("-"), [name[2:] for name in known if name.startswith("--")])
    hint = f"did you mean --{near[0]}? {_help_hint(command)}" if near else _help_hint(command)
    return UsageError(f"there is no option {shown(flag)}", hint)


def _help_hint(command: str) -> str:
    return f"`{command} --help` shows how it is called"


def typed_words(
    declared: Sequence[Declared], typed: Mapping[str, Any], without: Sequence[str] = ()
) -> list[str]:
    """Return the options as typed, except `without`, a list of names."""
    words: list[str] = []
    for option in declared:
        name = option.name.rstrip("_")
        if name not in typed or name in without:
            continue
        value = typed[name]
        for text in value if option.option.repeated else (value,):
            words += (
                [option.option.flag] if option.is_flag or text is True else [option.option.flag, str(text)]
            )
    return words
