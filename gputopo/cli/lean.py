"""Typer commands that start fast: what needs no conversion is not converted."""

import types
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from gputopo.cli.printing import emit
from gputopo.values.errors import UsageError

_NO_THEME = "Options"


class LeanCommand(TyperCommand):
    """A command whose text options, and options that were not given, pass as they are.

    typer 0.29 and later load pydantic (about 50 ms) to turn even text into text. An option of another type
    that was given is converted by typer as ever; earlier releases are left alone.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Give the options, that of the help included, each with the shorter way to its value."""
        return _lean(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words. Raises UsageError for a program's word that no `--` stands before.

        The parser takes any word that is no option for the program's, so that a forgotten or doubled value
        (`--use_fp16 true`) would be run.
        """
        behind = len(args) - args.index("--") - 1 if "--" in args else 0
        left: list[str] = super().parse_args(ctx, args)
        for one in self.params:
            words = ctx.params.get(one.name) or ()
            if one.param_type_name == "argument" and one.nargs == -1 and len(words) > behind:
                raise _without_dashes(ctx.command_path, words)
        return left

    def get_help_option(self, ctx: Any) -> Any:
        """Give the option --help, which prints as all of gputopo does."""
        return _printed_by_us(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of each theme under its heading; those that have none come first."""
        headed: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                theme = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
                headed.setdefault(theme or _NO_THEME, []).append(record)
        others = headed.pop(_NO_THEME, [])
        first = {"Arguments": headed.pop("Arguments")} if "Arguments" in headed else {}
        for theme, records in {**first, _NO_THEME: others, **headed}.items():
            if records:
                with formatter.section(theme):
                    formatter.write_dl(records)


class LeanGroup(TyperGroup):
    """The same for the options that stand before a command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Give the options, that of the help included, each with the shorter way to its value."""
        return _lean(super().get_params(ctx))

    def get_help_option(self, ctx: Any) -> Any:
        """Give the option --help, which prints as all of gputopo does."""
        return _printed_by_us(super().get_help_option(ctx))


def _lean(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if hasattr(parameter, "type_descriptor"):
            vars(parameter)["process_value"] = types.MethodType(_process_value, parameter)
    return parameters


def _printed_by_us(help_option: Any) -> Any:
    """Let the option print by `emit`, which says where the output cannot be written."""
    if help_option is not None:
        help_option.callback = _show_help
    return help_option


def _show_help(context: Any, _: Any, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        emit(f"{context.get_help()}\n")
        context.exit()


def _without_dashes(command: str, words: Sequence[str]) -> UsageError:
    from gputopo.cli.choices import shown

    return UsageError(
        f"{command} takes no argument {shown(words[0])}",
        f"leave it out; a program of your own comes after --: {command} [options] -- PROGRAM",
    )


def _process_value(parameter: Any, context: Any, value: Any) -> Any:
    """Stand in for the parameter's method of this name: the value as the command gets it."""
    if value is None and not parameter.required:
        passed: Any = () if parameter.multiple or parameter.nargs == -1 else None
    elif value is not None and parameter.type_descriptor.annotation in (str, list[str]):
        passed = value
    else:
        return type(parameter).process_value(parameter, context, value)
    return passed if parameter.callback is None else parameter.callback(context, parameter, passed)
