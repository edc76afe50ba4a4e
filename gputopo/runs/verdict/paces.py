"""The paces of the devices of a run, from its events one by one, in memory that does not grow with the run.

Every step compares towers with one another in that same step, so that influences on all of them cancel: only
the differences from the middle tower of a kind are kept. Computing is compared by logarithms, because its
noise is a factor. Waits may be 0, so they are shares of the middle tower's busy time. A device's loss is a
sum of seconds, which includes every stall in full.
"""

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from operator import add, sub
from statistics import fmean, median, median_low

from gputopo.runs.devices import groups, kind_of
from gputopo.runs.verdict.cost import KeptStep
from gputopo.runs.verdict.hosts import ExchangeRecord
from gputopo.runs.verdict.sampled import Facts
from gputopo.runs.verdict.words import COMPUTE, WEIGHTS
from gputopo.values.grouping import maxima
from gputopo.values.run.bounded import RECENT_STEPS, Blocks, Thinned
from gputopo.values.run.events import (
    Device,
    Event,
    PhaseBegun,
    Restarted,
    Sample,
    Step,
    TowerMarks,
    WarmupDone,
)
from gputopo.values.run.hosts import HostLoads
from gputopo.values.run.verdict import Known

# A tower without a mark in the last steps is gone; single steps may have no mark. Not measured.
GONE_STEPS = 10
# Maximum samples between two steps in a look, if steps take minutes. Not measured; chosen because it includes
# the facts that are read in every eighth sample.
SAMPLES_A_STEP = 8
REPLAYED_STEPS = 1000  # kept for the replay, and to see how slow single steps are
CLOCK_S = 1e-9  # no clock has a finer resolution
# Columns of a tower: the logarithm of its compute time relative to the middle tower; its wait for weights as
# a share of the middle tower's busy time; busy, computing and waiting seconds. Column of the run: the
# logarithm of its seconds per image.
_LEVEL, _WAIT, _BUSY_S, _COMPUTE_S, _WEIGHTS_S = _OF_TOWER = ("level", "wait", "busy", COMPUTE, WEIGHTS)
_RUN = ("run", -1)
_RELATIVE = {COMPUTE: _LEVEL, WEIGHTS: _WAIT}


