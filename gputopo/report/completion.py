"""Scripts that complete a command line of gputopo in bash, zsh and fish: tables of words.

Pure: texts out of `Completed` values. A script is as old as the gputopo that wrote it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Shell = Literal["bash", "zsh", "fish"]
Files = Literal["", "files", "folders"]

# What of a placeholder such as `N|auto` or `auto|cpu|gpu:N|gpu:spread` is typed as it stands.
_TYPED = re.compile(r"[a-z0-9][a-z0-9_.:-]*")


@dataclass(frozen=True)
class CompletedOption:
    """An option: its help, whether it takes a value, the words of it, and whether files are offered.

    `flag` is "" for the value of an argument without a flag.
    """

    flag: str
    help: str
    takes_value: bool = False
    words: tuple[str, ...] = ()
    files: Files = ""


@dataclass(frozen=True)
class CompletedCommand:
    """A command, its line of help and its options."""

    name: str
    help: str
    options: tuple[CompletedOption, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """The options with a flag."""
        return tuple(one.flag for one in self.options if one.flag)

    @property
    def argument(self) -> CompletedOption:
        """The argument without a flag, or one that takes no word."""
        return next((one for one in self.options if not one.flag), CompletedOption("", ""))


def literal_words(placeholder: str) -> tuple[str, ...]:
    """Return the alternatives of a placeholder that are typed as they stand: of `N|auto` `auto`."""
    return tuple(word for word in placeholder.split("|") if _TYPED.fullmatch(word))


def script(shell: Shell, commands: Sequence[CompletedCommand]) -> str:
    """Return the script for a shell."""
    written: Mapping[str, Callable[[Sequence[CompletedCommand]], str]] = {
        "bash": _bash,
        "zsh": _zsh,
        "fish": _fish,
    }
    return written[shell](commands)


def _bash(commands: Sequence[CompletedCommand]) -> str:
    cases = "\n".join(
        f"        {_pattern(command.name, one)}) words={_quoted(one.words)} files={_BASH_FILES[one.files]} ;;"
        for command in commands
        for one in command.options
        if one.takes_value
    )
    flags = "\n".join(
        f"        {command.name}) words={_quoted(command.flags)}"
        f" argument={_quoted(command.argument.words)} ;;"
        for command in commands
    )
    return _BASH.format(commands=" ".join(one.name for one in commands), cases=cases, flags=flags)


# The value of `--option value` or `--option=value`. Readline replaces only what follows the last : or =, so
# what is before it is cut off the words that are found.
_BASH = """\
# Completes gputopo in bash; written by: gputopo completion bash
_gputopo() {{
    local line=${{COMP_LINE:0:COMP_POINT}} words="" files="" argument="" option="" current="" cut
    local -a typed
    read -ra typed <<<"$line"
    [[ $line == *[[:space:]] ]] && typed+=("")
    COMPREPLY=()
    local last=$((${{#typed[@]}} - 1)) index
    for ((index = 2; index < last; index++)); do
        if [[ ${{typed[index]}} == -- ]]; then
            compopt -o default
            return
        fi
    done
    current=${{typed[last]}}
    if ((last == 1)); then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
        return
    fi
    if [[ $current == --*=* ]]; then
        option=${{current%%=*}} current=${{current#*=}}
    else
        option=${{typed[last-1]}}
    fi
    case "${{typed[1]}} $option" in
{cases}
        *) option="" ;;
    esac
    if [[ -z $option ]]; then
        case "${{typed[1]}}" in
{flags}
        esac
        [[ $current == -* || -z $argument ]] || words=$argument
    fi
    cut=${{current%"${{current##*[:=]}}"}}
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    if [[ -n $files ]]; then
        compopt -o filenames
        mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen "$files" -- "$current")
    fi
    COMPREPLY=("${{COMPREPLY[@]#"$cut"}}")
}}
complete -F _gputopo gputopo
"""
_BASH_FILES = {"": '""', "files": "-f", "folders": "-d"}


def _zsh(commands: Sequence[CompletedCommand]) -> str:
    cases = "\n".join(
        f"        {_pattern(command.name, one)})"
        f" compadd -- {' '.join(one.words)}{_ZSH_FILES[one.files]}; return ;;"
        for command in commands
        for one in command.options
        if one.takes_value
    )
    flags = "\n".join(
        f"        {command.name})\n            found=({' '.join(map(_described, command.options))})\n"
        f"            argument=({' '.join(command.argument.words)}) ;;"
        for command in commands
    )
    listed = " ".join(_quoted_text(f"{one.name}:{one.help}") for one in commands)
    return _ZSH.format(commands=listed, cases=cases, flags=flags)


_ZSH = """\
#compdef gputopo
# Completes gputopo in zsh; written by: gputopo completion zsh
_gputopo() {{
    local option
    local -a found argument
    if ((CURRENT == 2)); then
        found=({commands})
        _describe command found
        return
    fi
    if ((${{words[(i)--]}} < CURRENT)); then
        _files
        return
    fi
    if [[ $PREFIX == --*=* ]]; then
        option=${{PREFIX%%=*}}
        compset -P '*='
    else
        option=${{words[CURRENT-1]}}
    fi
    case "${{words[2]}} $option" in
{cases}
    esac
    case "${{words[2]}}" in
{flags}
    esac
    if [[ $PREFIX == -* ]] || ((! $#argument)); then
        _describe option found
    else
        compadd -- $argument
    fi
}}
if ((!$+functions[compdef])); then
    autoload -Uz compinit
    compinit
fi
compdef _gputopo gputopo
"""
_ZSH_FILES = {"": "", "files": "; _files", "folders": "; _files -/"}


def _described(one: CompletedOption) -> str:
    return _quoted_text(f"{one.flag}:{one.help}") if one.flag else ""


def _fish(commands: Sequence[CompletedCommand]) -> str:
    lines = ["# Completes gputopo in fish; written by: gputopo completion fish", "complete -c gputopo -f"]
    for command in commands:
        lines.append(
            f"complete -c gputopo -n __fish_use_subcommand -a {command.name} -d {_quoted_text(command.help)}"
        )
    for command in commands:
        when = f"-n '__fish_seen_subcommand_from {command.name}; and not contains -- -- (commandline -opc)'"
        for one in command.options:
            words = f" -a {_quoted(one.words)}" if one.words else ""
            if not one.flag:
                lines.append(f"complete -c gputopo {when}{words}")
                continue
            value = "" if not one.takes_value else f" {_FISH_FILES[one.files]}{words}"
            help_words = _quoted_text(one.help)
            lines.append(
                f"complete -c gputopo {when} -l {one.flag.removeprefix('--')}{value} -d {help_words}"
            )
    return "\n".join(lines) + "\n"


_FISH_FILES = {"": "-x", "files": "-r -F", "folders": "-x -a '(__fish_complete_directories)'"}


def _pattern(command: str, one: CompletedOption) -> str:
    return f'"{command} {one.flag}"'


def _quoted(words: Sequence[str]) -> str:
    return f'"{" ".join(words)}"'


def _quoted_text(text: str) -> str:
    """Return text in single quotes for a shell, without those that it holds."""
    return "'" + text.replace("'", "").replace("\\", "") + "'"
