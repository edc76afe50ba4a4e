"""What a child that reads NVML sends, part by part, and what was received so far."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import msgspec

from gputopo.probes.child import Answer, Stop
from gputopo.probes.facts import NOT_ASKED, MissingFacts, absent_facts
from gputopo.values.machine import Driver, Gpu, Link
from gputopo.values.subject import at_gpu

# Ours: no host has as many, so a larger count is garbage.
MAX_GPUS = 256
LAST_FACT = "lost"  # of a GPU


class NvmlAnswers(NamedTuple):
    """All that NVML answered. `missing`: the reasons of absent facts, by path.

    `error`: the reason of nvmlInit or of the count, None where both worked. `counted`: the number of GPUs
    that NVML reports, which may be garbage. `stops`: the calls that hung or crashed.
    """

    error: str | None
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    missing: Mapping[str, str] = {}
    counted: int = 0
    stops: tuple[Stop, ...] = ()


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of the answers: a fact of a GPU by its field, or one of driver, counted, end, link, error."""

    name: str
    value: msgspec.Raw
    missing: dict[str, str] = {}
    gpu: int | None = None


_decoder = msgspec.json.Decoder(Part)


class Received:
    """What was received so far, and so what may be asked next."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.links: dict[tuple[int, int], Link] = {}
        self.stops: list[Stop] = []
        # Calls that may be made again: those that were answered, by GPUs with a stop.
        self.answered: dict[int, Counter[str]] = {}
        self._driver = Driver()
        self._counted: int | None = None
        self._end = MAX_GPUS
        self._facts: dict[int, dict[str, msgspec.Raw]] = {}
        self._missing = MissingFacts()

    def add(self, answer: Answer) -> None:
        """Add the answer of one child."""
        for part in answer.parts:
            self.put(_decoder.decode(part))
        stop = answer.stop
        if stop is None:
            return
        self.stops.append(stop)
        if len(stop.gpus) == 1:
            again = stop.gpus[0] in self.answered  # what it had answered, it no longer does
            calls = (function for function, gpus in answer.calls[:-1] if gpus == stop.gpus and not again)
            self.answered[stop.gpus[0]] = Counter(calls)

    def put(self, part: Part) -> None:
        """Add one part."""
        self._missing.reasons |= part.missing
        if part.gpu is not None:
            self._facts.setdefault(part.gpu, {})[part.name] = part.value
        elif part.name == "link":
            link = msgspec.json.decode(part.value, type=Link)
            self.links[link.a, link.b] = link
        elif part.name == "driver":
            self._driver = msgspec.json.decode(part.value, type=Driver)
        elif part.name == "counted":
            self._counted = msgspec.json.decode(part.value, type=int)
        elif part.name == "end":
            self._end = msgspec.json.decode(part.value, type=int)
        elif self._counted is None:  # else NVML answered an earlier child
            self.error = msgspec.json.decode(part.value, type=str)

    def has(self, gpu: int) -> bool:
        """Return whether all facts of a GPU were received."""
        return LAST_FACT in self._facts.get(gpu, {})

    def answers(self) -> NvmlAnswers:
        """Put together what was received."""
        stops = tuple(self.stops)
        if self._counted is None:
            reason = self.error or (stops[-1].kind.upper() if stops else "UNKNOWN")
            return NvmlAnswers(reason, self._driver, missing=self._missing.reasons, stops=stops)
        gpus = tuple(map(self._gpu, range(min(self._counted, self._end))))
        pairs = combinations(range(len(gpus)), 2)
        links = tuple(self.links.get((a, b), Link(a=a, b=b)) for a, b in pairs)
        return NvmlAnswers(None, self._driver, gpus, links, self._missing.reasons, self._counted, stops)

    def _gpu(self, index: int) -> Gpu:
        facts = {"index": index, **self._facts.get(index, {})}
        gpu = msgspec.json.decode(msgspec.json.encode(facts), type=Gpu)
        if not self.has(index):
            kinds = (stop.kind.upper() for stop in self.stops if stop.gpus == (index,))
            paths = (at_gpu(index, path) for path in absent_facts(gpu))
            self._missing.note_if_none(next(kinds, NOT_ASKED), *paths)
        return gpu
