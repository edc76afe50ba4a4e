"""Samples of a run: its GPUs, through a child that may hang or crash, and the host beside them."""

import time
from collections.abc import Callable, Sequence

from gputopo.probes.gpu_watch import GpuWatchChild
from gputopo.probes.host_load import HostReader
from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.sampler import Closed
from gputopo.values.run.events import MachineSample, Noticed, Sample

_HOST_EVERY = 4  # samples
# Ours: several samples in the shortest windows that are judged, within half a percent of a core. NVML's own
# power and utilization are means of up to a second.
FEW_GPUS, EVERY_S, EVERY_S_OF_MANY = 1, 0.25, 0.5


class RunWatch(Closed):
    """Samples the GPUs of a run (indices of the machine) and the host; a context manager.

    Where NVML cannot be opened, hangs or crashes, a notice reports it once, and the host is sampled alone.
    Make it in the main thread; another may take the samples, one every `every_s` seconds.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        others: Sequence[int] = (),
        *,
        host: HostReader | None = None,
        open_gpus: Callable[[Sequence[int], Sequence[int]], GpuWatchChild] = GpuWatchChild,
    ) -> None:
        """`others`: GPUs beside those of the run, of which only the processes are asked.

        `host`: by default, of this machine, with this process and its children as the run.
        """
        self._notices: list[str] = []
        self._gpus: GpuWatchChild | None = None
        if gpus:
            try:
                self._gpus = open_gpus(gpus, others)
            except NotReadError as error:
                self._notices.append(f"The GPUs are not sampled: {error}")
        self._host = HostReader() if host is None else host
        self._number = 0
        self.every_s = EVERY_S if len(gpus) <= FEW_GPUS else EVERY_S_OF_MANY

    def look(self) -> tuple[Sample | Noticed, ...]:
        """Return a sample, after the notices that are new. Never raises.

        Without GPUs there is one of four: that of the host.
        """
        self._number += 1
        self._host.note()
        load = self._host.read() if self._number % _HOST_EVERY == 0 else None
        of_gpus = self._of_gpus()
        found: list[Sample | Noticed] = [Noticed(time_s=of_gpus.time_s, says=says) for says in self._notices]
        self._notices.clear()
        if of_gpus.gpus or load is not None:
            found.append(Sample(time_s=of_gpus.time_s, gpus=of_gpus.gpus, xids=of_gpus.xids, host=load))
        return tuple(found)

    def close(self) -> None:
        """End the child."""
        if self._gpus is not None:
            self._gpus.close()

    def _of_gpus(self) -> MachineSample:
        watch = self._gpus
        if watch is None:
            return MachineSample(time_s=time.time(), gpus=())
        sample = watch.observe()
        if watch.stop is not None:
            self._notices.append(f"The GPUs are no longer sampled: {watch.stop.text}")
            watch.close()
            self._gpus = None
        return sample
