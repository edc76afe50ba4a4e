"""A typer command that starts fast: what needs no conversion is not converted."""

import types
from typing import Any

from typer.core import TyperCommand


class LeanCommand(TyperCommand):
    """A command whose text options, and options that were not given, pass as they are.

    typer 0.29 and later load pydantic (about 50 ms) to turn text into text. An option of another type that
    was given is converted by typer as ever; earlier releases are left alone.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if hasattr(parameter, "type_descriptor"):
                vars(parameter)["process_value"] = types.MethodType(_process_value, parameter)


def _process_value(parameter: Any, context: Any, value: Any) -> Any:
    """Stand in for the parameter's method of this name: the value as the command gets it."""
    if parameter.callback is None:
        if value is None and not parameter.required:
            return () if parameter.multiple or parameter.nargs == -1 else None
        annotation = parameter.type_descriptor.annotation
        if value is not None and annotation in (str, list[str]):
            return value
    return type(parameter).process_value(parameter, context, value)
