"""Checks from its source whether the code of a model exists, without running it or loading TensorFlow.

If the source is not enough to decide, the check passes: the training process imports the module anyway.
"""

import ast
import contextlib
import importlib.util
import os
import re
import symtable
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from gputopo.launch.spec.model_names import ModelName, no_application, no_attribute, no_module, read
from gputopo.values.errors import UsageError

# Code that uses one of these names may define names or modules that no statement shows.
_DYNAMIC = {
    "globals",
    "locals",
    "vars",
    "exec",
    "eval",
    "setattr",
    "__getattr__",
    "__dict__",
    "modules",
    "__path__",
    "__import__",
    "import_module",
    "*",
}
# Generated files in which Keras lists its public names; the path depends on the version of Keras.
_APPLICATIONS = ("applications/__init__.py", "api/applications/__init__.py")
_FROM = "keras.src.applications."


def require_there(name: str) -> None:
    """Raise UsageError if the code of a Keras or user model does not exist or has a syntax error.

    The current folder is searched, as in Python.
    """
    asked = read(name)
    if asked.kind == "keras":
        known = _applications()
        if known and asked.attribute.lower() not in map(str.lower, known):
            raise no_application(asked.attribute, known)
    elif asked.kind == "own":
        # The current folder may be removed, a file unreadable, or a parent package not yet imported.
        with contextlib.suppress(OSError, KeyError):
            _require_own(asked)


def _applications() -> list[str]:
    """Return the models of the installed Keras, or an empty list if they are not known."""
    try:
        spec = find_spec("keras")
    except (ImportError, ValueError):
        return []
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for file in _APPLICATIONS:
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                body = ast.parse((Path(folder) / file).read_bytes()).body
                listed = [one for one in body if isinstance(one, ast.ImportFrom)]
                found = [one.names[0].name for one in listed if (one.module or "").startswith(_FROM)]
                if found:
                    return found
    return []


def _require_own(asked: ModelName) -> None:
    where: list[str] | None = [os.getcwd(), *sys.path]
    first, parts = asked.attribute.partition(".")[0], asked.module.split(".")
    bound: set[str] = set()
    functions: list[str] = []
    for number in range(1, len(parts) + 1):
        module = ".".join(parts[:number])
        found = None if where is None else PathFinder.find_spec(module, where)
        if found is None:
            if number == 1 and module in (*sys.builtin_module_names, *sys.modules):
                return
            raise no_module(module)
        source = _source(found)
        if source is None:
            return
        bound, used = _names(source)
        if not _DYNAMIC.isdisjoint(used):
            return
        functions = re.findall(r"^def (\w+)", source, re.M)
        inner = found.submodule_search_locations
        where = None if inner is None else list(inner)
    is_module = where is not None and PathFinder.find_spec(f"{asked.module}.{first}", where) is not None
    if first not in bound and not is_module and not first.startswith("__"):
        raise no_attribute(asked, first, functions)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a module binds and all names that it uses.

    Names that functions declare global are among the bound names.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = [top := symtable.symtable(source, "", "exec")]
        nodes = ast.walk(ast.parse(source))
    bound: set[str] = set()
    for table in tables:
        tables += table.get_children()
        bound |= {
            one.get_name()
            for one in table.get_symbols()
            if (one.is_assigned() or one.is_imported()) and (table is top or one.is_declared_global())
        }
    return bound, {str(getattr(node, field, "")) for node in nodes for field in ("id", "attr", "name")}


def _source(found: ModuleSpec) -> str | None:
    """Return the source of a module, or None if it has no source. Raises OSError, UsageError."""
    if found.origin is None and found.submodule_search_locations is not None:
        return ""  # a folder without __init__.py
    if found.origin is None or not found.origin.endswith(".py"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import prints them
            source = importlib.util.decode_source(Path(found.origin).read_bytes())
            compile(source, found.origin, "exec", dont_inherit=True)
            return source
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UsageError(
            f"the module {found.name} cannot be imported: {type(error).__name__}: {error.args[0]} "
            f"({found.origin}{line})",
            f"python -c 'import {found.name}' shows all of it",
        ) from error
