"""The verdict on each device: slow, even to within N %, or cannot tell. Pure.

Slow: the lower bound of its difference from its peers is above `SLOW_PERCENT`. Even: the upper bound is not
above `EVEN_PERCENT`. Cannot tell: neither is proven. So a difference that is not proven is never shown as
none, and a noisy run proves nothing.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec

from gputopo.runs.verdict import words
from gputopo.runs.verdict.cost import ALONE, cost
from gputopo.runs.verdict.devices import is_cpu
from gputopo.runs.verdict.paces import Paces
from gputopo.runs.verdict.peers import Difference, differences, steps_needed
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW, Cost, HostSummary, Verdict

# GPUs of one model differ by one or two percent as they come from the factory: in the 7gforce table of six
# GTX 1070 one at 98.83 % of the reference counts as even, one at 94.54 % as slow. Ours, between the two.
SLOW_PERCENT = 3.0
EVEN_PERCENT = 5.0
# A difference of the resolution is named with this chance.
POWER = 0.95
# Towers that do the same work on idle CPU devices read steadily up to 0.14 ms apart: the clock is read where
# tower 0 computes, and threads of other towers must be scheduled in between.
MARKS_OFFSET_S = 0.15e-3
# Under load it is more. So in steps of a few milliseconds 5 % is thread scheduling.
MARKS_RESOLUTION_S = 0.5e-3


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of a run: one for each device, in their order, and the load of the host beside them.

    `run`: on the run as a whole (all devices alike), None where nothing is known against which to compare.
    `cost`: of all slow devices together.
    """

    devices: tuple[Verdict, ...]
    run: Verdict | None = None
    host: HostSummary | None = None
    cost: Cost | None = None

    @property
    def slow(self) -> tuple[Verdict, ...]:
        """The verdicts on slow devices."""
        return tuple(verdict for verdict in self.devices if verdict.word == SLOW)


def judge(paces: Paces, *, mode: str | None = None) -> Judgement:
    """Return the verdicts of a run so far. `mode`: its `variable_update`."""
    on_cpu = bool(paces.devices) and all(is_cpu(device) for device in paces.devices)
    host = paces.host.summary(on_cpu=on_cpu)
    found = differences(paces)
    verdicts = {
        device.tower: _on_device(paces, device, [one for one in found if one.device == device], host)
        for device in paces.devices
    }
    slow = {
        (one.device.tower, one.part): one.peer
        for one in found
        if (own := verdicts[one.device.tower]).word == SLOW and own.part in (one.part, None)
    }

    def cost_of(peers: Mapping[tuple[int, str], int]) -> Cost | None:
        return cost(paces.kept.steps, peers, paces.allowance, alone=mode in ALONE) if peers else None

    return Judgement(
        devices=tuple(
            msgspec.structs.replace(
                verdict, cost=cost_of({key: peer for key, peer in slow.items() if key[0] == tower})
            )
            for tower, verdict in verdicts.items()
        ),
        host=host,
        cost=cost_of(slow),
    )


def _on_device(
    paces: Paces, device: Device, found: Sequence[Difference], host: HostSummary | None
) -> Verdict:
    if not found or not paces.steps:
        return _unknown(device, _why_not_compared(paces, device))
    if paces.gone(device.tower):
        return _unknown(device, words.gone(paces.last_seen[device.tower]))
    by_part = [_on_difference(paces, one) for one in found]
    slow = [verdict for verdict in by_part if verdict.word == SLOW]
    if slow and host is not None and host.busy is not None:
        worst = max(slow, key=_percent)
        return _unknown(device, host.busy, worst)
    for word in (SLOW, CANNOT_TELL):
        if of_word := [verdict for verdict in by_part if verdict.word == word]:
            return max(of_word, key=_percent)
    return max(by_part, key=lambda verdict: verdict.percent_under_high or 0.0)


def _on_difference(paces: Paces, found: Difference) -> Verdict:
    bounds = found.interval
    device = found.device
    fields = Verdict(
        word=CANNOT_TELL,
        says="",
        tower=device.tower,
        gpu=None if is_cpu(device) else device.gpu,
        against="peers",
        part=found.part,
        percent_under=found.middle,
        steps=len(found.values) * paces.blocks.size,
    )
    if bounds is None:
        needed = steps_needed(paces)
        few = len(found.values) < needed
        why = words.too_few(needed, len(found.values)) if few else words.too_correlated(len(found.values))
        return _unknown(device, why, fields)
    busy_s = paces.busy_s(device.tower)
    offset, floor = 100 * MARKS_OFFSET_S / busy_s, 100 * MARKS_RESOLUTION_S / busy_s
    low, high = bounds.low - offset, max(bounds.high + offset, floor, bounds.half_width)
    margin = bounds.half_width * (1 + NormalDist().inv_cdf(POWER) / -NormalDist().inv_cdf(found.chance))
    fields = msgspec.structs.replace(
        fields,
        percent_under_low=low,
        percent_under_high=high,
        resolution_percent=max(SLOW_PERCENT + margin + offset, floor),
        effective_steps=bounds.effective * paces.blocks.size,
    )
    if low > max(SLOW_PERCENT, floor) and min(found.halves) > SLOW_PERCENT:
        return msgspec.structs.replace(fields, word=SLOW, says=words.slow(device, fields))
    if high <= EVEN_PERCENT:
        return msgspec.structs.replace(fields, word=EVEN, says=words.even(device, fields))
    fields = msgspec.structs.replace(fields, more_steps=_more_steps(fields.steps, margin, offset, floor))
    short_ms = 1000 * busy_s if floor > EVEN_PERCENT else None
    return _unknown(device, words.resolves(fields, short_ms), fields)


def _more_steps(steps: int, margin: float, offset: float, floor: float) -> int | None:
    """Return how many more steps would resolve `EVEN_PERCENT`; None if none would, or the run does."""
    room = EVEN_PERCENT - SLOW_PERCENT - offset
    if room <= 0 or floor > EVEN_PERCENT or margin <= room:
        return None
    return math.ceil(steps * ((margin / room) ** 2 - 1))


def _unknown(device: Device, why: str, like: Verdict | None = None) -> Verdict:
    """Return that nothing can be told, with the measured figures of `like`."""
    found = like or Verdict(
        word=CANNOT_TELL, says="", tower=device.tower, gpu=None if is_cpu(device) else device.gpu
    )
    return msgspec.structs.replace(
        found, word=CANNOT_TELL, why=why, says=words.cannot_tell(device, found, why)
    )


def _why_not_compared(paces: Paces, device: Device) -> str:
    if len(paces.devices) < 2:
        return "one device has no peer"
    if not paces.steps:
        return f"too few steps ({steps_needed(paces)} needed, 0 counted)"
    if not any(device in group for group in paces.kinds):
        return "no peer of its kind"
    return "no time marks"


def _percent(verdict: Verdict) -> float:
    return verdict.percent_under or 0.0
