"""A process that runs a whole session on the doubles of NVML and CUDA; JSON in and out.

With CUDA's double in the environment. Of each copy few windows are made, and of the copies those of some
kinds: the others fail.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import msgspec

from gputopo.probes import CopyJob, CopyTime, CopyWindow, SessionRequest, failure_of
from gputopo.probes.cuda import Cuda, Engine
from gputopo.probes.session import Doors, HostMemoryRates
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine
from gputopo.values.schema import as_text, from_text
from tests.kit.cuda.layouts import named
from tests.kit.nvml import FakeNvml, installed
from tests.probes.session.double import measure

NOT_ASKED = "NOT_ASKED"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `machine`: the scenario as it was read.

    `size`: of each copy, since the double really copies.
    `by_the_clock`: the time is this machine's; otherwise a second passes while the first questions for it are
    asked, enough for clocks to ramp up, and little after that.
    """

    scenario: str
    machine: Machine
    kinds: tuple[str, ...]
    gpus: tuple[int, ...] | None = None
    size: int
    by_the_clock: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, and the largest resident size of the process."""

    bandwidth: Bandwidth
    peak_bytes: int


class Chosen:
    """An engine that makes copies of some kinds only."""

    def __init__(self, engine: Engine, kinds: Sequence[str]) -> None:
        self._engine, self._kinds = engine, kinds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def measure(
        self, job: CopyJob, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> CopyWindow:
        if job.kind in self._kinds:
            return self._engine.measure(job, sizes, while_running)
        failures = [failure_of(job, copy, NOT_ASKED, "it was not asked for") for copy in job.copies]
        return CopyWindow(copies=tuple(CopyTime(failure=failure) for failure in failures))


def main() -> None:
    """Run the session that standard input describes."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task, dec_hook=from_text)

    @contextmanager
    def open_engine(
        cuda: Cuda, ordinals: Mapping[int, int], node_cpus: Mapping[int, Sequence[int]], pinned_bytes: int
    ) -> Iterator[Any]:
        with Engine(cuda, ordinals, node_cpus, pinned_bytes=pinned_bytes) as engine:
            yield Chosen(engine, task.kinds)

    ticks = count(1)
    doors = Doors(
        open_engine=open_engine,
        host_memory=lambda machine, request: HostMemoryRates(),
        now=time.perf_counter
        if task.by_the_clock
        else lambda: 0.1 * min(tick := next(ticks), 10) + 0.0005 * tick,
    )
    request = SessionRequest(gpus=task.gpus, sizes=(task.size,), loops=2)
    with installed(FakeNvml(named(task.scenario))):
        found = measure(task.machine, request, doors=doors)
    failures = tuple(one for one in found.failures if one.reason != NOT_ASKED)
    found = msgspec.structs.replace(found, failures=failures)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.buffer.write(msgspec.json.encode(Outcome(bandwidth=found, peak_bytes=peak), enc_hook=as_text))


if __name__ == "__main__":
    main()
