"""Asks for facts one by one, and keeps the reason of each that was not given."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml
from gputopo.values.machine import Gpu

T = TypeVar("T")


class Notes:
    """Asks for facts and notes the reason of each that was not given, under its path."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.lost = False

    def take(self, paths: str | Iterable[str], ask: Callable[..., T], *args: object) -> T | None:
        """Give the answer, or None after noting the reason under each path that it would have filled."""
        try:
            return ask(*args)
        except NotReadError as error:
            self.note(paths, error)
            return None

    def note(self, paths: str | Iterable[str], error: NotReadError) -> None:
        """Keep the reason of an answer that was not given."""
        self.lost = self.lost or error.reason == LOST
        for path in [paths] if isinstance(paths, str) else paths:
            self.missing[path] = error.reason

    def gather(self, path: str, asks: dict[str, Callable[[], T]]) -> dict[str, T]:
        """Give the answers that there are by name; one note for the whole where all have the same reason."""
        notes = Notes()
        taken = {name: notes.take(f"{path}.{name}", ask) for name, ask in asks.items()}
        self.lost = self.lost or notes.lost
        reasons = set(notes.missing.values())
        if len(notes.missing) == len(asks) and len(reasons) == 1:
            self.missing[path] = reasons.pop()
        else:
            self.missing.update(notes.missing)
        return {name: value for name, value in taken.items() if value is not None}


class Asker:
    """Asks NVML about one GPU: every fact by itself, its reason under `gpus[INDEX].FACT`."""

    def __init__(self, nvml: Nvml, handle: Handle, index: int, notes: Notes) -> None:
        self.nvml = nvml
        self.handle = handle
        self.notes = notes
        self.path = f"gpus[{index}]."

    def take(self, fact: str, question: Callable[..., T], *args: object) -> T | None:
        """Give the answer to a question about this GPU, or None after noting why there is none."""
        return self.notes.take(self.path + fact, question, self.handle, *args)

    def take_parts(
        self, fact: str, names: Iterable[str], question: Callable[..., tuple[T, ...]]
    ) -> dict[str, T]:
        """Give the parts of one answer by name, or nothing after noting the reason under each."""
        names = tuple(names)
        told = self.notes.take(self._each(fact, names), question, self.handle)
        return {} if told is None else dict(zip(names, told, strict=True))

    def take_named(
        self, fact: str, names: Iterable[str], question: Callable[..., dict[str, T]]
    ) -> dict[str, T]:
        """Give an answer that names its parts, or nothing after noting the reason under each."""
        return self.notes.take(self._each(fact, names), question, self.handle) or {}

    def take_each(self, fact: str, names: Iterable[str], question: Callable[..., T]) -> dict[str, T | None]:
        """Ask the same question once for each name, which is its last argument."""
        return {name: self.take(f"{fact}.{name}", question, name) for name in names}

    def gather(
        self, fact: str, names: Iterable[str], question: Callable[..., T], *args: object
    ) -> dict[str, T]:
        """Ask the same question for each name; one note for the whole where all have the same reason."""
        return self.notes.gather(
            self.path + fact, {name: bound(question, self.handle, *args, name) for name in names}
        )

    def _each(self, fact: str, names: Iterable[str]) -> list[str]:
        return [f"{self.path}{fact}.{name}" for name in names]


def bound(question: Callable[..., T], *args: object) -> Callable[[], T]:
    """Give a question with its arguments, to be asked later."""
    return lambda: question(*args)


def missing_everywhere(gpu: Gpu, reason: str) -> dict[str, str]:
    """Give the reason under the path of every fact of the GPU that is None."""
    return {f"gpus[{gpu.index}].{path}": reason for path in absent_facts(gpu)}


def absent_facts(value: msgspec.Struct, prefix: str = "") -> list[str]:
    """Give the paths of the facts that are None in a value and in the values within it."""
    paths: list[str] = []
    for name in value.__struct_fields__:
        fact: Any = getattr(value, name)
        if fact is None:
            paths.append(prefix + name)
        elif isinstance(fact, msgspec.Struct):
            paths += absent_facts(fact, f"{prefix}{name}.")
    return paths
