"""Turns the words of a command line into the texts of its options. Mistakes are UsageErrors with a hint.

typer dispatches and lays out the help. It does not see the options: to declare each of them to typer takes
10 ms, and typer 0.29 and later load pydantic (50 ms) even to turn text into text. `gputopo.values.option`
reads the values.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperCommand

from gputopo.cli.printing import emit
from gputopo.cli.refusals import refuse_moved, refuse_typed
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, Option, Text, arguments_for, nearest, parameters_of, shown

EXPLAIN = "explain"  # the command whose argument may be an option
_NO_THEME = "Options"
_HELPS = (
    Declared(Option("--help", "Show the usual options", letter="-h"), "help", bool, False),
    Declared(Option("--help-all", "Show all options"), "help_all", bool, False),
)
_FLAGS_WIDTH = 28  # columns of an option and its value; the help of a wider one starts on the next line


class Command(TyperCommand):
    """A command that calls a function with the values of its options. `--help` omits seldom used ones."""

    shows_all = False

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Raises UsageError, when it is called, for options that exclude one another."""

        def call(**texts: Any) -> Any:
            typed = {option: text for option, text in texts.items() if text not in (None, False, [])}
            refuse_typed(name, typed)
            return function(**arguments_for(function, typed))

        super().__init__(
            name,
            callback=call,
            help=inspect.getdoc(function),
            add_help_option=False,
            rich_markup_mode=None,
        )
        declared = parameters_of(function)
        self._options = (*(one for one in declared if not one.is_positional), *_HELPS)
        self._argument = next((one for one in declared if one.is_positional), None)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the context's parameters. Raises UsageError; prints the help if it is requested."""
        texts = self._texts(list(args), ctx.command_path)
        self.shows_all = texts.pop("help_all", False) is True
        if texts.pop("help", False) or self.shows_all:
            emit(f"{ctx.get_help()}\n")
            raise typer.Exit
        ctx.params, ctx.args = texts, []
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command."""
        return ["[OPTIONS]", *([] if self._argument is None else [self._argument.option.flag])]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does: the first paragraph, or everything with --help-all."""
        whole = self.help
        self.help = whole if self.shows_all or whole is None else whole.partition("\n\n")[0]
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the headings of their themes; options without a theme come first."""
        headed: dict[str, list[tuple[str, str]]] = {"Arguments": [], _NO_THEME: []}
        if self._argument is not None:
            headed["Arguments"].append((self._argument.option.flag, self._help_of(self._argument)))
        shown_options = [one for one in self._options if self.shows_all or not one.option.more]
        for one in shown_options:
            flags = ", ".join(filter(None, (one.option.letter, one.option.flag)))
            record = (f"{flags} {one.placeholder}".strip(), self._help_of(one))
            headed.setdefault(one.option.theme or _NO_THEME, []).append(record)
        for heading, records in headed.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=_FLAGS_WIDTH)
        if hidden := len(self._options) - len(shown_options):
            formatter.write(f"\n{hidden} more options: {ctx.command_path} --help-all\n")

    def _help_of(self, declared: Declared) -> str:
        return declared.help if self.shows_all else declared.short_help

    def _texts(self, words: list[str], command: str) -> dict[str, Text]:
        line = [*takewhile(lambda word: word != "--", words)]
        behind = words[len(line) + 1 :]
        given = _ReadOptions(
            {flag: one for one in self._options for flag in (one.option.flag, one.option.letter) if flag}
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
            if option.placeholder.startswith("[") and (not left or left[0].startswith("-")):
                has_value = "="  # a value in brackets is optional
            if not has_value and not left:
                raise UsageError(
                    f"{flag} needs a value",
                    f"give {flag} {option.placeholder}: {option.short_help}",
                )
            given.set(option, flag, value if has_value else left.pop(0))
            while option.option.repeated and self._argument is None and left and not left[0].startswith("-"):
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
        words = [*before, *behind]
        argument = self._argument
        if argument is not None and argument.option.repeated:
            if not argument.option.flag.startswith("[--"):
                return {argument.name: words}
            if before:
                raise UsageError(
                    f"{command} takes no argument {shown(before[0])}",
                    f"remove it; a program comes after --: {command} [options] -- PROGRAM",
                )
            return {argument.name: behind}
        taken = 0 if argument is None else 1
        if len(words) > taken:
            can_read = any(one.option.flag == "--from" for one in self._options) and argument is None
            hint = f"to read a file: --from {words[taken]}" if can_read else _help_hint(command)
            raise UsageError(f"{command} takes no argument {shown(words[taken])}", hint)
        return {argument.name: words[0]} if argument is not None and words else {}


class _ReadOptions:
    """The texts of options as they are read, and the flag that was typed for each."""

    def __init__(self, by_flag: Mapping[str, Declared]) -> None:
        self.by_flag = by_flag
        self.texts: dict[str, Any] = {}
        self._flags: dict[str, str] = {}

    def set(self, option: Declared, flag: str, text: str | bool) -> None:
        """Set an option; the last text of a flag counts. Raises UsageError if two flags disagree."""
        name, before = option.name, self._flags.setdefault(option.name, flag)
        if option.option.repeated:
            self.texts[name] = [*self.texts.get(name, ()), text]
            return
        if before != flag and self.texts[name] != text:
            raise UsageError(
                f"{before} and {flag} both mean {option.option.flag}, with different values",
                f"use only one of them, or only {option.option.flag}",
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