class Paces:
    """The data for the comparisons of a run. `add` takes all its events in order, and ignores most types.

    Warm-up steps are skipped, and so is the first step after a phase (an evaluation, a checkpoint), because
    it pays for what the phase displaced. `batches`: examples per device, in order; empty: equal batches.
    `known`: known before the run; a device without a peer of its kind is compared with others by their
    speeds.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        batches: Sequence[int] = (),
        known: Known | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.speeds = dict(known.speeds if known else {})
        self.kind_by_tower = {device.tower: kind_of(device) for device in devices}
        all_known = all(tower in self.speeds and self.speeds[tower].low > 0 for tower in self.kind_by_tower)
        if all_known and len({*self.kind_by_tower.values()}) > 1:
            self.kinds = [list(devices)]
            # Of its fastest device, so that a slow one does not lower it.
            self._kind_speeds = maxima(
                (kind, self.speeds[tower].images_per_sec) for tower, kind in self.kind_by_tower.items()
            )
        else:
            self.kinds = groups(devices, kind_of)
            self._kind_speeds = {}
        self.links = groups(devices, lambda device: (kind_of(device), device.hop_to_variables))
        self.steps = 0  # number of compared steps
        self.missing = {device.tower: 0 for device in devices}  # steps at the end without marks
        self.last_seen = {device.tower: 0 for device in devices}  # last step with marks
        self.kept: Thinned[KeptStep] = Thinned(REPLAYED_STEPS)
        self._recent: deque[KeptStep] = deque(maxlen=RECENT_STEPS)
        self._loads: deque[tuple[int, Sample]] = deque(maxlen=SAMPLES_A_STEP * RECENT_STEPS)
        self.hosts = HostLoads()
        self.facts = Facts(devices, known)
        self.exchange = ExchangeRecord(devices)
        self.networks = dict(known.networks if known else {})
        self.batches = {device.tower: batch for device, batch in zip(devices, batches, strict=False) if batch}
        columns = [(part, tower) for part in _OF_TOWER for tower in self.kind_by_tower]
        self._columns = {column: number for number, column in enumerate([*columns, _RUN])}
        self.blocks = Blocks()
        self._after_phase = False

    def add(self, event: Event) -> None:
        """Add the next event of the run."""
        match event:
            case Step():
                self.facts.end_step(event, counted=self._add_step(event))
            case Sample():
                self.facts.add(event)
                self.hosts.add(event)
                if event.host is not None:
                    self._loads.append((self.steps, event))
            case WarmupDone() | Restarted():
                if isinstance(event, WarmupDone):
                    self.hosts.begin()
                for recent in (self._recent, self._loads, self.blocks.recent):
                    recent.clear()
                self.facts.forget_recent()
            case PhaseBegun():
                self._after_phase = True

    def latest(self) -> "Paces":
        """Return the paces of only the recent steps. They can be judged while others are added."""
        recent = copy.copy(self)
        recent.blocks, recent.facts = self.blocks.latest(), self.facts.latest()
        recent.exchange = self.exchange.latest()
        recent.steps, recent.kept, recent.hosts = len(self._recent), Thinned(REPLAYED_STEPS), HostLoads()
        for step in self._recent:
            recent.kept.add(step)
        for steps, sample in self._loads:
            if steps > self.steps - RECENT_STEPS:
                recent.hosts.add(sample)
        recent.missing, recent.last_seen = dict(self.missing), dict(self.last_seen)
        return recent

    def allowance(self, tower: int, peer: int) -> float:
        """Return the maximum ratio of a tower's compute time to its peer's, given batches and kinds."""
        return self.batch_allowance(tower, peer) * self._speed(peer) / self._speed(tower)

    def unsure(self, tower: int, peer: int) -> float:
        """Return the uncertainty of the ratio of two towers' speeds, as a logarithm; 0 for one kind.

        The two speeds have independent errors within their ranges.
        """
        if self.kind_by_tower.get(tower) == self.kind_by_tower.get(peer):
            return 0.0
        ranges = (self.speeds[device] for device in (tower, peer))
        return math.hypot(*(math.log(speed.high / speed.low) / 2 for speed in ranges))

    def source(self, tower: int, peer: int) -> str | None:
        """Return the source of the speeds by which two towers are compared; None if they are of one kind."""
        if self.kind_by_tower.get(tower) == self.kind_by_tower.get(peer):
            return None
        return "; ".join(dict.fromkeys(self.speeds[device].source for device in (tower, peer)))

    def batch_allowance(self, tower: int, peer: int) -> float:
        """Return the maximum ratio of a tower's compute time to its peer's, of the same kind, given batches.

        A larger batch may take longer in proportion. A smaller batch may take as long as the peer, because
        the fixed cost of a step is unknown. So neither a larger nor a smaller batch makes a device slow.
        """
        return max(1.0, self._batch(tower) / self._batch(peer))

    def level(self, tower: int, part: str) -> float:
        """Return the middle of a tower's `relative` values, computing per example; NaN if there are none."""
        per_example = math.log(self._batch(tower)) if part == COMPUTE else 0.0
        return self.blocks.middle(self._columns[_RELATIVE[part], tower]) - per_example

    def relative(self, tower: int, part: str) -> list[float]:
        """Return by row how a tower compares with the middle tower.

        The logarithm of its compute time relative to that tower's, or its wait for weights as a share of
        that tower's busy time.
        """
        return self.blocks.medians(self._columns[_RELATIVE[part], tower])

    def lost(self, tower: int, peer: int, part: str) -> tuple[list[float], list[float]]:
        """Return by row the mean seconds that a tower takes longer than its peer, and the peer's seconds."""
        weights, others_weights = self._seconds(tower, WEIGHTS), self._seconds(peer, WEIGHTS)
        computes = self._seconds(peer, COMPUTE)
        if part == WEIGHTS:
            return [*map(sub, weights, others_weights)], [*map(add, others_weights, computes)]
        allowed = self.allowance(tower, peer)
        taken = [allowed * seconds for seconds in computes]
        return [*map(sub, self._seconds(tower, COMPUTE), taken)], taken

    def mean_s(self, tower: int, part: str) -> float:
        """Return a tower's mean seconds of a part; computing per example, scaled by its kind's speed."""
        seconds = fmean(row_s for row_s in self._seconds(tower, part) if not math.isnan(row_s))
        return seconds if part == WEIGHTS else seconds * self._speed(tower) / self._batch(tower)

    def _seconds(self, tower: int, part: str) -> list[float]:
        return self.blocks.means(self._columns[part, tower])

    def lost_by_step(self, tower: int, peer: int, part: str) -> list[float]:
        """Return a tower's loss relative to its peer, as shares, in each of the kept steps."""
        there = (step.marks for step in self.kept.items if {tower, peer} <= step.marks.keys())
        both = [(marks[tower], marks[peer]) for marks in there]
        if part == WEIGHTS:
            return [(mark.weights_s - other.weights_s) / other.busy_s for mark, other in both]
        allowed = self.allowance(tower, peer)
        return [mark.compute_s / other.compute_s / allowed - 1 for mark, other in both]

    def busy_s(self, tower: int) -> float:
        """Return the median seconds in which a tower waits and computes; NaN if there are none."""
        return self.blocks.middle(self._columns[_BUSY_S, tower])

    def run(self) -> list[float]:
        """Return the logarithms of the seconds per image of the whole run, by row."""
        return self.blocks.medians(self._columns[_RUN])

    def gone(self, tower: int) -> bool:
        """Return whether a tower had marks, but none in the last steps."""
        return self.last_seen[tower] > 0 and self.missing[tower] >= GONE_STEPS

    def _batch(self, tower: int) -> float:
        return self.batches.get(tower, 1.0)

    def _speed(self, tower: int) -> float:
        """Return the expected images/sec of a tower's kind; 1 if all towers are of one kind."""
        return self._kind_speeds.get(self.kind_by_tower[tower], 1.0)

    def _add_step(self, step: Step) -> bool:
        """Add a step; return whether it is compared."""
        if step.warmup:
            return False
        after_phase, self._after_phase = self._after_phase, False
        if after_phase:
            return False
        marks = {
            mark.tower: mark
            for mark in step.marks
            if mark.tower in self.kind_by_tower
            if CLOCK_S < mark.compute_s < math.inf and 0 <= mark.weights_s < math.inf
        }
        for tower in self.missing:
            self.missing[tower] = 0 if tower in marks else self.missing[tower] + 1
        self.last_seen.update(dict.fromkeys(marks, step.step))
        if step.seconds <= CLOCK_S or step.images <= 0:
            return False
        self.steps += 1
        self.blocks.add(step.step, self._row(step, marks))
        kept = KeptStep(step.step, step.seconds, step.images, marks)
        self.kept.add(kept)
        self._recent.append(kept)
        self.exchange.add(step)
        return True

    def _row(self, step: Step, marks: Mapping[int, TowerMarks]) -> list[float]:
        row = {_RUN: math.log(step.seconds / step.images)}
        for group in self.kinds:
            computed = {
                device.tower: math.log(marks[device.tower].compute_s * self._speed(device.tower))
                for device in group
                if device.tower in marks
            }
            if len(computed) > 1:
                middle = median(computed.values())
                row |= {(_LEVEL, tower): logarithm - middle for tower, logarithm in computed.items()}
        for group in self.links:
            present = [marks[device.tower] for device in group if device.tower in marks]
            if len(present) > 1:
                busy_s = median_low(mark.busy_s for mark in present)
                row |= {(_WAIT, mark.tower): mark.weights_s / busy_s for mark in present}
        for tower, mark in marks.items():
            row[_BUSY_S, tower] = mark.busy_s
            row[_COMPUTE_S, tower], row[_WEIGHTS_S, tower] = mark.compute_s, mark.weights_s
        return [row.get(column, math.nan) for column in self._columns]
