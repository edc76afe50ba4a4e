"""Reads all that NVML reports, in a child process: a call that hangs or crashes affects only its own facts.

The child sends each answer as it comes. If a call stops the child, another child continues without that call,
and without other calls about the same GPU or pair.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, NamedTuple, Self

import msgspec

from gputopo.probes.child import (
    CallSlot,
    Channel,
    DriverChild,
    DriverStop,
    Poll,
    TimeLimit,
    is_starting,
    whole_s,
)
from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml, NvmlLog, open_nvml
from gputopo.probes.nvml.gpu import (
    NOT_ASKED,
    FactReader,
    MissingFacts,
    absent_facts,
    miss_all,
    read_gpu,
    read_pair,
)
from gputopo.probes.nvml.questions import cuda_version
from gputopo.values.facts import at_gpu, at_link
from gputopo.values.machine import Driver, Gpu, Link
from gputopo.values.samples import gpu_with

# Not measured; chosen because no host has this many GPUs, so a larger count is wrong.
MAX_GPUS = 256
_NO_SUCH_GPU = "INVALID_ARGUMENT"
# Seconds of waiting for the driver before the user is told, and at least this long between two messages. Not
# measured; chosen because 16 initialised GPUs answer within a second, and a terminal seems to hang after
# three.
WAIT_S = 3.0


class NvmlAnswers(NamedTuple):
    """All that NVML answered."""

    error: str | None  # the reason of nvmlInit or of the count, or None if both succeeded
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    missing: Mapping[str, str] = {}  # the reasons of absent facts, by path
    counted: int = 0  # the number of GPUs that NVML reports, which may be wrong
    stops: tuple[DriverStop, ...] = ()  # the calls that hung or crashed


class NvmlPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the answers, with the reasons of what is missing in it."""

    driver: Driver | None = None
    counted: int | None = None
    last: int | None = None  # the real number of GPUs, if the count was wrong
    gpu: int | None = None
    facts: dict[str, Any] = {}  # of that GPU, by path
    whole: bool = False  # whether these are its last facts
    link: Link | None = None
    error: str | None = None
    missing: dict[str, str] = {}


_decoder = msgspec.json.Decoder(NvmlPart)


