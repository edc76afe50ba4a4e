"""Combines the steps that the processes of a program report into steps of one run.

In synchronous training, the k-th steps of all processes are one step. Processes of different speeds have
separate steps. If one is ahead, several of its steps are taken at once, so that the speeds add up.
"""

import contextlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from gputopo.launch.throughput import (
    EXAMPLES,
    MAX_REPORT_BYTES,
    Report,
    StepDone,
    StepsEnded,
    read_report,
)
from gputopo.values.run.events import Noticed, Step, TowerMarks, WarmupDone
from gputopo.values.run.program import MAX_PROCESSES

# Maximum number of steps by which a process is ahead of another in synchronous training. Reports of one step
# arrive almost together, and pipelines run a few steps ahead. Not measured.
MAX_AHEAD = 8
# A process has ended or is stuck if it reported nothing during this many steps of another process and this
# many seconds. With thousands of steps per second, a pipe may have tens of ms of only one process. Not
# measured.
GONE_STEPS, GONE_S = 200, 1.0

NO_COST = 0.05  # share of the speed: a smaller cost of first steps is not reported; not measured


class _Process:
    def __init__(self) -> None:
        self.waiting: deque[StepDone] = deque()
        self.ended = False
        self.heard_s = 0.0

    def take(self) -> list[StepDone]:
        """Take its next step, or all steps if it is ahead."""
        number = len(self.waiting) if len(self.waiting) > MAX_AHEAD else 1
        return [self.waiting.popleft() for _ in range(number)]


class Joined:
    """Makes the steps of a run from reports. `towers`: of the devices, in the order of the program.

    The first step of a process is its warm-up, because it builds and compiles.
    """

    def __init__(self, towers: Sequence[int]) -> None:
        self._towers = towers
        self._processes: dict[int, _Process] = {}  # by pid
        self._number = 0
        self._warmup_steps, self._warmup_s = 0, 0.0
        self._late = 0  # steps that were reported together with a later one
        # Counted steps: first all others, then the first ones after a `begin`.
        self._images, self._seconds = [0, 0], [0.0, 0.0]
        self._unit = EXAMPLES

    def add(self, report: Report, time_s: float) -> Iterator[Step | WarmupDone]:
        """Add a report and yield the steps that it completes. `time_s`: epoch time at which it came."""
        if isinstance(report, StepsEnded):
            if report.pid in self._processes:
                self._processes[report.pid].ended = True
        elif report.step == 1:
            self._unit = report.unit
            yield from self._first(report, time_s)
        elif (process := self._process(report.pid)) is not None:
            process.waiting.append(report)
            self._late += report.steps - 1
            process.heard_s = time_s
            if len(process.waiting) > GONE_STEPS:
                self._processes = {
                    pid: process
                    for pid, process in self._processes.items()
                    if process.waiting or time_s - process.heard_s <= GONE_S
                }
        yield from self._complete(time_s)

    def finish(self, time_s: float) -> Iterator[Step | WarmupDone | Noticed]:
        """Yield the remaining steps, and notices about limits of the figures. No process reports more."""
        for process in self._processes.values():
            process.ended = True
        yield from self._complete(time_s)
        if self._late:
            says = (
                f"{self._late:,} steps were too fast to be reported one by one; they are included "
                "in later ones."
            )
            yield Noticed(time_s=time_s, says=says)
        (images, _), (seconds, of_first_s) = self._images, self._seconds
        share = of_first_s / (seconds + of_first_s) if seconds else 0.0
        if sum(self._images) < images / (1 - share) * (1 - NO_COST):
            says = (
                f"Steps that begin an epoch or follow a pause took {share:.0%} of the time: without them it "
            )
            yield Noticed(time_s=time_s, says=f"{says}is {images / seconds:.4g} {self._unit}/sec.")

    def _process(self, pid: int) -> _Process | None:
        if pid not in self._processes and len(self._processes) >= MAX_PROCESSES:
            return None
        return self._processes.setdefault(pid, _Process())

    def _first(self, report: StepDone, time_s: float) -> Iterator[Step]:
        others = self._processes.keys() - {report.pid}
        process = self._process(report.pid)
        if process is None:
            return
        process.ended, process.heard_s = False, time_s
        if not others:  # the first steps of other processes are the same step
            self._warmup_steps += 1
            self._warmup_s += report.seconds
            yield _step([[report]], 0, (), time_s)

    def _complete(self, time_s: float) -> Iterator[Step | WarmupDone]:
        while True:
            self._processes = {
                pid: process
                for pid, process in self._processes.items()
                if process.waiting or not process.ended
            }
            if not self._processes or not all(process.waiting for process in self._processes.values()):
                return
            if not self._number:
                yield WarmupDone(
                    time_s=time_s, steps=self._warmup_steps, seconds=self._warmup_s, unit=self._unit
                )
            self._number += 1
            taken = [process.take() for process in self._processes.values()]
            step = _step(taken, self._number, self._towers, time_s)
            is_first = any(report.after_begin for steps in taken for report in steps)
            self._images[is_first] += step.images
            self._seconds[is_first] += step.seconds
            yield step


def _step(
    taken: Sequence[Sequence[StepDone]],
    number: int,
    towers: Sequence[int],
    time_s: float,
) -> Step:
    """Return the step that combines the taken steps of each process."""
    reports = [step for steps in taken for step in steps]
    images = sum(report.examples for report in reports)
    speed = sum(sum(step.examples for step in steps) / sum(step.seconds for step in steps) for steps in taken)
    marks = {}
    # Devices with different batches are not compared.
    if len({report.examples for report in reports}) == 1:
        for steps in taken:
            mark = _mark(steps, towers)
            if mark is not None:
                marks[mark.tower] = mark
    return Step(
        time_s=time_s,
        step=number,
        seconds=images / speed if images else fmean(report.seconds for report in reports),
        images=images,
        loss=None,
        marks=tuple(marks.values()),
    )


def _mark(steps: Sequence[StepDone], towers: Sequence[int]) -> TowerMarks | None:
    """Return the busy time of a process; None if it has no device, or a device outside these towers."""
    device = steps[0].device
    busy_s = [step.busy_s for step in steps if step.busy_s is not None]
    if device is None or not 0 <= device < len(towers) or len(busy_s) < len(steps):
        return None
    return TowerMarks(tower=towers[device], start_s=0.0, weights_s=0.0, compute_s=fmean(busy_s))


_AT_ONCE = 65_536  # bytes: a full pipe


class StepPipe:
    """The reader's end. `name`: the pipe, in a folder of only this user; `handle` becomes readable.

    A pipe stores nothing on disk. A writer that finds it full loses that report and does not wait. Raises
    OSError if no pipe can be created.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.name = Path(tempfile.mkdtemp(prefix="gputopo-steps-")) / "pipe"
        try:
            os.mkfifo(self.name, 0o600)
            # Open for reading and writing, so that there is no end of file when the last writer closes it.
            self.handle = os.open(self.name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._remove()
            raise

    def take(self) -> Iterator[Report]:
        """Yield the reports of one read; invalid lines are skipped."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.handle, _AT_ONCE)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= MAX_REPORT_BYTES else b""
        for line in lines:
            report = read_report(line)
            if report is not None:
                yield report

    def close(self) -> None:
        """Close and remove the pipe."""
        os.close(self.handle)
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.name.parent, ignore_errors=True)
