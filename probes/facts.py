"""Facts read one by one, and the reason of each that is missing."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gputopo.probes.nvml.calling import LOST, Handle, NotReadError
from gputopo.values.machine import Gpu
from gputopo.values.subject import at_gpu, within

if TYPE_CHECKING:
    from gputopo.probes.nvml.door import Nvml

T = TypeVar("T")

NOT_ASKED = "NOT_ASKED"  # after a call that hung or crashed

# What every GPU that works reports, and the refusals that are not its fault.
_IDENTITY = {"name", "pci_address"}
_NO_FAULTS = {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "UNREADABLE_TEXT", NOT_ASKED}


class MissingFacts:
    """The reasons of the facts that were not read, by path (`gpus[0].name`), of one machine."""

    def __init__(self, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons: dict[str, str] = dict(reasons or {})

    def note(self, reason: str, *paths: str) -> None:
        """Store the reason of facts that were not read."""
        self.reasons.update(dict.fromkeys(paths, reason))

    def note_if_none(self, reason: str, *paths: str) -> None:
        """Store the reason of facts for which there is none yet."""
        for path in paths:
            self.reasons.setdefault(path, reason)

    def found(self, *paths: str) -> None:
        """Remove the reasons of facts that were found after all."""
        for path in paths:
            self.reasons.pop(path, None)

    def reason(self, path: str) -> str | None:
        """Return the reason of a fact, None where it is not missing."""
        return self.reasons.get(path)


class FactReader:
    """Asks NVML for the facts of one thing, each by itself: a refused one costs nothing else.

    `path`: the address of the thing, `gpus[0]`. `handles`: the first arguments of every question: of a
    GPU, of both GPUs of a pair, none of the driver. `no_answer`: the reason of a GPU that is lost, or that
    does not even report what it is; None for others.
    """

    def __init__(self, nvml: "Nvml", missing: MissingFacts, path: str, *handles: Handle) -> None:
        self.nvml = nvml
        self.missing = missing
        self.path = path
        self.handles = handles
        self.no_answer: str | None = None

    def read(self, facts: str | Iterable[str], question: Callable[..., T], *args: object) -> T | None:
        """Return the answer, or None after noting the reason under each fact that it would have given."""
        try:
            return question(*self.handles, *args)
        except NotReadError as error:
            self.note(error.reason, *([facts] if isinstance(facts, str) else facts))
            return None

    def read_parts(
        self, fact: str, names: Iterable[str], question: Callable[..., tuple[T, ...]]
    ) -> dict[str, T]:
        """Return the parts of one answer by name, or nothing after noting the reason under each."""
        names = tuple(names)
        answer = self.read(_each(fact, names), question)
        return {} if answer is None else dict(zip(names, answer, strict=True))

    def read_named(
        self, fact: str, names: Iterable[str], question: Callable[..., dict[str, T]]
    ) -> dict[str, T]:
        """Return an answer that names its parts, or nothing after noting the reason under each."""
        return self.read(_each(fact, names), question) or {}

    def read_each(self, fact: str, names: Iterable[str], question: Callable[..., T]) -> dict[str, T | None]:
        """Ask the same question once for each name, which is its last argument."""
        return {name: self.read(within(fact, name), question, name) for name in names}

    def gather(
        self, fact: str, names: Iterable[str], question: Callable[..., T], *args: object
    ) -> dict[str, T]:
        """Ask for each name; return what was answered. One note for all where all have the same reason."""
        answers: dict[str, T] = {}
        reasons: dict[str, str] = {}
        for name in names:
            try:
                answers[name] = question(*self.handles, *args, name)
            except NotReadError as error:
                reasons[within(fact, name)] = error.reason
        if not answers and len(set(reasons.values())) == 1:
            reasons = {fact: next(iter(reasons.values()))}
        for path, reason in reasons.items():
            self.note(reason, path)
        return answers

    def note(self, reason: str, *facts: str) -> None:
        """Store the reason of facts that were not read."""
        if reason == LOST or (reason not in _NO_FAULTS and not _IDENTITY.isdisjoint(facts)):
            self.no_answer = reason if reason == LOST else self.no_answer or reason
        self.missing.note(reason, *(within(self.path, fact) for fact in facts))

    def found(self, *facts: str) -> None:
        """Remove the reasons of facts that were found after all."""
        self.missing.found(*(within(self.path, fact) for fact in facts))


def miss_all(gpu: Gpu, reason: str, missing: MissingFacts) -> None:
    """Note the reason for every fact of a GPU that is None."""
    missing.note(reason, *(at_gpu(gpu.index, path) for path in absent_facts(gpu)))


def absent_facts(value: msgspec.Struct, prefix: str = "") -> list[str]:
    """Return the paths of the facts that are None in a value and in the values within it."""
    paths: list[str] = []
    for name in value.__struct_fields__:
        fact: Any = getattr(value, name)
        if fact is None:
            paths.append(within(prefix, name))
        elif isinstance(fact, msgspec.Struct):
            paths += absent_facts(fact, within(prefix, name))
    return paths


def _each(fact: str, names: Iterable[str]) -> list[str]:
    return [within(fact, name) for name in names]
