"""NVML questions about the NVSwitch fabric of a GPU."""

import ctypes
from collections.abc import Callable
from typing import Any

from gputopo.probes.nvml.calling import Handle, NotReadError, NvmlDoor, first, word
from gputopo.probes.nvml.words import FABRIC_HEALTH, FABRIC_STATES, FABRIC_SUMMARIES

# nvmlGpuFabricState_t
_NONE, _COMPLETED = 0, 3


class FabricQuestions(NvmlDoor):
    """The fabric of a GPU."""

    def fabric_info(self, gpu: Handle) -> Any:
        """Return NVML's struct of it, the newest that the driver fills.

        NOT_SUPPORTED for a GPU without NVSwitches. The struct is passed by reference: pynvml hands a bare
        one on by value, which ends the process.
        """
        info = first(
            lambda: self._filled("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t", gpu),
            lambda: self._filled("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t", gpu),
            lambda: self._filled("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t", gpu),
        )
        if int(info.state) == _NONE:
            raise NotReadError("NOT_SUPPORTED")
        return info

    def fabric_state(self, info: Any) -> str:
        """Return how far the GPU has joined: not started, in progress, completed."""
        return word(FABRIC_STATES, int(info.state))

    def fabric_status(self, info: Any) -> str:
        """Return how joining ended: "success", or NVML's error in words, "insufficient resources"."""
        if int(info.state) != _COMPLETED:
            raise NotReadError("NOT_COMPLETED")
        code = int(info.status)
        return self._reason(code).replace("_", " ").lower() if code else "success"

    def fabric_health(self, info: Any) -> dict[str, str]:
        """Return the reported health in nvidia-smi's words, without what the driver leaves out."""
        mask = int(getattr(info, "healthMask", 0))
        reported = {"summary": FABRIC_SUMMARIES.get(int(getattr(info, "healthSummary", 0)))}
        for name, (shift, width, words) in FABRIC_HEALTH.items():
            code = mask >> shift & width
            reported[name] = words.get(code, f"code {code}") if code else None
        health = {name: text for name, text in reported.items() if text is not None}
        if not health:
            raise NotReadError("NOT_SUPPORTED")
        return health

    def _filled(self, function: str, struct: str, gpu: Handle) -> Any:
        make: Callable[[], Any] | None = getattr(self._binding, struct, None)
        if make is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        info = make()
        self.ask(function, gpu, ctypes.byref(info))
        return info
