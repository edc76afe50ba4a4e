"""Steps that several processes report, as steps of one run. Pure.

In synchronous training the k-th steps of all processes are one step. Processes of different speeds each have
their own: of one that is ahead several steps are taken at once, so that speeds add up.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from statistics import fmean

from gputopo.launch.throughput import Report, StepDone, StepsEnded
from gputopo.values.run.events import Noticed, Step, TowerMarks, WarmupDone

# Steps that a process is ahead of another in synchronous training, at most: reports of one step arrive almost
# together, and pipelines run a few steps ahead. Ours.
MAX_AHEAD = 8
# A process that reported nothing in so many steps of another one has ended, or is stuck. Ours.
GONE_STEPS = 200
MAX_PROCESSES = 1024  # a program that reports more is not believed. Ours.


class _Process:
    def __init__(self) -> None:
        self.waiting: deque[StepDone] = deque()
        self.ended = False
        self.number = 1  # of its latest step

    def take(self) -> list[StepDone]:
        """Take its next step, or all of them where it is ahead."""
        number = len(self.waiting) if len(self.waiting) > MAX_AHEAD else 1
        return [self.waiting.popleft() for _ in range(number)]


class Joined:
    """Makes the steps of a run from reports. `devices`: how many the run has.

    The first step of a process is its warm-up: it builds and compiles.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._processes: dict[int, _Process] = {}
        self._number = 0
        self._warmup_steps, self._warmup_s = 0, 0.0
        self._lost = 0  # steps whose reports did not come

    def add(self, report: Report, time_s: float) -> Iterator[Step | WarmupDone]:
        """Add a report and return the steps that are complete with it. `time_s`: when it came, epoch."""
        if isinstance(report, StepsEnded):
            if report.pid in self._processes:
                self._processes[report.pid].ended = True
        elif report.step == 1:
            yield from self._first(report, time_s)
        elif (process := self._process(report.pid)) is not None:
            process.waiting.append(report)
            self._lost += max(0, report.step - process.number - 1)
            process.number = report.step
            if len(process.waiting) > GONE_STEPS:
                self._processes = {pid: one for pid, one in self._processes.items() if one.waiting}
        yield from self._complete(time_s)

    def finish(self, time_s: float) -> Iterator[Step | WarmupDone | Noticed]:
        """Return what is left, and a notice of what was lost: no process reports more."""
        for process in self._processes.values():
            process.ended = True
        yield from self._complete(time_s)
        if self._lost:
            says = f"{self._lost:,} steps were reported faster than they could be recorded, and are left out."
            yield Noticed(time_s=time_s, says=says)

    def _process(self, pid: int) -> _Process | None:
        if pid not in self._processes and len(self._processes) >= MAX_PROCESSES:
            return None
        return self._processes.setdefault(pid, _Process())

    def _first(self, report: StepDone, time_s: float) -> Iterator[Step]:
        others = self._processes.keys() - {report.pid}
        process = self._process(report.pid)
        if process is None:
            return
        process.ended, process.number = False, 1
        if not others:  # those of further processes are the same step
            self._warmup_steps += 1
            self._warmup_s += report.seconds
            yield _step([[report]], 0, 0, time_s)

    def _complete(self, time_s: float) -> Iterator[Step | WarmupDone]:
        while True:
            self._processes = {
                pid: one for pid, one in self._processes.items() if one.waiting or not one.ended
            }
            members = self._processes.values()
            if not members or not all(one.waiting for one in members):
                return
            if not self._number:
                yield WarmupDone(time_s=time_s, steps=self._warmup_steps, seconds=self._warmup_s)
            self._number += 1
            yield _step([one.take() for one in members], self._number, self._devices, time_s)


def _step(taken: Sequence[Sequence[StepDone]], number: int, devices: int, time_s: float) -> Step:
    """Return the step that is made of these of each process."""
    images = sum(one.examples for steps in taken for one in steps)
    speed = sum(sum(one.examples for one in steps) / sum(one.seconds for one in steps) for steps in taken)
    # A device with another batch is neither slow nor quick for that, so then they are not compared.
    alike = len({one.examples for steps in taken for one in steps}) == 1
    marks = {
        steps[0].device: TowerMarks(
            tower=steps[0].device,
            start_s=0.0,
            weights_s=0.0,
            compute_s=fmean(one.busy_s or one.seconds for one in steps),
        )
        for steps in taken
        if alike
        and steps[0].device is not None
        and 0 <= steps[0].device < devices
        and all(one.busy_s is not None for one in steps)
    }
    return Step(
        time_s=time_s,
        step=number,
        seconds=images / speed if images else fmean(one.seconds for steps in taken for one in steps),
        images=images,
        loss=None,
        marks=tuple(marks.values()),
    )
