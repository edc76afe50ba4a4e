"""Whether a program runs on the GPUs of its plan, from the processes that NVML lists. Pure."""

from collections.abc import Iterable

from gputopo.findings.usage import CONTEXT_MIB
from gputopo.values.history import BUSY_PERCENT
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.events import GpuSample, Sample
from gputopo.values.run.verdict import AS_PLANNED, NOT_CHECKED, NOT_SEEN, OUTSIDE, Placed

# Importing a framework, opening the data and building a model take less before the first use of a GPU. Ours.
NOT_SEEN_S = 60.0


class PlacementRecord:
    """The GPUs that processes of the run were seen on. `planned`: those that they should be on."""

    def __init__(self, planned: Iterable[int]) -> None:
        self._planned = frozenset(planned)
        self._seen: set[int] = set()
        self._asked = False  # NVML listed the processes of a GPU of the plan, be it none
        self._hidden = False  # and it does not list all, or not by the numbers that are known here
        self._first_mib: dict[int, int] = {}
        self._used: set[int] = set()  # GPUs of the plan that something uses
        self._first_s: float | None = None
        self._last_s = 0.0
        self._reported: set[str] = set()

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self._first_s = sample.time_s if self._first_s is None else self._first_s
        self._last_s = sample.time_s
        for gpu in sample.gpus:
            if gpu.gpu in self._planned:
                self._add_use(gpu)
            if gpu.processes is None:
                continue
            if gpu.other_processes is None:
                self._hidden = True
                continue
            self._asked = self._asked or gpu.gpu in self._planned
            if gpu.processes > gpu.other_processes:
                self._seen.add(gpu.gpu)

    def _add_use(self, gpu: GpuSample) -> None:
        if gpu.memory_used_mib is not None:
            first = self._first_mib.setdefault(gpu.gpu, gpu.memory_used_mib)
            if gpu.memory_used_mib - first >= CONTEXT_MIB.value:
                self._used.add(gpu.gpu)
        if (gpu.gpu_utilization_percent or 0) >= BUSY_PERCENT:
            self._used.add(gpu.gpu)

    def placed(self) -> Placed:
        """Return what is known so far."""
        gpus = tuple(sorted(self._seen))
        outside = sorted(self._seen - self._planned)
        planned = _named(sorted(self._planned))
        if outside:
            says = f"the program runs on {_named(outside)}; planned: {planned}"
            return Placed(word=OUTSIDE, says=says, gpus=gpus)
        if self._seen:
            return Placed(word=AS_PLANNED, says=f"the program ran on {_named(gpus)}, as planned", gpus=gpus)
        if not self._planned:
            return Placed(word=NOT_CHECKED, says="the plan has no GPU")
        if self._hidden or not self._asked or self._used:
            says = "NVML does not list the processes of this program (in a container it may not)"
            return Placed(word=NOT_CHECKED, says=says)
        seconds = self._last_s - (self._first_s or 0.0)
        says = f"the program was seen on no GPU in {seconds:.0f} s; planned: {planned}"
        return Placed(word=NOT_SEEN, says=says)

    def news(self) -> str | None:
        """Return what a user wants to read at once; each kind once."""
        found = self.placed()
        late = self._first_s is not None and self._last_s - self._first_s >= NOT_SEEN_S
        wrong = found.word == OUTSIDE or (found.word == NOT_SEEN and late)
        if not wrong or found.word in self._reported:
            return None
        self._reported.add(found.word)
        return found.says


def _named(gpus: Iterable[int]) -> str:
    known = list(gpus)
    return f"GPU{'' if len(known) == 1 else 's'} {index_ranges(known)}"