class Received:
    """The parts received so far, which decide what may be asked next."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.links: dict[tuple[int, int], Link] = {}
        self.stops: list[DriverStop] = []
        self.whole: set[int] = set()
        self._facts: dict[int, dict[str, Any]] = {}
        self._driver = Driver()
        self._counted: int | None = None
        self._last = MAX_GPUS
        self._missing = MissingFacts()

    @property
    def counted(self) -> int | None:
        """The number of GPUs to read, None before it is known."""
        return None if self._counted is None else min(self._counted, self._last)

    @property
    def persistence_off(self) -> bool:
        """Whether a GPU that was read has persistence mode off."""
        return any(facts.get("persistence_mode") is False for facts in self._facts.values())

    def put(self, part: NvmlPart) -> None:
        """Add one part."""
        if part.gpu is not None:
            self._facts.setdefault(part.gpu, {}).update(part.facts)
            if part.whole:
                self.whole.add(part.gpu)
        self._missing.reasons |= part.missing
        if part.link is not None:
            self.links[part.link.a, part.link.b] = part.link
        self._driver = part.driver or self._driver
        self._counted = self._counted if part.counted is None else part.counted
        self._last = self._last if part.last is None else part.last
        if part.error is not None and self._counted is None:  # otherwise NVML answered an earlier child
            self.error = part.error

    def answers(self) -> NvmlAnswers:
        """Return the received parts as one value."""
        stops = tuple(self.stops)
        if self._counted is None:
            reason = self.error or (stops[-1].kind.upper() if stops else "UNKNOWN")
            return NvmlAnswers(reason, self._driver, missing=self._missing.reasons, stops=stops)
        gpus = tuple(map(self._gpu, range(self.counted or 0)))
        pairs = combinations(range(len(gpus)), 2)
        links = tuple(self.links.get((a, b), Link(a=a, b=b)) for a, b in pairs)
        return NvmlAnswers(None, self._driver, gpus, links, self._missing.reasons, self._counted, stops)

    def allow(self, function: str, about: str) -> None:
        """Raise NotReadError for a call that hung or crashed, and for all calls about its GPU or pair."""
        gpus = tuple(map(int, filter(None, about.split("-"))))
        stops = [
            stop for stop in self.stops if stop.gpus == gpus or (len(gpus) == 2 and {*gpus} & {*stop.gpus})
        ]
        reason = next((stop.kind.upper() for stop in stops if stop.function == function), None)
        if reason or (stops and gpus):
            raise NotReadError(reason or NOT_ASKED)

    def _gpu(self, index: int) -> Gpu:
        facts = self._facts.get(index, {})
        gpu = gpu_with(index, facts)
        # A child that continues notes a reason for each fact of a GPU that it may not ask.
        self._missing.clear(*(at_gpu(index, path) for path in facts))
        if index not in self.whole:
            kinds = (stop.kind.upper() for stop in self.stops if stop.gpus == (index,))
            paths = (at_gpu(index, path) for path in absent_facts(gpu))
            self._missing.note_if_none(next(kinds, NOT_ASKED), *paths)
        return gpu


class NvmlReading:
    """A reading of NVML in a child, which starts immediately. `answers` waits for its end. Close it (`with`).

    `on_wait` is called with a message if the driver has not answered everything: after WAIT_S seconds, and
    again WAIT_S seconds after the call in progress changed. `poll`: see DriverChild.
    """

    def __init__(self, on_wait: Callable[[str], None] = lambda text: None, poll: Poll | None = None) -> None:
        self._on_wait, self._poll = on_wait, poll
        self._told, self._told_s = "", 0.0
        self._received = Received()
        self._limit = TimeLimit(whole_s(0))
        self._child = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.close()

    def answers(self) -> NvmlAnswers:
        """Wait for the answers and return them. Never raises for what a driver does."""
        while self._child is not None:
            for line in self._child.parts(self._limit):
                if line:
                    self._received.put(_decoder.decode(line))
                    self._limit.limit_s = whole_s(self._received.counted or 0)
                else:
                    self._tell(self._child)
            stop = self._child.stop
            self._child.close()
            if stop is not None:
                self._received.stops.append(stop)
            again = stop is not None and stop.function and self._limit.passed_s < self._limit.limit_s
            self._child = self._start() if again else None
        return self._received.answers()

    def _tell(self, child: DriverChild) -> None:
        """Report the call in progress, WAIT_S seconds after the call reported before has returned."""
        text = self._waiting_for(*child.call())
        if text == self._told:
            self._told_s = self._limit.passed_s
        elif self._limit.passed_s - self._told_s >= WAIT_S:
            self._told_s, self._told = self._limit.passed_s, text
            self._on_wait(text)

    def _waiting_for(self, function: str, gpus: tuple[int, ...]) -> str:
        """Return the message to the user: `waiting for the NVIDIA driver to initialise GPU 2 (3 of 8)`."""
        names = " and ".join(f"GPU {gpu}" for gpu in gpus)
        if not gpus:
            return "waiting for the NVIDIA driver to start"
        if not is_starting(function):
            return f"waiting for the NVIDIA driver to answer about {names}"
        why = "; persistence mode avoids this wait" if self._received.persistence_off else ""
        place = f"{gpus[0] + 1} of {self._received.counted}"
        return f"waiting for the NVIDIA driver to initialise {names} ({place}){why}"

    def _start(self) -> DriverChild | None:
        try:
            return DriverChild(self._work, poll=self._poll)
        except OSError:  # a limit of processes
            self._received.error = "NO_CHILD_PROCESS"
            return None

    def _work(self, channel: Channel) -> None:
        """Ask for everything that was not received, without the calls that hung or crashed before."""
        ask_all(self._received, channel.put, channel.done, _AllowedCalls(self._received, channel.nvml))


class _AllowedCalls(NamedTuple):
    """Notes the calls of a child that are allowed, and refuses the others."""

    received: Received
    slot: CallSlot

    def begin(self, function: str, gpus: str) -> None:
        self.received.allow(function, gpus)
        self.slot.begin(function, gpus)

    def end(self) -> None:
        self.slot.end()


def ask_all(
    received: Received,
    put: Callable[[NvmlPart], None],
    done: Callable[[], None] = lambda: None,
    log: NvmlLog | None = None,
) -> None:
    """Ask NVML for everything that was not received, and `put` each answer. Never raises: errors are put too.

    `done` is called before NVML is closed, which may hang as well.
    """
    try:
        with open_nvml(log) as nvml:
            _ask(nvml, received, put)
            nvml.about = ""
            done()
    except NotReadError as error:
        put(NvmlPart(error=error.reason))
        done()


def _ask(nvml: Nvml, received: Received, put: Callable[[NvmlPart], None]) -> None:
    """Ask for everything. Raises NotReadError if NVML does not count the GPUs."""
    missing = MissingFacts()
    about = FactReader(nvml, missing, "driver")
    driver = Driver(
        version=about.read("version", lambda nvml: str(nvml.ask("nvmlSystemGetDriverVersion"))),
        cuda_version=about.read("cuda_version", cuda_version),
        nvml_version=about.read("nvml_version", lambda nvml: str(nvml.ask("nvmlSystemGetNVMLVersion"))),
    )
    put(NvmlPart(driver=driver, missing=missing.reasons))
    counted = nvml.device_count()
    put(NvmlPart(counted=counted))
    handles: dict[int, Handle] = {}
    for index in range(min(counted, MAX_GPUS)):
        nvml.about = str(index)
        missing = MissingFacts()
        try:
            handles[index] = nvml.handle(index)
        except NotReadError as error:
            if error.reason == NOT_ASKED:
                handles[index] = Handle(None)  # the calls about this GPU are refused as well
            elif counted > MAX_GPUS and error.reason == _NO_SUCH_GPU:
                put(NvmlPart(last=index))
                break
            elif index not in received.whole:  # all its facts are missing for the same reason
                miss_all(Gpu(index=index), error.reason, missing)
                _note_whole(index, error.reason, missing)
                put(NvmlPart(gpu=index, facts={"lost": True}, whole=True, missing=missing.reasons))
        if index in handles and index not in received.whole:
            reader = FactReader(nvml, missing, at_gpu(index), handles[index])
            for facts in read_gpu(reader, driver.nvml_version):
                if whole := "lost" in facts:
                    _note_whole(index, reader.no_answer, reader.missing)
                known = {path: fact for path, fact in facts.items() if fact is not None}
                put(NvmlPart(gpu=index, facts=known, whole=whole, missing=reader.missing.reasons))
                reader.missing = MissingFacts()
    for a, b in combinations(handles, 2):
        nvml.about = f"{a}-{b}"
        if (a, b) not in received.links:
            missing = MissingFacts()
            pair = FactReader(nvml, missing, at_link(a, b), handles[a], handles[b])
            put(NvmlPart(link=read_pair(pair, Link(a=a, b=b)), missing=missing.reasons))


def _note_whole(index: int, no_answer: str | None, missing: MissingFacts) -> None:
    """Note why no fact of a GPU was read."""
    if no_answer is not None and no_answer != LOST:
        missing.note(no_answer, at_gpu(index))
