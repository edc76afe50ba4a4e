"""What came out of one window: bytes, times and rates of its copies."""

from collections.abc import Mapping, Sequence

import msgspec

from gputopo.copies.copies import Copy, Job
from gputopo.probes.cuda.calling import CudaError
from gputopo.probes.cuda.chunks import common_window, rate_alone, rate_within
from gputopo.probes.cuda.transfer import Transfer
from gputopo.values.bandwidth import Failure

_GB = 1e9


class CopyTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one copy did in one window. `failure` set: nothing else counts.

    `bytes` and `seconds`: of the whole copy, of one message where it went several times. `gb_per_s` (10^9
    bytes; 0 for a latency): over the time that all copies ran together; what is read and written in one
    memory counts twice; a staged copy of many chunks is counted between the arrivals of its first and its
    last one. `microseconds`: of one access or one small copy, for a latency only. `numa_node`: where most of
    the host memory lies, None where unknown; `numa_wanted`: the node it was asked for, where not all lies
    there.
    """

    bytes: int = 0
    seconds: float = 0.0
    gb_per_s: float = 0.0
    microseconds: float | None = None
    numa_node: int | None = None
    numa_wanted: int | None = None
    failure: Failure | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat of a job: its copies in the job's order.

    `span`: from when to when all of them ran, by time.perf_counter; None where they did not in one stretch.
    """

    copies: tuple[CopyTime, ...]
    span: tuple[float, float] | None = None


def times(
    job: Job, ready: Mapping[int, Transfer], ends: Mapping[int, Sequence[float]]
) -> dict[int, CopyTime]:
    """Return what each copy that went well did; `ends` as `Transfer.ends`, by the copies' numbers."""
    window = common_window(list(ends.values())) if ends else 0.0
    found: dict[int, CopyTime] = {}
    for number, times in ends.items():
        one = ready[number]
        whole, seconds = sum(one.sizes), times[-1]
        if len(ends) > 1:
            rate = rate_within(one.sizes, times, window, staged=one.staged)
        else:
            rate = rate_alone(one.sizes, times, staged=one.staged)
        latency = job.kind == "latency"
        found[number] = CopyTime(
            bytes=one.chunks[0].size if one.repeats > 1 else whole,
            seconds=seconds / one.repeats,
            gb_per_s=0.0 if latency else rate / _GB * (2 if one.copy.kind == "d2d_local" else 1),
            microseconds=seconds / one.repeats * 1e6 if latency else None,
        )
    return found


def failure(job: Job, copy: Copy, error: CudaError) -> Failure:
    """Return the failure with the copy it belongs to."""
    between = job.kind in ("bidirectional", "latency")
    return Failure(
        kind=job.kind,
        source=copy.source,
        destination=copy.destination,
        reason=error.reason,
        says=error.says,
        method=copy.method,
        path={"p2p_direct": "direct", "p2p_staged": "staged"}.get(copy.kind) if between else None,  # type: ignore[arg-type]
        pinned=copy.pinned,
        group=job.group,
    )
