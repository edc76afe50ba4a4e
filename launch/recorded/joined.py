"""Steps that several processes report, as steps of one run. Pure.

In synchronous training the k-th steps of all processes are one step. Processes of different speeds each have
their own: of one that is ahead several steps are taken at once, so that speeds add up.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from gputopo.launch.throughput import Report, StepDone, StepsEnded
from gputopo.values.option import listed
from gputopo.values.run.events import Noticed, Step, TowerMarks, WarmupDone

# Steps that a process is ahead of another in synchronous training, at most: reports of one step arrive almost
# together, and pipelines run a few steps ahead. Ours.
MAX_AHEAD = 8
# A process that reported nothing in so many steps of another one, and in so many seconds, has ended, or is
# stuck. Of thousands of steps a second a pipe has tens of ms of one process alone. Ours.
GONE_STEPS, GONE_S = 200, 1.0
MAX_PROCESSES = 1024  # of a host; a program that reports more is not believed. Ours.

_Place = tuple[int, int]  # a process: host and pid


class _Process:
    def __init__(self) -> None:
        self.waiting: deque[StepDone] = deque()
        self.ended = False
        self.number: int | None = None  # of its latest step
        self.heard_s = 0.0

    def take(self) -> list[StepDone]:
        """Take its next step, or all of them where it is ahead."""
        number = len(self.waiting) if len(self.waiting) > MAX_AHEAD else 1
        return [self.waiting.popleft() for _ in range(number)]


class Joined:
    """Makes the steps of a run from reports. `towers`: of the devices of each host, in their order there.

    `hosts`: their names, where the run has several. The first step of a process is its warm-up: it builds
    and compiles.
    """

    def __init__(self, towers: Mapping[int, Sequence[int]], hosts: Sequence[str] = ()) -> None:
        self._towers, self._hosts = towers, hosts
        self._heard: set[int] = set()  # hosts that have reported a step
        self._processes: dict[_Place, _Process] = {}
        self._number = 0
        self._warmup_steps, self._warmup_s = 0, 0.0
        self._lost = 0  # steps whose reports did not come

    def add(self, report: Report, time_s: float, host: int = 0) -> Iterator[Step | WarmupDone]:
        """Add a report and return the steps that are complete with it. `time_s`: when it came, epoch."""
        place = (host, report.pid)
        if isinstance(report, StepsEnded):
            if place in self._processes:
                self._processes[place].ended = True
        elif report.step == 1:
            yield from self._first(place, report, time_s)
        elif (process := self._process(place)) is not None:
            process.waiting.append(report)
            if process.number is not None:
                self._lost += max(0, report.step - process.number - report.steps)
            process.number, process.heard_s = report.step, time_s
            if len(process.waiting) > GONE_STEPS:
                self._processes = {
                    place: one
                    for place, one in self._processes.items()
                    if one.waiting or time_s - one.heard_s <= GONE_S
                }
        yield from self._complete(time_s)

    def finish(self, time_s: float) -> Iterator[Step | WarmupDone | Noticed]:
        """Return what is left, and notices of what was lost or not reported: no process reports more."""
        for process in self._processes.values():
            process.ended = True
        yield from self._complete(time_s)
        if self._lost:
            says = f"{self._lost:,} steps were reported faster than they could be recorded, and are left out."
            yield Noticed(time_s=time_s, says=says)
        silent = [name for host, name in enumerate(self._hosts) if host not in self._heard]
        if self._heard and silent:
            says = f"No step was reported on {listed(silent, 'and')}: images/sec is that of the other hosts."
            yield Noticed(time_s=time_s, says=says)

    def _process(self, place: _Place) -> _Process | None:
        if place not in self._processes:
            if sum(host == place[0] for host, _ in self._processes) >= MAX_PROCESSES:
                return None
            self._heard.add(place[0])
        return self._processes.setdefault(place, _Process())

    def _first(self, place: _Place, report: StepDone, time_s: float) -> Iterator[Step]:
        others = self._processes.keys() - {place}
        process = self._process(place)
        if process is None:
            return
        process.ended, process.number, process.heard_s = False, 1, time_s
        if not others:  # those of further processes are the same step
            self._warmup_steps += 1
            self._warmup_s += report.seconds
            yield _step({place: [report]}, 0, {}, time_s)

    def _complete(self, time_s: float) -> Iterator[Step | WarmupDone]:
        while True:
            self._processes = {
                place: one for place, one in self._processes.items() if one.waiting or not one.ended
            }
            if not self._processes or not all(one.waiting for one in self._processes.values()):
                return
            if not self._number:
                yield WarmupDone(time_s=time_s, steps=self._warmup_steps, seconds=self._warmup_s)
            self._number += 1
            taken = {place: one.take() for place, one in self._processes.items()}
            yield _step(taken, self._number, self._towers, time_s)


def _step(
    taken: Mapping[_Place, Sequence[StepDone]],
    number: int,
    towers: Mapping[int, Sequence[int]],
    time_s: float,
) -> Step:
    """Return the step that is made of these of each process."""
    reports = [one for steps in taken.values() for one in steps]
    images = sum(one.examples for one in reports)
    speed = sum(
        sum(one.examples for one in steps) / sum(one.seconds for one in steps) for steps in taken.values()
    )
    marks = {}
    # A device with another batch is neither slow nor quick for that, so then they are not compared.
    if len({one.examples / one.steps for one in reports}) == 1:
        for (host, _), steps in taken.items():
            mark = _mark(steps, towers.get(host, ()))
            if mark is not None:
                marks[mark.tower] = mark
    return Step(
        time_s=time_s,
        step=number,
        seconds=images / speed if images else _mean([one.seconds for one in reports], reports),
        images=images,
        loss=None,
        marks=tuple(marks.values()),
    )


def _mark(steps: Sequence[StepDone], towers: Sequence[int]) -> TowerMarks | None:
    """Return what a process of a host with these towers was busy; None where it has no device, or no such."""
    device = steps[0].device
    busy_s = [one.busy_s for one in steps if one.busy_s is not None]
    if device is None or not 0 <= device < len(towers) or len(busy_s) < len(steps):
        return None
    return TowerMarks(tower=towers[device], start_s=0.0, weights_s=0.0, compute_s=_mean(busy_s, steps))


def _mean(seconds: Sequence[float], reports: Sequence[StepDone]) -> float:
    """Return the mean of a step, of sums over the steps of reports."""
    return math.fsum(seconds) / sum(one.steps for one in reports)
