"""What a measuring session asks of an engine that copies. `gputopo.probes.cuda.engine.Engine` is one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gputopo.copies.copies import Job
from gputopo.values.bandwidth import Failure


class CopyTime(Protocol):
    """What one copy of a window came to.

    Of copies that run at once, the rate is that of the time in which all of them copied.
    """

    @property
    def bytes(self) -> int:
        """The bytes that it copied."""
        ...

    @property
    def gb_per_s(self) -> float:
        """Its bandwidth as `gputopo.bandwidth` counts it; 0 for a latency."""
        ...

    @property
    def microseconds(self) -> float | None:
        """One copy of a latency."""
        ...

    @property
    def numa_node(self) -> int | None:
        """The node where most of the host memory lies; None where unknown."""
        ...

    @property
    def numa_wanted(self) -> int | None:
        """The node that the host memory was asked for, where not all of it lies there."""
        ...

    @property
    def failure(self) -> Failure | None:
        """What went wrong; the numbers are void then."""
        ...


class Window(Protocol):
    """One timed window: the copies in the order of the job's."""

    @property
    def copies(self) -> Sequence[CopyTime]:
        """What each copy came to."""
        ...

    @property
    def span(self) -> tuple[float, float] | None:
        """From when to when all copies ran, by time.perf_counter; None where they did not in one stretch."""
        ...


class Engine(Protocol):
    """Runs single windows of copies. GPUs are named by their index in the machine.

    Nothing raises for what the hardware does: in `measure` that is a Failure of its copy.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Return what limits the numbers."""
        ...

    @property
    def unreturned(self) -> Sequence[Failure]:
        """Return the copies that were in progress at an interruption and did not come back."""
        ...

    def measure(
        self, job: Job, sizes: Sequence[int], while_running: Callable[[], None] | None = None
    ) -> Window:
        """Run one window, verified. `while_running` is called while it runs.

        `sizes`: bytes of each copy, which may be fewer where the job does not name them.
        """
        ...

    def peer_access(self, a: int, b: int) -> bool:
        """Return whether GPU `a` may reach the memory of GPU `b`."""
        ...

    def free_bytes(self, gpu: int) -> int:
        """Return the free device memory, 0 where the GPU does not answer."""
        ...

    def l2_bytes(self, gpu: int) -> int | None:
        """Return the size of a GPU's L2 cache, None where CUDA does not report it."""
        ...

    def supports(self, gpu: int, method: str) -> str | None:
        """Return the reason why a method does not work on a GPU, None where it does.

        Without `copy_engine` it is of no use at all.
        """
        ...
