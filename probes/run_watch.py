"""Samples the GPUs of a run, through a child that may hang or crash, and the host."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gputopo.probes.host_load import HostReader
from gputopo.probes.nvml import GpuWatchChild
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.nvml.monitor import Closed
from gputopo.values.run.events import GpuSample, MachineSample, Noticed, Sample

_HOST_EVERY = 4  # samples
# Not measured; chosen because it gives several samples in the shortest windows that are judged, for half a
# percent of a core. NVML's power and utilization are means over up to a second.
FEW_GPUS, EVERY_S, EVERY_S_OF_MANY = 1, 0.25, 0.5


# Seconds until a driver that hung or crashed is asked again, in a new child, and how often. Not measured;
# chosen because a driver that is being reset answers within a minute.
AGAIN_S, ATTEMPTS = 20.0, 3
# Counters of a sample that count from the start of the watch.
_COUNTERS = ("pcie_replays", "nvlink_errors")


class RunWatch(Closed):
    """Samples the GPUs of a run (indices of the machine) and the host. A context manager.

    If NVML cannot be opened, a notice reports it, and only the host is sampled. The same happens if NVML
    hangs or crashes, until a new child can sample the GPUs. The first sample after that has the length of the
    gap. Create it in the main thread. Another thread may take the samples, one every `every_s` seconds. It
    must always be the same thread, because a child ends with the thread that started it.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        others: Sequence[int] = (),
        *,
        host: HostReader | None = None,
        open_gpus: Callable[[Sequence[int], Sequence[int]], GpuWatchChild] = GpuWatchChild,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others`: GPUs outside the run, which are asked only for their processes.

        `host`: by default, a reader of this machine with this process and its children as the run.
        """
        self._notices: list[str] = []
        self._open_gpus = partial(open_gpus, gpus, others)
        self._clock = clock
        self._gpus: GpuWatchChild | None = None
        self._again_s: float | None = None  # when to start a new child; None: never
        self._attempts = 0
        self._sampled_s = clock()
        self._counted = Counted()
        self._closed = False
        if gpus:
            try:
                self._gpus = self._open_gpus()
            except NotReadError as error:
                self._notices.append(f"The GPUs are not sampled: {error}")
        self._host = HostReader() if host is None else host
        self._number = 0
        self.every_s = EVERY_S if len(gpus) <= FEW_GPUS else EVERY_S_OF_MANY

    def look(self) -> tuple[Sample | Noticed, ...]:
        """Return new notices, then a sample. Never raises.

        Without GPUs, only every fourth call returns a sample, of the host.
        """
        self._number += 1
        self._host.note()
        load = self._host.read() if self._number % _HOST_EVERY == 0 else None
        gap_s = self._mended()
        of_gpus = self._sample_gpus()
        events: list[Sample | Noticed] = [Noticed(time_s=of_gpus.time_s, says=says) for says in self._notices]
        self._notices.clear()
        if of_gpus.gpus or load is not None:
            events.append(
                Sample(time_s=of_gpus.time_s, gpus=of_gpus.gpus, xids=of_gpus.xids, host=load, gap_s=gap_s)
            )
        return tuple(events)

    def close(self) -> None:
        """End the child."""
        self._closed = True
        if self._gpus is not None:
            self._gpus.close()

    def _sample_gpus(self) -> MachineSample:
        watch = self._gpus
        if watch is None:
            return MachineSample(time_s=time.time(), gpus=())
        sample = watch.observe()
        if watch.stop is not None:
            watch.close()
            self._gpus = None
            self._stopped(watch.stop.text)
        else:
            self._sampled_s = self._clock()
        return replace(sample, gpus=tuple(map(self._counted.add, sample.gpus)))

    def _stopped(self, why: str) -> None:
        """Note that the GPUs are no longer sampled, and when to try again."""
        left = ATTEMPTS - self._attempts
        self._again_s = self._clock() + AGAIN_S if left else None
        again = f"; tried again in {AGAIN_S:g} s" if left else ""
        self._notices.append(f"The GPUs are no longer sampled: {why}{again}")

    def _mended(self) -> float | None:
        """Start a new child if it is time to. Return the length of the gap if the child samples."""
        if self._again_s is None or self._clock() < self._again_s or self._closed:
            return None
        self._attempts += 1
        try:
            watch = self._open_gpus()
        except NotReadError as error:
            self._stopped(str(error))
            return None
        self._again_s, self._gpus = None, watch
        if self._closed:  # by another thread meanwhile
            watch.close()
        self._counted.begin_again()
        gap_s = round(self._clock() - self._sampled_s, 3)
        self._notices.append(f"The GPUs are sampled again after a gap of {gap_s:.0f} s")
        return gap_s


class Counted:
    """Counters that continue from the last child's totals. What was counted in a gap is unknown."""

    def __init__(self) -> None:
        self._last: dict[int, GpuSample] = {}
        self._before: dict[int, GpuSample] = {}

    def begin_again(self) -> None:
        """Note that the counters start again at 0."""
        self._before = dict(self._last)

    def add(self, sample: GpuSample) -> GpuSample:
        """Return a sample with the totals of the whole run."""
        before = self._before.get(sample.gpu)
        if before is not None:
            more: dict[str, Any] = {
                name: value + (getattr(before, name) or 0)
                for name in _COUNTERS
                if (value := getattr(sample, name)) is not None
            }
            if sample.throttled_s is not None:
                known = before.throttled_s or {}
                more["throttled_s"] = {
                    policy: round(sample.throttled_s.get(policy, 0.0) + known.get(policy, 0.0), 3)
                    for policy in {**known, **sample.throttled_s}
                }
            sample = replace(sample, **more)
        if not sample.lost:
            self._last[sample.gpu] = sample.with_earlier(self._last.get(sample.gpu))
        return sample
