"""The public names of a package, loaded when they are used, so that commands start fast."""

import importlib
from collections.abc import Callable, Mapping


def exports(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package that loads the module of a public name (PEP 562).

    `modules`: for each public name, the module that defines it, as `study` or `jobs.autotune` within the
    package. The package imports the same names under `TYPE_CHECKING`, for type checkers and editors.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return load
