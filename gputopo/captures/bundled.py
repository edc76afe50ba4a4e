"""Machines that come with gputopo: real boxes whose topology and measurements are public."""

import functools
from typing import TYPE_CHECKING

from gputopo.captures import recording
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_SUFFIX = ".json"


@functools.cache
def names() -> tuple[str, ...]:
    """Give the names of the bundled machines, sorted."""
    folder = _folder()
    return tuple(
        sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    )


def read(name: str) -> Machine:
    """Read a bundled machine by its name. Raises InputError for a name that is not one of `names()`."""
    if name not in names():
        raise InputError(f"no bundled machine is called {name}", f"choose one of {', '.join(names())}")
    file = _folder() / (name + _SUFFIX)
    return recording.parse(file.read_text(encoding="utf-8"), origin=f"the bundled machine {name}")


def _folder() -> "Traversable":
    from importlib import resources  # slow to load, and most captures are files

    return resources.files("gputopo.reference.data") / "machines"
