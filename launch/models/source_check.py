"""Whether the code of a model is there, by its source: nothing of it runs, and TensorFlow does not load.

What the source alone cannot decide is left to the training process, which imports it.
"""

import ast
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from gputopo.launch.spec.model_names import ModelName, no_application, no_attribute, no_module, read
from gputopo.values.errors import UsageError

# Where a file has one of these names, its code may bind others, or modules, that no statement shows.
_DYNAMIC = {
    *("globals", "locals", "vars", "exec", "eval", "setattr", "__getattr__", "__dict__", "f_globals"),
    *("modules", "__path__", "__import__", "import_module", "*"),
}
# Keras lists its public names in generated files; their place has changed with its versions.
_APPLICATIONS = ("applications/__init__.py", "api/applications/__init__.py")
_FROM = "keras.src.applications."


def require_there(name: str) -> None:
    """Raise UsageError for a model of Keras or of the user whose code is not there, or has a syntax error.

    The current folder counts, as in Python itself.
    """
    asked = read(name)
    if asked.kind == "keras":
        known = _applications()
        if known and asked.attribute.lower() not in map(str.lower, known):
            raise no_application(asked.attribute, known)
    elif asked.kind == "own":
        # The current folder was removed, a file cannot be read, or a parent would have to be imported.
        with contextlib.suppress(OSError, KeyError):
            _require_own(asked)


def _applications() -> list[str]:
    """Return the models of the Keras that is installed; empty where that is not known."""
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
    parts = asked.module.split(".")
    tree: ast.Module | None = None
    for number in range(1, len(parts) + 1):
        module = ".".join(parts[:number])
        found = None if where is None else PathFinder.find_spec(module, where)
        if found is None and number == 1:
            try:
                found = find_spec(module)
            except (ValueError, ImportError):  # a module without a specification is there
                return
        if found is None:
            raise no_module(module)
        tree = _tree(found)
        if tree is None or not _DYNAMIC.isdisjoint(_names(tree)):
            return
        inner = found.submodule_search_locations
        where = None if inner is None else list(inner)
    first = asked.attribute.partition(".")[0]
    if tree is None or first in _names(tree) or first.startswith("__"):
        return
    if where is None or PathFinder.find_spec(f"{asked.module}.{first}", where) is None:
        shown = (ast.FunctionDef, ast.ClassDef)
        raise no_attribute(asked, first, [one.name for one in tree.body if isinstance(one, shown)])


def _tree(found: ModuleSpec) -> ast.Module | None:
    """Return the source of a module, None where it has none. Raises OSError, UsageError."""
    if found.origin is None and found.submodule_search_locations is not None:
        return ast.Module(body=[], type_ignores=[])  # a folder without __init__.py
    if found.origin is None or not found.origin.endswith(".py"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come when it is imported
            tree = ast.parse(Path(found.origin).read_bytes(), found.origin)
            compile(tree, found.origin, "exec", dont_inherit=True)  # finds more than the parser
            return tree
    except SyntaxError as error:
        line = "" if error.lineno is None else f", line {error.lineno}"
        raise UsageError(
            f"the module {found.name} cannot be imported: {type(error).__name__}: {error.msg} "
            f"({found.origin}{line})",
            f"python -c 'import {found.name}' shows all of it",
        ) from error
    except (ValueError, RecursionError):  # null bytes, or nested too deeply
        return None


def _names(tree: ast.Module) -> set[str]:
    """Return all names that a file has, in any scope but a comprehension's, without those it only reads."""
    loops = (one.target for one in ast.walk(tree) if isinstance(one, ast.comprehension))
    inside = {id(node) for target in loops for node in ast.walk(target)}
    return {name for node in ast.walk(tree) if id(node) not in inside for name in _of_node(node)}


def _of_node(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ctx) if isinstance(ctx, ast.Store) or name in _DYNAMIC:
            yield name
        case ast.Attribute(attr=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
