"""Makes the Machine that gputopo reads from a scenario, with the NVML double and the generated tree."""

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from gputopo.probes import begin_reading, read_with
from gputopo.probes.nvml import GpuWatch, GpuWatchChild, NvmlAnswers, NvmlReading, Received, ask_all
from gputopo.values.machine import Machine
from gputopo.values.run.events import MachineSample
from tests.kit.driver_time import DriverTime
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS, Scenario
from tests.kit.sysfs import write_tree


def read(scenario: Scenario, folder: Path, fake: FakeNvml | None = None) -> Machine:
    """Write the tree (unless it exists) and read the machine through the double."""
    if not (folder / "sys").exists():
        write_tree(scenario, folder)
    with installed(fake or FakeNvml(scenario)):
        return read_here(folder)


def read_machine(root: Path = Path("/"), time_of_driver: DriverTime | None = None) -> Machine:
    """Read a machine as commands do, with NVML in a child process."""
    with begin_reading(root, poll=None if time_of_driver is None else time_of_driver.look) as read:
        return read()


def read_here(root: Path = Path("/nonexistent")) -> Machine:
    """Read the machine without a child process, so that a double records the calls."""
    received = Received()
    ask_all(received, received.put)
    return read_with(root, received.answers)


def read_double(fake: FakeNvml | Scenario) -> Machine:
    """Read what NVML answers, of a machine whose /sys and /proc are empty."""
    with installed(fake if isinstance(fake, FakeNvml) else FakeNvml(fake)):
        return read_here()


class ReadingHere(NvmlReading):
    """A reading without a child process: a fork of a process with all tests loaded takes 50 ms."""

    def __init__(self, on_wait: Callable[[str], None] = lambda text: None, poll: object = None) -> None:
        self._received, self._child = Received(), None

    def answers(self) -> NvmlAnswers:
        """Read everything at once, and return the answers."""
        ask_all(self._received, self._received.put)
        return self._received.answers()


class WatchHere(GpuWatchChild):
    """A watch of a run's GPUs without a child process, for the same reason as `ReadingHere`."""

    def __init__(
        self,
        gpus: Sequence[int],
        others: Sequence[int] = (),
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stop = None
        self._watch = GpuWatch(gpus, others=others, now=now, clock=clock, run_pid=os.getpid())

    def observe(self) -> MachineSample:
        """Return a sample, as the parent of the child does."""
        return self._watch.observe()

    def close(self) -> None:
        """Close NVML."""
        self._watch.close()


@cache
def machine_of(name: str) -> Machine:
    """Return the machine of a scenario without faults, written and read once for all tests of a process."""
    with TemporaryDirectory() as folder:
        return read(SCENARIOS[name], Path(folder))


def leaves(value: object, path: str = "") -> dict[str, Any]:
    """Return every single fact of a value by path, as in Machine.missing: `gpus[0].clocks_mhz.sm.now`."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict) and value:
        items = [(f"{path}.{name}" if path else str(name), one) for name, one in value.items()]
    elif isinstance(value, (tuple, list)) and value and isinstance(value[0], msgspec.Struct):
        items = [(f"{path}[{_number(one, place)}]", one) for place, one in enumerate(value)]
    else:
        return {path: value}
    return {leaf: fact for name, one in items for leaf, fact in leaves(one, name).items()}


def _number(one: msgspec.Struct, place: int) -> str:
    pair = getattr(one, "a", None), getattr(one, "b", None)
    return f"{pair[0]}-{pair[1]}" if None not in pair else str(place)
