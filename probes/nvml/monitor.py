"""Samples GPU clocks, power and temperatures in this process."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

from gputopo.probes.nvml.door import Handle, NotReadError, NvmlLog, open_nvml
from gputopo.probes.nvml.questions import fact
from gputopo.values.run.events import SAMPLED_FACTS, GpuSample

READ = (
    "gpu_utilization_percent",
    "graphics_mhz",
    "memory_mhz",
    "power_w",
    "temperature_c",
    "throttle_mask",
    "pcie_gen",
    "pcie_width",
    "pstate",
)


class Closed:
    """An object that is closed at the end of a `with` block."""

    def close(self) -> None:
        """Close the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Monitor(Closed):
    """Keeps NVML and the handles of `gpus` (indices of the machine) open, and samples them on request.

    Raises NotReadError with NVML's reason if NVML cannot be opened. Close the monitor, or use it in a `with`
    block.
    """

    def __init__(self, gpus: Sequence[int], log: NvmlLog | None = None) -> None:
        self._open = contextlib.ExitStack()
        self._nvml = self._open.enter_context(open_nvml(log))
        self._refused: dict[int, str] = {}  # why a GPU has no handle, by GPU
        self._handles = {gpu: self._handle(gpu) for gpu in gpus}

    def sample(self) -> tuple[GpuSample, ...]:
        """Return a sample for each GPU, in the given order. Never raises: a field without answer is None."""
        return tuple(self._samples())

    def _samples(self) -> Iterator[GpuSample]:
        for gpu, handle in self._handles.items():
            self._nvml.about = str(gpu)
            yield self._sample(gpu, handle)

    def close(self) -> None:
        """Close NVML. Samples after this are empty."""
        self._handles = dict.fromkeys(self._handles)
        self._open.close()

    def _handle(self, gpu: int) -> Handle | None:
        self._nvml.about = str(gpu)
        try:
            return self._nvml.handle(gpu)
        except NotReadError as error:
            self._refused[gpu] = error.reason
            return None

    def _sample(self, gpu: int, handle: Handle | None) -> GpuSample:
        fields: dict[str, Any] = {}
        if handle is not None:
            for field in READ:
                with contextlib.suppress(NotReadError):
                    fields[field] = fact(self._nvml, handle, SAMPLED_FACTS[field].path)
        return GpuSample(gpu=gpu, **fields)
