"""Checks from its source whether the code of a model exists, without running it or loading TensorFlow.

If the source is not enough to decide, the check passes: the training process imports the module anyway.
"""

import contextlib
import os
import re
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from gputopo.launch.spec.model_names import (
    ModelName,
    no_application,
    no_attribute,
    no_module,
    read_model_name,
)

# Words of code that may define names or modules that do not occur in the source.
_DYNAMIC = re.compile(
    r"\b(?:globals|locals|vars|exec|eval|setattr|__getattr__|__dict__|sys\.modules|__path__|__import__|import_module)\b"
    r"|import \*"
)
# Generated files in which Keras lists its public names; the path depends on the version of Keras.
_APPLICATIONS = ("applications/__init__.py", "api/applications/__init__.py")
_APPLICATION = re.compile(r"^from keras\.src\.applications\.\w+ import(?: \(\s+| )(\w+)", re.M)


def require_code(name: str) -> None:
    """Raise UsageError if the code of a Keras or user model does not exist.

    The current folder is searched, as in Python.
    """
    asked = read_model_name(name)
    if asked.kind == "keras":
        known = known_applications()
        if known and asked.attribute.lower() not in map(str.lower, known):
            raise no_application(asked.attribute, known)
    elif asked.kind == "own":
        # The current folder may be removed, a file unreadable, or a parent package not yet imported.
        with contextlib.suppress(OSError, KeyError):
            _require_attribute(asked)


def known_applications() -> list[str]:
    """Return the models of the installed Keras, or an empty list if they are not known."""
    try:
        spec = find_spec("keras")
    except (ImportError, ValueError):
        return []
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for file in _APPLICATIONS:
            with contextlib.suppress(OSError):
                names = _APPLICATION.findall((Path(folder) / file).read_text(errors="replace"))
                if names:
                    return names
    return []


def _require_attribute(asked: ModelName) -> None:
    """Raise UsageError if a module of the path is not there, or its source has no word like the attribute."""
    folders: list[str] | None = [os.getcwd(), *sys.path]
    module = source = ""
    for part in asked.module.split("."):
        module = f"{module}.{part}".removeprefix(".")
        spec = None if folders is None else PathFinder.find_spec(module, folders)
        if spec is None:
            if module in (*sys.builtin_module_names, *sys.modules):
                return
            raise no_module(module)
        if spec.origin is None:  # a folder without __init__.py
            source = ""
        elif spec.origin.endswith(".py"):
            source = Path(spec.origin).read_text(errors="replace")
        else:
            return
        if _DYNAMIC.search(source):
            return
        locations = spec.submodule_search_locations
        folders = None if locations is None else list(locations)
    first = asked.attribute.partition(".")[0]
    is_module = folders is not None and PathFinder.find_spec(f"{module}.{first}", folders) is not None
    if not re.search(rf"\b{first}\b", source) and not is_module and not first.startswith("__"):
        raise no_attribute(asked, first, re.findall(r"^def (\w+)", source, re.M))
