"""`gputopo completion`: complete commands, options and their values with the Tab key.

The script of a shell, in a file next to this one, calls gputopo with the line up to the cursor in
_GPUTOPO_COMPLETE. gputopo prints the possible words. If it prints nothing, the shells complete file names.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

from gputopo.cli.printing import emit, is_terminal
from gputopo.report import to_stderr
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared, Option, shown

Shell = Literal["bash", "zsh", "fish"]
_INSTALL: Mapping[Shell, str] = {
    "bash": "echo 'eval \"$(gputopo completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(gputopo completion zsh)\"' >> ~/.zshrc",
    "fish": "gputopo completion fish > ~/.config/fish/completions/gputopo.fish",
}
_TYPED = re.compile(r"[a-z0-9][a-z0-9_.:-]*")  # the literal parts of a placeholder such as `gpu:N|gpu:spread`


def completion(
    shell: Annotated[Shell | None, Option("SHELL", "bash, zsh or fish", default="from $SHELL")] = None,
) -> int:
    """Print a shell completion script for commands, options and their values.

    On a terminal, the command that installs it follows.

    Exit codes: 0 fine; 2 an unknown shell.
    """
    shell = shell or _own_shell(os.environ)
    emit(Path(__file__).with_suffix(f".{shell}").read_text(encoding="utf-8"))
    if is_terminal():
        to_stderr(f"\nTo install it, type:\n  {_INSTALL[shell]}\n")
    return 0


def candidates(line: str) -> list[str]:
    """Return the words that can complete the last word of a line; none if files may follow."""
    from gputopo.cli.commands import COMMANDS, options_of_command

    _, *typed = line.split() + ([""] if line[-1:].isspace() else [])
    if "--" in typed[1:-1]:  # the arguments of another program
        return []
    *before, current = typed or [""]
    if not before:
        return _beginning((*COMMANDS, "--help", "--version"), current)
    if before[0] not in COMMANDS:
        return []
    declared = options_of_command(before[0])
    by_flag = {option.option.flag: option for option in declared if option.placeholder[:1] not in ("", "[")}
    flag, has_value, value = current.partition("=")
    if has_value and flag in by_flag:
        return [f"{flag}={word}" for word in _beginning(_words(by_flag[flag]), value)]
    if before[-1] in by_flag:
        return _beginning(_words(by_flag[before[-1]]), current)
    argument = next((_words(option) for option in declared if option.is_positional), ())
    flags = [option.option.flag for option in declared if not option.is_positional]
    return _beginning(flags if current.startswith("-") or not argument else argument, current)


def _beginning(words: Iterable[str], start: str) -> list[str]:
    return [word for word in words if word.startswith(start)]


def _own_shell(environ: Mapping[str, str]) -> Shell:
    known: Mapping[str, Shell] = {"bash": "bash", "zsh": "zsh", "fish": "fish"}
    name = Path(environ.get("SHELL", "")).name
    if name not in known:
        raise UsageError(
            f"there is no completion for the shell {shown(name)}"
            if name
            else "SHELL does not show which shell to use",
            "choose one: gputopo completion bash, zsh or fish",
        )
    return known[name]


def _words(option: Declared) -> tuple[str, ...]:
    """Return the words of an option's value: the names in a table, or the words in its placeholder."""
    if option.option.flag == "--model":
        from gputopo.workload import workload_names

        return workload_names()
    if option.option.flag == "--from" and option.placeholder == "FILE":
        from gputopo.captures import bundled_names

        return bundled_names()
    if option.option.flag == "--all-reduce":
        from gputopo.values.run.all_reduce import NAMES

        return NAMES
    if option.option.flag == "--program":
        from gputopo.prediction import program_names

        return program_names()
    if option.option.flag == "--strategy":
        from gputopo.values.run.names import Kind

        return get_args(Kind)
    if option.option.flag == "[TOPIC...]":
        from gputopo import pages

        return tuple(topic for topic in pages.topics() if " " not in topic)
    if option.option.flag == "SHELL":
        return get_args(Shell)
    return tuple(word for word in option.placeholder.split("|") if _TYPED.fullmatch(word))
