"""`gputopo completion`: the script that completes commands, options and their values in a shell."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from gputopo.cli.printing import emit, note
from gputopo.report.completion import CompletedCommand, CompletedOption, Files, Shell, literal_words, script
from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Declared, Option, shown

_FILES: Mapping[str, Files] = {"FILE": "files", "OLD": "files", "DIR": "folders"}
_BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")  # it loads files by a command's name


def completion(
    shell: Annotated[Shell | None, Option("SHELL", "bash, zsh or fish", default="that of $SHELL")] = None,
    install: Annotated[
        bool, Option("--install", "Write the script where the shell finds it, and have it loaded")
    ] = False,
) -> int:
    """Complete commands, options and their values by the Tab key: gputopo completion --install

    Without --install it prints the script: eval "$(gputopo completion bash)".

    Exit codes: 0 fine; 2 an unknown shell, or a file that cannot be written.
    """
    shell = shell or _own_shell(os.environ)
    text = script(shell, _commands())
    if not install:
        emit(text)
        return 0
    file, loaded_by = place(shell, os.environ, has_bash_completion=_BASH_COMPLETION.exists())
    _write(file, text)
    note(f"wrote {file}")
    if loaded_by is not None and _add_line(loaded_by, f"source {file}  # completes gputopo\n"):
        note(f"added a line to {loaded_by} that loads it")
    note("it completes in the next shell that is started; run this again after an update of gputopo")
    return 0


def place(shell: Shell, environ: Mapping[str, str], *, has_bash_completion: bool) -> tuple[Path, Path | None]:
    """Return the file of the script, and the file of the user's that must load it (None: the shell does)."""
    home = Path(environ.get("HOME") or "~").expanduser()
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    if shell == "fish":
        return Path(
            environ.get("XDG_CONFIG_HOME") or home / ".config"
        ) / "fish/completions/gputopo.fish", None
    if shell == "zsh":
        return data / "gputopo/completion.zsh", Path(environ.get("ZDOTDIR") or home) / ".zshrc"
    return data / "bash-completion/completions/gputopo", None if has_bash_completion else home / ".bashrc"


def _own_shell(environ: Mapping[str, str]) -> Shell:
    known: Mapping[str, Shell] = {"bash": "bash", "zsh": "zsh", "fish": "fish"}
    name = Path(environ.get("SHELL", "")).name
    if name not in known:
        raise UsageError(
            f"there is no completion for the shell {shown(name)}" if name else "SHELL names no shell",
            "name one: gputopo completion bash, zsh or fish",
        )
    return known[name]


def _write(file: Path, text: str) -> None:
    from gputopo.values import schema

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make {file.parent}: {error.strerror}", "print the script instead: leave --install out"
        ) from error
    with schema.replacing(file) as stream:
        stream.write(text.encode())


def _add_line(file: Path, line: str) -> bool:
    """Add the line at the end of a file, unless it is there; return whether it was added."""
    try:
        has = file.exists() and line.strip() in file.read_text(errors="surrogateescape").splitlines()
        if not has:
            with file.open("a") as stream:
                stream.write(f"\n{line}")
    except OSError as error:
        raise InputError(
            f"cannot write {file}: {error.strerror}", f"add the line yourself: {line.strip()}"
        ) from error
    return not has


def _commands() -> list[CompletedCommand]:
    from gputopo.cli.commands import COMMANDS, options_of_command

    return [
        CompletedCommand(name, place.summary, tuple(_option(one) for one in options_of_command(name)))
        for name, place in COMMANDS.items()
    ]


def _option(one: Declared) -> CompletedOption:
    if one.is_positional:
        return CompletedOption("", one.option.help, words=_words(one))
    is_optional = one.placeholder.startswith("[")
    return CompletedOption(
        one.option.flag,
        one.option.help.partition("; ")[0].partition(": ")[0],
        takes_value=bool(one.placeholder) and not is_optional,
        words=_words(one),
        files=_FILES.get(one.placeholder, ""),
    )


def _words(one: Declared) -> tuple[str, ...]:
    """Return the words of an option's value: names of a table, or what its placeholder lists."""
    if one.option.flag == "--model":
        from gputopo.workload import workloads

        return workloads.names()
    if one.option.flag == "--from" and one.placeholder == "FILE":
        from gputopo.captures.recording import bundled_names

        return bundled_names()
    if one.option.flag == "--all-reduce":
        from gputopo.values.run.all_reduce import NAMES

        return NAMES
    if one.option.flag == "--program":
        from gputopo.prediction.programs import program_names

        return program_names()
    if one.option.flag == "--strategy":
        from typing import get_args

        from gputopo.launch.spec.names import Kind

        return get_args(Kind)
    if one.option.flag == "TOPIC":
        from gputopo import pages

        return tuple(topic for topic in pages.topics() if " " not in topic)
    if one.option.flag == "SHELL":
        from typing import get_args

        return get_args(Shell)
    return literal_words(one.placeholder)
