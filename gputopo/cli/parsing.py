"""Turns the words of a command line into the texts of its options. Mistakes are UsageErrors with a hint.

The options are declared to typer, which dispatches and prints help. Their values stay text here, and
`gputopo.values.option` reads them: typer 0.29 and later load pydantic (50 ms) even to turn text into text.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gputopo.cli.printing import emit
from gputopo.cli.refusals import refuse_typed
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

    parameters = [_parameter(one) for one in parameters_of(command)]
    helps = [
        inspect.Parameter(
            flag, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]
        )
        for flag, info in (("help", _HELP), ("help_all", _HELP_ALL))
    ]
    vars(call)["__signature__"] = inspect.Signature([*parameters, *helps])
    call.__doc__ = command.__doc__
    return call


def _parameter(one: Declared) -> inspect.Parameter:
    if one.is_positional:
        info: Any = typer.Argument(metavar=one.option.flag, help=_both_helps(one))
    else:
        info = typer.Option(
            *filter(None, (one.option.flag, one.option.letter)),
            metavar=one.placeholder or None,
            help=_both_helps(one),
            rich_help_panel=one.option.theme or None,
            show_default=False,
            hidden=one.option.more,
        )
    kind: Any = bool if one.is_flag else list[str] if one.option.repeated else str
    default: Any = False if one.is_flag else None
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if one.is_flag else kind | None, info],
    )


def _both_helps(one: Declared) -> str:
    """Return the line of --help, followed after a line break by the text of --help-all."""
    return f"{one.short_help}\n{one.help}"


class Command(TyperCommand):
    """A command whose parameters are texts and flags. `--help` omits hidden ones."""

    shows_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the context's parameters. Raises UsageError; prints the help if it is requested."""
        unset = {str(one.name): False if getattr(one, "is_flag", False) else None for one in self.params}
        ctx.params = {**unset, **self._texts(list(args), ctx.command_path)}
        self.shows_all = ctx.params.pop("help_all")
        if ctx.params.pop("help") or self.shows_all:
            emit(f"{ctx.get_help()}\n")
            raise typer.Exit
        ctx.args = []
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command."""
        return ["[OPTIONS]", *(one.metavar for one in self._arguments())]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does: the first paragraph, or everything with --help-all."""
        whole = self.help
        self.help = whole if self.shows_all or whole is None else whole.partition("\n\n")[0]
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the headings of their themes; options without a theme come first."""
        headed: dict[str, list[tuple[str, str]]] = {"Arguments": [], _NO_THEME: []}
        hidden = [one for one in self.params if getattr(one, "hidden", False) and not self.shows_all]
        for one in self.params:
            if one in hidden:
                continue
            is_argument = one.param_type_name == "argument"
            flags = "" if is_argument else ", ".join(reversed(one.opts))
            theme = "Arguments" if is_argument else getattr(one, "rich_help_panel", None)
            short, _, whole = str(getattr(one, "help", None) or "").partition("\n")
            text = whole if self.shows_all and whole else short
            record = (f"{flags} {one.metavar or ''}".strip(), text)
            headed.setdefault(theme or _NO_THEME, []).append(record)
        for heading, records in headed.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=_FLAGS_WIDTH)
        if hidden:
            formatter.write(f"\n{len(hidden)} more options: {ctx.command_path} --help-all\n")

    def _arguments(self) -> list[Any]:
        return [one for one in self.params if one.param_type_name == "argument"]

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
                if option is None and self.name == EXPLAIN:
                    before.append(word)  # an option of another command
                    continue
                if option is None:
                    raise unknown_option(flag, by_flag, command)
                if getattr(option, "is_flag", False):
                    if has_value:
                        raise UsageError(f"{flag} takes no value", f"write {flag} alone")
                    texts[option.name] = True
                    continue
                if str(option.metavar).startswith("[") and (not words or words[0].startswith("-")):
                    has_value = "="  # a value in brackets is optional
                if not has_value and not words:
                    raise UsageError(
                        f"{flag} needs a value",
                        f"give {flag} {option.metavar}: {option.help.partition(chr(10))[0]}",
                    )
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
                    f"remove it; a program comes after --: {command} [options] -- PROGRAM",
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
    for one in declared:
        name = one.name.rstrip("_")
        if name not in typed or name in without:
            continue
        value = typed[name]
        for text in value if one.option.repeated else (value,):
            words += [one.option.flag] if one.is_flag or text is True else [one.option.flag, str(text)]
    return words
