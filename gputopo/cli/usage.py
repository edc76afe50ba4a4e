"""The parser's complaints in two lines: what is wrong, and the nearest thing that would be right."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gputopo.cli.choices import nearest, shown
from gputopo.values.errors import UsageError


def explain(error: Any, command: str, parameters: Sequence[Any]) -> UsageError:
    """Turn a usage error of typer's parser into ours. `parameters` are those of the command.

    The parser's classes differ between typer releases, so what they have in common is looked at: `message`
    and, where there is one, `param` or `option_name`.
    """
    help_hint = f"`{command} --help` shows how it is called"
    option = getattr(error, "option_name", None)
    if option is not None:
        return _option_misused(option, parameters, help_hint)
    parameter = getattr(error, "param", None)
    if parameter is not None:
        if not error.message:
            return UsageError(f"{_name(parameter)} is missing", f"add {_how_to_give(parameter)}")
        why = _plain(error.message).partition(", ")[0]
        return UsageError(f"{_name(parameter)}: {why}", f"give {_how_to_give(parameter)}")
    message = _plain(error.message)
    extra = re.search(r"extra argument(?:\(s\)|s)? \((.*)\)$", message)
    if extra is None:
        return UsageError(message, help_hint)
    hint = f"to read a file: --from {extra[1]}" if _parameter(parameters, "--from") else help_hint
    return UsageError(f"{command} takes no argument {shown(extra[1])}", hint)


def _option_misused(option: str, parameters: Sequence[Any], help_hint: str) -> UsageError:
    known = _parameter(parameters, option)
    if known is None:
        return _unknown_option(option, parameters, help_hint)
    if getattr(known, "is_flag", False):
        return UsageError(f"{option} takes no value", f"write {option} alone")
    return UsageError(f"{option} needs a value", f"give {_how_to_give(known)}")


def _unknown_option(option: str, parameters: Iterable[Any], help_hint: str) -> UsageError:
    names = [name[2:] for parameter in parameters for name in parameter.opts if name.startswith("--")]
    near = nearest(option.lstrip("-"), names)
    hint = f"did you mean --{near[0]}? {help_hint}" if near else help_hint
    return UsageError(f"there is no option {shown(option)}", hint)


def _parameter(parameters: Iterable[Any], option: str) -> Any | None:
    return next((parameter for parameter in parameters if option in parameter.opts), None)


def _name(parameter: Any) -> str:
    return str(parameter.opts[0])


def _how_to_give(parameter: Any) -> str:
    value = parameter.metavar or "VALUE"
    about = f": {parameter.help}" if getattr(parameter, "help", None) else ""
    return f"{_name(parameter)} {value}{about}"


def _plain(message: str) -> str:
    text = " ".join(str(message).split()).rstrip(".")
    return text[:1].lower() + text[1:]
