"""The parser's complaints in two lines: what is wrong, and the nearest thing that would be right."""

from collections.abc import Iterable
from typing import Any

from gputopo.cli.choices import nearest, shown
from gputopo.errors import UsageError


def explain(error: Any) -> UsageError:
    """Turn a usage error of typer's parser into ours.

    The parser's classes differ between typer releases, so what they have in common is looked at:
    `ctx`, `message`, and, where there is one, `param` or `option_name`.
    """
    command = error.ctx.command_path if error.ctx is not None else "gputopo"
    help_hint = f"`{command} --help` shows how it is called"
    parameters = error.ctx.command.params if error.ctx is not None else ()
    option = getattr(error, "option_name", None)
    if option is not None:
        known = _parameter(parameters, option)
        if known is None:
            return _unknown_option(option, parameters, help_hint)
        if getattr(known, "is_flag", False):
            return UsageError(f"{option} takes no value", f"write {option} alone")
        return UsageError(f"{option} needs a value", _how_to_give(known))
    parameter = getattr(error, "param", None)
    if parameter is not None:
        if not error.message:
            return UsageError(f"{_name(parameter)} is missing", f"add {_how_to_give(parameter, verb='')}")
        return UsageError(f"{_name(parameter)}: {_plain(error.message)}", _how_to_give(parameter))
    message = _plain(error.message)
    if "extra argument" in message and _parameter(parameters, "--from") is not None:
        extra = message.partition("(")[2].rpartition(")")[0]
        return UsageError(
            f"{command} does not know what to do with {shown(extra)}", f"to read a file: --from {extra}"
        )
    return UsageError(message, help_hint)


def _unknown_option(option: str, parameters: Iterable[Any], help_hint: str) -> UsageError:
    near = nearest(
        option, (name for parameter in parameters for name in parameter.opts if name.startswith("--"))
    )
    hint = f"did you mean {near[0]}? {help_hint}" if near else help_hint
    return UsageError(f"there is no option {shown(option)}", hint)


def _parameter(parameters: Iterable[Any], option: str) -> Any | None:
    return next((parameter for parameter in parameters if option in parameter.opts), None)


def _name(parameter: Any) -> str:
    return str(parameter.opts[0])


def _how_to_give(parameter: Any, verb: str = "give ") -> str:
    value = parameter.metavar or "VALUE"
    about = f": {parameter.help}" if getattr(parameter, "help", None) else ""
    return f"{verb}{_name(parameter)} {value}{about}"


def _plain(message: str) -> str:
    text = " ".join(str(message).split()).rstrip(".")
    return text[:1].lower() + text[1:]
