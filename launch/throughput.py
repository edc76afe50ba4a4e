"""Steps of the user's own script, measured, and reported to `gputopo run -- PROGRAM` where that started it.

    with Steps(examples=64) as steps:
        for batch in data:
            train(batch)
            steps.done()

In any framework; nothing of TensorFlow loads.
A report that cannot be written is dropped: it never hurts the training.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import msgspec

STEPS_FILE = "GPUTOPO_STEPS"  # the file that `gputopo run` names to its program


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one process: its length and the examples of it."""

    pid: int
    step: int
    seconds: float
    examples: int


class Steps:
    """Measures steps, one from `done` to `done`. A context manager; times begin when it is entered.

    `examples`: of one step, all devices of this process together. `images_per_sec`: of the steps so far
    without the first, which builds and compiles; None before there are two.
    """

    def __init__(self, examples: int) -> None:
        self._examples = examples
        self._number = 0
        self._counted, self._seconds = 0, 0.0
        self._file: int | None = None
        self._begun = time.perf_counter()

    def __enter__(self) -> Self:
        name = os.environ.get(STEPS_FILE)
        if name:
            with contextlib.suppress(OSError):
                self._file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    @property
    def images_per_sec(self) -> float | None:
        """Examples of the counted steps over their time."""
        return self._counted / self._seconds if self._seconds > 0 else None

    def done(self, examples: int | None = None) -> None:
        """A step has ended; `examples` where it had others than usual."""
        now = time.perf_counter()
        seconds, self._begun = now - self._begun, now
        count = self._examples if examples is None else examples
        self._number += 1
        if self._number > 1:
            self._counted += count
            self._seconds += seconds
        if self._file is not None:
            self._report(Step(pid=os.getpid(), step=self._number, seconds=seconds, examples=count))

    def _report(self, step: Step) -> None:
        assert self._file is not None
        try:
            os.write(self._file, msgspec.json.encode(step) + b"\n")
        except OSError:  # a full disk: no more of it
            self.__exit__(None, None, None)


def summary(lines: Iterable[bytes]) -> str | None:
    """Return what a program reported, in a line; None where it reported no two steps.

    The speeds of its processes are added up, each without its first step.
    """
    examples: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            step = msgspec.json.decode(line, type=Step)
            if step.step > 1 and step.seconds > 0:
                examples[step.pid] = examples.get(step.pid, 0) + step.examples
                seconds[step.pid] = seconds.get(step.pid, 0.0) + step.seconds
    if not seconds:
        return None
    speed = sum(examples[pid] / seconds[pid] for pid in seconds)
    of = f" of {len(seconds)} processes" if len(seconds) > 1 else ""
    return f"the program's own steps{of}, without the first: {speed:.1f} images/sec"
