"""Asks NVML for everything, part by part: the work of a reading's child process."""

from collections.abc import Callable
from itertools import combinations

import msgspec

from gputopo.probes.child import Desk
from gputopo.probes.facts import NOT_ASKED, FactReader, MissingFacts, miss_all
from gputopo.probes.gpus.gpu import facts_of_gpu
from gputopo.probes.gpus.received import LAST_FACT, MAX_GPUS, Part, Received
from gputopo.probes.nvml.door import LOST, Handle, NotReadError, Nvml, open_nvml
from gputopo.probes.tree import read_pair
from gputopo.values.machine import Driver, Gpu, Link
from gputopo.values.subject import at_gpu, at_link

_NO_SUCH_GPU = "INVALID_ARGUMENT"


def ask_in_child(received: Received, desk: Desk) -> None:
    """Ask for all that was not received, without the calls that hung or crashed before."""

    def before_call(function: str, about: str) -> None:
        _allow(received, function, about)
        desk.call(function, about)

    ask_all(received, desk.put, desk.done, before_call)


def _allow(received: Received, function: str, about: str) -> None:
    """Raise NotReadError for a call that hung or crashed, or whose GPU had such a call before."""
    if not received.stops:
        return
    gpus = tuple(map(int, filter(None, about.split("-"))))
    stops = [
        stop for stop in received.stops if stop.gpus == gpus or (len(gpus) == 2 and {*gpus} & {*stop.gpus})
    ]
    if not stops:
        return
    if len(gpus) == 1 and received.answered[gpus[0]][function]:
        received.answered[gpus[0]][function] -= 1
        return
    reason = next((stop.kind.upper() for stop in stops if stop.function == function), None)
    if reason or gpus:
        raise NotReadError(reason or NOT_ASKED)


def ask_all(
    received: Received,
    put: Callable[[Part], None],
    done: Callable[[], None],
    before_call: Callable[[str, str], None] | None = None,
) -> None:
    """Ask NVML for all that was not received, and `put` each answer. Never raises: what it refuses is put.

    `done` is called before NVML is closed, which may hang as well.
    """
    asker = _Asker(received, put)
    try:
        with open_nvml(before_call) as nvml:
            asker.ask(nvml)
            nvml.about = ""
            done()
    except NotReadError as error:
        asker.put("error", error.reason)
        done()


class _Asker:
    """Asks NVML, part by part."""

    def __init__(self, received: Received, put: Callable[[Part], None]) -> None:
        self._received = received
        self._put = put
        self._missing = MissingFacts()

    def put(self, name: str, value: object, gpu: int | None = None) -> None:
        """Put a part with the reasons of what is missing in it."""
        missing, self._missing.reasons = self._missing.reasons, {}
        self._put(Part(name, msgspec.Raw(msgspec.json.encode(value)), missing, gpu))

    def ask(self, nvml: Nvml) -> None:
        """Ask for everything. Raises NotReadError where the GPUs are not counted."""
        facts = FactReader(nvml, self._missing, "driver")
        driver = Driver(
            version=facts.read("version", nvml.driver_version),
            cuda_version=facts.read("cuda_version", nvml.cuda_version),
            nvml_version=facts.read("nvml_version", nvml.nvml_version),
        )
        self.put("driver", driver)
        counted = nvml.device_count()
        self.put("counted", counted)
        handles: dict[int, Handle] = {}
        for index in range(min(counted, MAX_GPUS)):
            nvml.about = str(index)
            try:
                handles[index] = nvml.handle(index)
            except NotReadError as error:
                if counted > MAX_GPUS and error.reason == _NO_SUCH_GPU:
                    self.put("end", index)
                    break
                if not self._received.has(index):
                    self._put_unanswering(index, error.reason)
                continue
            if not self._received.has(index):
                self._put_gpu(nvml, index, handles[index])
        for a, b in combinations(handles, 2):
            nvml.about = f"{a}-{b}"
            if (a, b) not in self._received.links:
                pair = FactReader(nvml, self._missing, at_link(a, b), handles[a], handles[b])
                self.put("link", read_pair(pair, Link(a=a, b=b)))

    def _put_gpu(self, nvml: Nvml, index: int, handle: Handle) -> None:
        gpu = FactReader(nvml, self._missing, at_gpu(index), handle)
        for name, value in facts_of_gpu(gpu):
            self.put(name, value, index)
        self._put_end(index, gpu.no_answer)

    def _put_unanswering(self, index: int, reason: str) -> None:
        """Put a GPU without a handle: every fact of it is missing for the same reason."""
        miss_all(Gpu(index=index), reason, self._missing)
        self._put_end(index, reason)

    def _put_end(self, index: int, no_answer: str | None) -> None:
        if no_answer not in (None, LOST):
            self._missing.note(no_answer, at_gpu(index))  # for the GPU as a whole
        self.put(LAST_FACT, no_answer is not None, index)
