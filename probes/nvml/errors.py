"""NVML questions about memory errors: ECC, remapped rows, retired pages, recovery action."""

import ctypes

from gputopo.probes.nvml.calling import Handle, NotReadError, NvmlDoor
from gputopo.probes.nvml.words import MEMORY_LOCATIONS, RECOVERY_ACTIONS, SRAM_COUNTS

_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, since driver 570


class ErrorQuestions(NvmlDoor):
    """Memory errors of a GPU."""

    def ecc_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether ECC is on now and after the next reboot."""
        now, pending = self.ask("nvmlDeviceGetEccMode", gpu)
        return bool(now), bool(pending)

    def ecc_errors(self, gpu: Handle, what: str, since: str) -> int:
        """Return `corrected` or `uncorrected` errors, `volatile` (since boot) or `aggregate` (in all)."""
        kind = {"corrected": 0, "uncorrected": 1}[what]
        return int(self.ask("nvmlDeviceGetTotalEccErrors", gpu, kind, {"volatile": 0, "aggregate": 1}[since]))

    def remapped_rows(self, gpu: Handle) -> tuple[int, int, bool, bool]:
        """Return rows remapped for correctable and other errors.

        Whether one is pending, whether one failed.
        """
        correctable, uncorrectable, pending, failure = self.ask("nvmlDeviceGetRemappedRows", gpu)
        return correctable, uncorrectable, bool(pending), bool(failure)

    def spare_rows(self, gpu: Handle) -> dict[str, int]:
        """Return the number of memory banks by the spare rows left, by the names of SpareRows."""
        found = self.ask("nvmlDeviceGetRowRemapperHistogram", gpu)
        return {name: int(getattr(found, name)) for name in ("max", "high", "partial", "low", "none")}

    def repairs_pending(self, gpu: Handle) -> tuple[bool, bool]:
        """Return whether the repair of a memory channel and of a TPC is pending (Blackwell and later)."""
        channel, tpc = self.ask("nvmlDeviceGetRepairStatus", gpu)
        return bool(channel), bool(tpc)

    def unrepairable_memory(self, gpu: Handle) -> bool:
        """Return whether memory could not be repaired (driver 590 and later)."""
        return bool(self.ask("nvmlDeviceGetUnrepairableMemoryFlag_v1", gpu))

    def recovery_action(self, gpu: Handle) -> str:
        """Return what must be done before the GPU can be used, "none" if nothing."""
        number = self.field(gpu, _RECOVERY_ACTION)
        return RECOVERY_ACTIONS.get(number, f"action {number}")

    def retired_pages(self, gpu: Handle, cause: str) -> int:
        """Return the number of retired pages by cause, `single_bit` or `double_bit`."""
        return len(self.ask("nvmlDeviceGetRetiredPages", gpu, {"single_bit": 0, "double_bit": 1}[cause]))

    def retired_pages_pending(self, gpu: Handle) -> bool:
        """Return whether a page waits for a reboot to be retired."""
        return bool(self.ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu))

    def ecc_errors_at(self, gpu: Handle, location: str, what: str, since: str) -> int:
        """Return the errors of one place in the chip or its memory. A key of MEMORY_LOCATIONS."""
        kind = {"corrected": 0, "uncorrected": 1}[what]
        counter = {"volatile": 0, "aggregate": 1}[since]
        return int(
            self.ask("nvmlDeviceGetMemoryErrorCounter", gpu, kind, counter, MEMORY_LOCATIONS[location])
        )

    def sram_errors(self, gpu: Handle) -> dict[str, int]:
        """Return the errors of the chip's own memories, by the names in SRAM_COUNTS (driver 535 and later).

        The struct is passed by reference: pynvml hands a bare one on by value, which ends the process.
        """
        make = getattr(self._binding, "c_nvmlEccSramErrorStatus_v1_t", None)
        if make is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        status = make()
        self.ask("nvmlDeviceGetSramEccErrorStatus", gpu, ctypes.byref(status))
        return {name: int(getattr(status, field)) for name, field in SRAM_COUNTS.items()}
