"""What came out of one window: bytes, times and rates of its ways."""

from collections.abc import Mapping, Sequence

import msgspec

from gputopo.copies.copies import Job, Way
from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.chunks import common_window, rate_alone, rate_within
from gputopo.probes.cuda.transfer import Transfer
from gputopo.values.bandwidth import Failure

_GB = 1e9


class WayTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one way did in one window. `failure` set: nothing else counts.

    `bytes` and `seconds`: of the whole copy, of one message where it went several times. `gb_per_s` (10^9
    bytes; 0 for a latency): over the time that all ways ran together; what is read and written in one memory
    counts twice; a staged copy of many pieces is counted between the arrivals of its first and its last one.
    `microseconds`: of one access or one small copy, for a latency only.
    """

    bytes: int = 0
    seconds: float = 0.0
    gb_per_s: float = 0.0
    microseconds: float | None = None
    failure: Failure | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat of a job: its ways in the job's order."""

    ways: tuple[WayTime, ...]


def times(job: Job, ready: Mapping[int, Transfer], ends: Mapping[int, Sequence[float]]) -> dict[int, WayTime]:
    """Give what each way that went well did; `ends` as `Transfer.ends`, by the ways' numbers."""
    window = common_window(list(ends.values())) if ends else 0.0
    found: dict[int, WayTime] = {}
    for number, times in ends.items():
        one = ready[number]
        whole, seconds = sum(one.sizes), times[-1]
        if len(ends) > 1:
            rate = rate_within(one.sizes, times, window, staged=one.staged)
        else:
            rate = rate_alone(one.sizes, times, staged=one.staged)
        latency = job.kind == "latency"
        found[number] = WayTime(
            bytes=one.pieces[0].size if one.repeats > 1 else whole,
            seconds=seconds / one.repeats,
            gb_per_s=0.0 if latency else rate / _GB * (2 if one.way.kind == "d2d_local" else 1),
            microseconds=seconds / one.repeats * 1e6 if latency else None,
        )
    return found


def failure(job: Job, way: Way, error: CudaError) -> Failure:
    """Say of which way a failure is."""
    between = job.kind in ("bidirectional", "latency")
    return Failure(
        kind=job.kind,
        source=way.source,
        destination=way.destination,
        reason=error.reason,
        says=error.says,
        method=way.method,
        path={"p2p_direct": "direct", "p2p_staged": "staged"}.get(way.kind) if between else None,  # type: ignore[arg-type]
        pinned=way.pinned,
        group=job.group,
    )
