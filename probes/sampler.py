"""Samples clocks, power and heat of some GPUs while a run goes on."""

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from gputopo.probes.nvml.door import Handle, NotReadError, open_nvml
from gputopo.values.events import GpuSample

T = TypeVar("T")


class Monitor:
    """Keeps NVML and the handles of `gpus` (indices of the machine) open, and samples them on request.

    Raises NotReadError with NVML's reason if NVML cannot be opened. Close it, or use it in a `with` block.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._open = contextlib.ExitStack()
        self._nvml = self._open.enter_context(open_nvml())
        self._handles = {gpu: self._ask(self._nvml.handle, gpu) for gpu in gpus}

    def sample(self) -> tuple[GpuSample, ...]:
        """Return one sample a GPU, in the order they were given. Never raises: what is refused is None."""
        return tuple(self._sample(gpu, handle) for gpu, handle in self._handles.items())

    def close(self) -> None:
        """Close NVML. Samples after this are empty."""
        self._handles = dict.fromkeys(self._handles)
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sample(self, gpu: int, handle: Handle | None) -> GpuSample:
        if handle is None:
            return GpuSample(gpu=gpu)
        nvml, ask = self._nvml, self._ask
        load = ask(nvml.utilization_percent, handle)
        return GpuSample(
            gpu=gpu,
            graphics_mhz=ask(nvml.clock_mhz, handle, "graphics"),
            memory_mhz=ask(nvml.clock_mhz, handle, "memory"),
            power_w=ask(nvml.power_w, handle, "draw"),
            temperature_c=ask(nvml.temperature_c, handle),
            throttle_mask=ask(nvml.throttle_mask, handle),
            gpu_utilization_percent=None if load is None else load[0],
            pcie_gen=ask(nvml.pcie, handle, "gen_now"),
            pcie_width=ask(nvml.pcie, handle, "width_now"),
            pstate=ask(nvml.pstate, handle),
        )

    @staticmethod
    def _ask(ask: Callable[..., T], *args: object) -> T | None:
        try:
            return ask(*args)
        except NotReadError:
            return None
