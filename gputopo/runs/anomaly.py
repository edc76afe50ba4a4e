"""Devices that are slower than their peers beyond the noise of the run. Pure.

Every step compares towers with one another in that same step, so what slows all of them cancels. The median
over the steps sets single stalls aside. A device is named only if a lower confidence bound of that median is
above the threshold, and the median of each half of the run is too: a slow first half is not a slow device.

Which peers: those of the same kind, ordered by their own speed, and of the faster half of them the middle
one (see `reference_of`). With the median of all peers a slow majority would pass as normal; with the
fastest peer one fast GPU of eight would mark the seven others as slow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Self

import msgspec

from gputopo.runs.median_bound import lower_bound, min_values
from gputopo.values.run.events import Anomaly, Device, Step, TowerMarks

# Percent of pace. In the 7gforce table of six GTX 1070 a GPU at 94.54 % of the reference counts as slow and
# one at 98.83 % does not.
THRESHOLD_PERCENT = 5.0
# Of all towers together, for each part of the step: an even run names a device with a chance of 1 % at most.
CONFIDENCE = 0.99
# Resolution of time marks. Towers that do the same work on idle CPU devices read steadily up to 0.14 ms
# apart: the clock is read where tower 0 computes, and threads of other towers must be scheduled in between.
# Under load it is more. So in steps of a few milliseconds 5 % is thread scheduling.
MARKS_RESOLUTION_S = 0.5e-3

_MADE, _NOT_MADE = "made", "not made"
_BUT_NOT_FOR, _NOR_FOR = ", but not for ", "; nor for "


class SlowDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device slower than its peers: the fields of `gputopo.values.run.events.Anomaly` but its time.

    `percent_under`: percent by which its pace is below that of its peers, the median over the steps.
    """

    tower: int
    part: str
    percent_under: float
    percent_under_low: float
    confidence: float
    says: str
    gpu: int | None = None

    def event(self, time_s: float, rank: int = 0) -> Anomaly:
        """Return the event for it; `time_s` in seconds since the epoch."""
        return Anomaly(time_s=time_s, rank=rank, **msgspec.structs.asdict(self))


class AnomalyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The slow devices, by tower, and whether devices were compared at all.

    `not_made`: why they were not, None if they were. `left_out`: what the comparison does not cover and why:
    devices without a peer, or differences that time marks cannot resolve in steps this short.
    """

    anomalies: tuple[SlowDevice, ...] = ()
    not_made: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def made(self) -> bool:
        """Whether devices were compared: only then does no anomaly mean an even run."""
        return self.not_made is None

    @property
    def verdict(self) -> str:
        """The check in words, as in `gputopo.result/1`: "made", "made, but not for ...", "not made: ..."."""
        if self.not_made is not None:
            return f"{_NOT_MADE}: {self.not_made}"
        return _MADE + (_BUT_NOT_FOR + _NOR_FOR.join(self.left_out) if self.left_out else "")

    @classmethod
    def from_verdict(cls, verdict: str) -> Self:
        """Return the check that a result stores in words; without its anomalies, which stand beside it."""
        if verdict.startswith(_NOT_MADE):
            return cls(not_made=verdict.removeprefix(_NOT_MADE).removeprefix(": "))
        left_out = verdict.removeprefix(_MADE).removeprefix(_BUT_NOT_FOR)
        return cls(left_out=tuple(left_out.split(_NOR_FOR)) if left_out else ())


Marks = Mapping[int, TowerMarks]
Under = Callable[[Marks, int, int], float]  # the marks of a step, a tower, its peer: percent under


def find_anomalies(
    devices: Sequence[Device], steps: Sequence[Step], batches: Sequence[int] = ()
) -> AnomalyCheck:
    """Return the devices more than 5 % slower than their peers beyond the noise of the run and its marks.

    `batches`: examples of each device; a larger batch may take longer by as much. None: all have as many.
    Warm-up steps are skipped, and so is a step in which a tower has no usable mark. Time to compute is
    compared among devices of one kind: GPUs of one name, or CPU devices. Time to wait for weights is compared
    only where the path to the variables is of the same class, too.
    """
    if len(devices) < 2:
        return AnomalyCheck(not_made=_no_peer(devices))
    kinds = _groups(devices, lambda device: kind_of(device))
    if not kinds:
        return AnomalyCheck(not_made="no two devices are of the same kind")
    towers = {device.tower for group in kinds for device in group}
    counted = [marks for step in steps if not step.warmup and (marks := _usable(step, towers)) is not None]
    needed = min_values(_chance(kinds))
    if len(counted) < needed:
        return AnomalyCheck(not_made=f"too few steps ({needed} needed, {len(counted)} counted)")

    by_tower: dict[int, int] = {}
    if len(set(batches)) > 1:
        by_tower = {device.tower: batch for device, batch in zip(devices, batches, strict=True)}
    # The wait of a device without peers on the same class of link does not characterise the device.
    links = _groups(devices, lambda device: (kind_of(device), device.hop_to_variables))
    found = [
        *_slow(kinds, counted, "compute", _compute_under, by_tower),
        *_slow(links, counted, "weights", _weights_under, by_tower),
    ]
    found.sort(key=lambda slow: (slow.tower, slow.part))
    return AnomalyCheck(anomalies=tuple(found), left_out=_left_out(devices, towers, counted))


def kind_of(device: Device) -> str:
    """Return what a device is compared with: "CPU", or the GPU's name.

    A CPU device that stands for a GPU in a rehearsal is a CPU device.
    """
    return "CPU" if _is_cpu(device) else f"GPU {device.gpu_name or 'of unknown name'}"


def name_of(device: Device) -> str:
    """Return a device's name for people: "GPU 3 (GTX 1070)", or "tower 1 (/CPU:1)"."""
    if _is_cpu(device) or device.gpu is None:
        return f"tower {device.tower} ({device.device})"
    return f"GPU {device.gpu} ({device.gpu_name})" if device.gpu_name else f"GPU {device.gpu}"


