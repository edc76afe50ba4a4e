"""Machines that come with gputopo: real boxes whose topology and measurements are public."""

import functools
from importlib import resources

from gputopo.captures import recording
from gputopo.errors import InputError
from gputopo.machine import Machine

_SUFFIX = ".json"


@functools.cache
def names() -> tuple[str, ...]:
    """Give the names of the bundled machines, sorted."""
    folder = resources.files("gputopo.data") / "machines"
    return tuple(
        sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    )


def read(name: str) -> Machine:
    """Read a bundled machine by its name. Raises InputError for a name that is not one of `names()`."""
    if name not in names():
        raise InputError(f"no bundled machine is called {name}", f"choose one of {', '.join(names())}")
    file = resources.files("gputopo.data") / "machines" / (name + _SUFFIX)
    return recording.parse(file.read_text(encoding="utf-8"), origin=f"the bundled machine {name}")
