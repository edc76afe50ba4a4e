"""Words of a command line to the arguments of its command, and its help. Mistakes are UsageErrors."""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gputopo.cli.printing import emit
from gputopo.cli.refusals import refuse
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, Option, Text, arguments_for, nearest, parameters_of, shown

_HELP = Declared(Option("--help", "Show the usual options", letter="-h"), "help", bool, False)
_HELP_ALL = Declared(Option("--help-all", "Show all options"), "help_all", bool, False)
_FLAGS_WIDTH = 28  # columns of an option and its value, behind which its help begins on the same line
_MAX_WIDTH = 98  # of the help


def call(name: str, command: Callable[..., Any], words: Sequence[str]) -> Any:
    """Call a command with what was typed for it, or print its help. Raises whatever GputopoError it does.

    Options that exclude one another are refused before it is called.
    """
    declared = (*parameters_of(command), _HELP, _HELP_ALL)
    texts = _texts(declared, list(words), f"gputopo {name}")
    if "help" in texts or "help_all" in texts:
        emit(_help(f"gputopo {name}", command, declared, whole="help_all" in texts))
        return None
    refuse(name, texts)
    return command(**arguments_for(command, texts))


def paragraphs(text: str) -> str:
    """Return a docstring wrapped for the terminal, indented by two columns."""
    wrapped = (_wrapped(one, _width() - 2) for one in inspect.cleandoc(text).split("\n\n"))
    return "\n\n".join("\n".join(f"  {line}" for line in lines) for lines in wrapped)


def section(heading: str, records: Sequence[tuple[str, str]]) -> str:
    """Return a heading with rows below it: what is typed, and its help beside or below it."""
    return "\n".join((f"\n{heading}:", *_rows(records, _width()), ""))


def _rows(records: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    left = min(max(len(flags) for flags, _ in records), _FLAGS_WIDTH) + 4
    for flags, text in records:
        begin = f"  {flags}"
        if len(begin) > left - 2:
            yield begin
            begin = ""
        for line in _wrapped(text, width - left):
            yield f"{begin:{left}}{line}".rstrip()
            begin = ""


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False) or [""]


def _width() -> int:
    return min(shutil.get_terminal_size().columns - 2, _MAX_WIDTH)


def _help(name: str, command: Callable[..., Any], declared: Sequence[Declared], *, whole: bool) -> str:
    """Return the help: what the command does, and its options by theme, those without one first."""
    arguments = [one.option.flag for one in declared if one.is_positional]
    doc = inspect.getdoc(command) or ""
    text = f"Usage: {' '.join((name, '[OPTIONS]', *arguments))}\n\n"
    text += f"{paragraphs(doc if whole else doc.partition(chr(10) * 2)[0])}\n"
    headed: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for one in declared:
        if whole or not one.more:
            typed = " ".join(filter(None, (one.option.flag, one.placeholder)))
            heading = "Arguments" if one.is_positional else one.theme or "Options"
            flags = f"{one.option.letter}, {typed}".removeprefix(", ")
            headed.setdefault(heading, []).append((flags, one.help if whole else one.short_help))
    text += "".join(section(heading, records) for heading, records in headed.items() if records)
    hidden = 0 if whole else sum(one.more for one in declared)
    return text + (f"\n{hidden} more options: {name} --help-all\n" if hidden else "")


def _texts(declared: Iterable[Declared], words: list[str], command: str) -> dict[str, Text]:
    """Return what was typed for each option, by its name."""
    flags = ((flag, one) for one in declared for flag in (one.option.flag, one.option.letter))
    by_flag = {flag: one for flag, one in flags if flag[:1] == "-"}
    argument = next((one for one in declared if one.is_positional), None)
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
            if option.is_flag:
                if has_value:
                    raise UsageError(f"{flag} takes no value", f"write {flag} alone")
                texts[option.name] = True
                continue
            if option.placeholder.startswith("[") and (not words or words[0].startswith("-")):
                has_value = "="  # a value in brackets may be left out
            if not has_value and not words:
                raise UsageError(
                    f"{flag} needs a value", f"give {flag} {option.placeholder}: {option.short_help}"
                )
            text = value if has_value else words.pop(0)
            several = option.option.repeated
            texts[option.name] = [*texts.get(option.name, ()), text] if several else text
            while several and argument is None and words and not words[0].startswith("-"):
                texts[option.name].append(words.pop(0))  # --from *.json
        else:
            before.append(word)
    can_read = "--from" in by_flag and argument is None
    return {**texts, **_positional(argument, before, behind, command, can_read=can_read)}


def _positional(
    argument: Declared | None, before: list[str], behind: list[str], command: str, *, can_read: bool
) -> dict[str, Text]:
    """Return what was typed without a flag, `before` and `behind` a --."""
    words = [*before, *behind]
    if argument is not None and argument.option.repeated:
        if before and argument.option.flag.startswith("[--"):
            raise UsageError(
                f"{command} takes no argument {shown(before[0])}",
                f"leave it out; a program comes after --: {command} [options] -- PROGRAM",
            )
        return {argument.name: words} if words else {}
    taken = 0 if argument is None else 1
    if len(words) > taken:
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