def reference_of(tower: int, fastest_first: Sequence[int]) -> int:
    """Return the peer a tower is compared with: the middle one of the faster half of its peers.

    Of an even number the faster of the two. So it is the fastest of up to four peers, the second of five to
    eight: one healthy device of four shows that three are slow, but one of eight does not.
    """
    peers = [other for other in fastest_first if other != tower]
    faster_half = peers[: (len(peers) + 1) // 2]
    return faster_half[(len(faster_half) - 1) // 2]


def _compute_under(marks: Marks, tower: int, peer: int) -> float:
    return 100 * (1 - marks[peer].compute_s / marks[tower].compute_s)


def _weights_under(marks: Marks, tower: int, peer: int) -> float:
    # Of the time the tower is busy: ten times a wait that is next to nothing is still next to nothing.
    this = marks[tower]
    return 100 * (this.weights_s - marks[peer].weights_s) / (this.weights_s + this.compute_s)


def _slow(
    groups: Sequence[Sequence[Device]],
    steps: Sequence[Marks],
    part: str,
    under: Under,
    batches: Mapping[int, int],
) -> list[SlowDevice]:
    if not groups:
        return []
    chance = _chance(groups)
    found = []
    for group in groups:
        of_one = [_per_example(marks, batches) for marks in steps] if batches else steps
        fastest_first = _fastest_first([device.tower for device in group], of_one, part)
        for device in group:
            peer = reference_of(device.tower, fastest_first)
            fair = steps
            if batches:
                fair = [_with_the_batch_of(device.tower, peer, marks, batches) for marks in steps]
            gap_s = median(
                _seconds(marks, device.tower, part) - _seconds(marks, peer, part) for marks in fair
            )
            percent = [under(marks, device.tower, peer) for marks in fair]
            low = _proven(percent, chance)
            if low is not None and gap_s > MARKS_RESOLUTION_S:
                found.append(_named(device, part, median(percent), low))
    return found


def _per_example(marks: Marks, batches: Mapping[int, int]) -> Marks:
    """Return marks with the time to compute of one example of each tower's batch."""
    return {tower: _times(mark, 1 / batches.get(tower, 1)) for tower, mark in marks.items()}


def _with_the_batch_of(tower: int, peer: int, marks: Marks, batches: Mapping[int, int]) -> Marks:
    """Return marks in which the peer computes a batch as large as the tower's, at most so long.

    For a larger one in proportion; for a smaller one as long as for its own, since what a step costs whatever
    its batch is not known. So neither a larger nor a smaller batch makes a device slow.
    """
    more = max(1.0, batches.get(tower, 1) / batches.get(peer, 1))
    return {**marks, peer: _times(marks[peer], more)}


def _times(mark: TowerMarks, factor: float) -> TowerMarks:
    return msgspec.structs.replace(mark, compute_s=mark.compute_s * factor)


def _proven(percent: Sequence[float], chance: float) -> float | None:
    """Return the lower bound of the median if each half of the run and the bound are above the threshold."""
    half = len(percent) // 2
    if min(median(percent[:half]), median(percent[half:])) <= THRESHOLD_PERCENT:
        return None
    low = lower_bound(percent, chance)
    return low if low > THRESHOLD_PERCENT else None


def _fastest_first(towers: Sequence[int], steps: Sequence[Marks], part: str) -> list[int]:
    """Order towers by their time relative to the middle one of each step, the median over the steps."""
    middles = [median(_seconds(marks, tower, part) for tower in towers) for marks in steps]
    # A wait may be 0, so waits are compared by difference; computing by ratio, as noise there is a factor.
    levels = {
        tower: median(
            _seconds(marks, tower, part) / middle
            if part == "compute"
            else _seconds(marks, tower, part) - middle
            for marks, middle in zip(steps, middles, strict=True)
        )
        for tower in towers
    }
    return sorted(towers, key=lambda tower: (levels[tower], tower))


def _seconds(marks: Marks, tower: int, part: str) -> float:
    return marks[tower].compute_s if part == "compute" else marks[tower].weights_s


def _groups(devices: Sequence[Device], key: Callable[[Device], object]) -> list[list[Device]]:
    groups: dict[object, list[Device]] = {}
    for device in devices:
        groups.setdefault(key(device), []).append(device)
    return [group for group in groups.values() if len(group) > 1]


def _chance(groups: Sequence[Sequence[Device]]) -> float:
    """Split the chance of a false alarm among the towers that are compared (Bonferroni)."""
    return (1 - CONFIDENCE) / sum(map(len, groups))


def _usable(step: Step, towers: set[int]) -> Marks | None:
    marks = {mark.tower: mark for mark in step.marks}
    if not marks.keys() >= towers:
        return None
    good = all(
        0 < marks[tower].compute_s < math.inf and 0 <= marks[tower].weights_s < math.inf for tower in towers
    )
    return marks if good else None


def _named(device: Device, part: str, percent: float, low: float) -> SlowDevice:
    shown = f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}"
    at_least = f"{math.floor(low)}" if low >= 10 else f"{math.floor(low * 10) / 10:.1f}"
    what = (
        f"computes {shown} % slower than its peers"
        if part == "compute"
        else f"is {shown} % slower than its peers as it waits longer for its weights"
    )
    return SlowDevice(
        tower=device.tower,
        part=part,
        percent_under=percent,
        percent_under_low=low,
        confidence=CONFIDENCE,
        says=f"{name_of(device)} {what} (at least {at_least} %, {100 * CONFIDENCE:.0f} % confidence)",
        gpu=None if _is_cpu(device) else device.gpu,
    )


def _left_out(devices: Sequence[Device], compared: set[int], steps: Sequence[Marks]) -> tuple[str, ...]:
    left_out = []
    alone = [name_of(device) for device in devices if device.tower not in compared]
    if alone:
        left_out.append(f"{', '.join(alone)}: no peer of its kind")
    busy_s = min(
        median(marks[tower].weights_s + marks[tower].compute_s for marks in steps) for tower in compared
    )
    if busy_s * THRESHOLD_PERCENT / 100 < MARKS_RESOLUTION_S:
        below = f"differences below {1000 * MARKS_RESOLUTION_S:g} ms in steps this short"
        left_out.append(f"{below}: time marks cannot resolve them")
    return tuple(left_out)


def _no_peer(devices: Sequence[Device]) -> str:
    return "one device has no peer" if devices else "no devices are known"


def _is_cpu(device: Device) -> bool:
    return "CPU" in device.device.upper()
