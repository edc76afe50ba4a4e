"""The one door to NVML, through pynvml. A method gives one answer or raises NotReadError with NVML's reason.

Nothing here changes a setting: only `Get` functions are called. What drivers and pynvml do wrong is worked
round here and nowhere else, each with its symptom.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NewType, TypeVar

from gputopo.machine import Hop
from gputopo.probes.nvml_words import (
    CLOCKS,
    COMPUTE_MODES,
    NVLINK_ERRORS,
    NVLINK_GENERATIONS,
    NVLINK_REMOTES,
    P2P_STATUS,
    PROCESS_FUNCTIONS,
    VIOLATIONS,
)
from gputopo.probes.pci import normal_address

T = TypeVar("T")
Handle = NewType("Handle", object)

LOST = "GPU_IS_LOST"

_FIELD_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: sizeof(nvmlMemory_v2_t) | 2 << 24
_ALL_BITS = 0xFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE as an unsigned int
_MIB = 1024 * 1024


class NotReadError(Exception):
    """A fact that NVML did not give. `reason` is NVML's name for why: NOT_SUPPORTED, GPU_IS_LOST, ..."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Nvml:
    """The questions gputopo asks NVML. Every method raises NotReadError where there is no answer.

    Made by `open_nvml`; handles are good until it closes.
    """

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._errors = {
            value: name.removeprefix("NVML_ERROR_")
            for name, value in vars(binding).items()
            if name.startswith("NVML_ERROR_")
        }

    def ask(self, function: str, *args: object) -> Any:
        """Call one pynvml function. Raises NotReadError for all that NVML and pynvml raise.

        NVMLLibraryMismatchError is no NVMLError: the unversioned process calls raise it on old drivers.
        A broken card gives names that are no UTF-8. A pynvml older than the function lacks it.
        """
        binding = self._binding
        call = getattr(binding, function, None)
        if call is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        try:
            return call(*args)
        except binding.NVMLError as error:
            raise NotReadError(self._errors.get(error.value, f"ERROR_{error.value}")) from error
        except binding.NVMLLibraryMismatchError as error:
            raise NotReadError("FUNCTION_NOT_FOUND") from error
        except UnicodeDecodeError as error:
            raise NotReadError("UNREADABLE_TEXT") from error

    # The library and the driver

    def driver_version(self) -> str:
        """Give the driver's version, "550.163.01". `nvidia-smi --query-gpu=driver_version`."""
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def nvml_version(self) -> str:
        """Give the version of libnvidia-ml, "12.550.163.01"."""
        return str(self.ask("nvmlSystemGetNVMLVersion"))

    def cuda_version(self) -> str:
        """Give the newest CUDA version that the driver runs, "12.4"."""
        number = _first(
            lambda: self.ask("nvmlSystemGetCudaDriverVersion_v2"),
            lambda: self.ask("nvmlSystemGetCudaDriverVersion"),
        )
        return f"{number // 1000}.{number % 1000 // 10}"

    def device_count(self) -> int:
        """Give the number of GPUs, the lost ones included."""
        return int(self.ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        """Give the handle of the GPU at an index in PCI order."""
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    # What it is and where

    def name(self, gpu: Handle) -> str:
        """Give the product name."""
        return str(self.ask("nvmlDeviceGetName", gpu))

    def uuid(self, gpu: Handle) -> str:
        """Give the UUID, "GPU-..."."""
        return str(self.ask("nvmlDeviceGetUUID", gpu))

    def pci_address(self, gpu: Handle) -> str:
        """Give the PCI address as the kernel writes it, "0000:05:00.0"; NVML writes "00000000:05:00.0"."""
        return _address(self.ask("nvmlDeviceGetPciInfo", gpu))

    def numa_node(self, gpu: Handle) -> int:
        """Give the memory node next to the GPU: the one bit of its memory affinity.

        nvmlDeviceGetNumaNodeId is not asked: it names the GPU's own memory where that is a node (Grace,
        POWER9) and is refused everywhere else.
        """
        nodes = _bits(self.ask("nvmlDeviceGetMemoryAffinity", gpu, 16, 0))  # scope 0: node; 16 * 64 nodes
        if len(nodes) != 1:
            raise NotReadError("SEVERAL_NODES" if nodes else "NO_NODE")
        return nodes[0]

    def cpu_affinity(self, gpu: Handle) -> tuple[int, ...]:
        """Give the CPUs next to the GPU. Room for 1024 of them first, then for 8192, the kernel's limit."""
        cpus = _first(
            lambda: _bits(self.ask("nvmlDeviceGetCpuAffinity", gpu, 16)),
            lambda: _bits(self.ask("nvmlDeviceGetCpuAffinity", gpu, 128)),
        )
        if not cpus:
            raise NotReadError("NO_CPUS")
        return cpus

    # Clocks and what holds them down

    def clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Give a clock at this moment. `clock` is a key of CLOCKS."""
        return int(self.ask("nvmlDeviceGetClockInfo", gpu, CLOCKS[clock]))

    def max_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Give the highest a clock may go."""
        return int(self.ask("nvmlDeviceGetMaxClockInfo", gpu, CLOCKS[clock]))

    def application_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Give the set application clock; the second name is the way where the first was removed."""
        return _first(
            lambda: int(self.ask("nvmlDeviceGetApplicationsClock", gpu, CLOCKS[clock])),
            lambda: int(self.ask("nvmlDeviceGetClock", gpu, CLOCKS[clock], 1)),  # APP_CLOCK_TARGET
        )

    def boost_clock_mhz(self, gpu: Handle, clock: str) -> int:
        """Give the highest boost clock that a user may set."""
        return int(self.ask("nvmlDeviceGetMaxCustomerBoostClock", gpu, CLOCKS[clock]))

    def pstate(self, gpu: Handle) -> str:
        """Give the performance state, "P0" (fastest) to "P15"."""
        number = int(self.ask("nvmlDeviceGetPerformanceState", gpu))
        if number > 15:  # NVML_PSTATE_UNKNOWN is 32
            raise NotReadError("UNKNOWN")
        return f"P{number}"

    def throttle_mask(self, gpu: Handle) -> int:
        """Give the clock event reasons as a mask, by their new name or the one before driver 535."""
        return _first(
            lambda: int(self.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)),
            lambda: int(self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)),
        )

    def violation_ns(self, gpu: Handle, policy: str) -> int:
        """Give how long a policy has held the clocks down since the driver loaded. A key of VIOLATIONS."""
        return int(self.ask("nvmlDeviceGetViolationStatus", gpu, VIOLATIONS[policy]).violationTime)

    # Power, heat, memory, load

    def power_w(self, gpu: Handle, what: str) -> float:
        """Give watts: `what` is draw, limit, default_limit or enforced_limit."""
        function = {
            "draw": "nvmlDeviceGetPowerUsage",
            "limit": "nvmlDeviceGetPowerManagementLimit",
            "default_limit": "nvmlDeviceGetPowerManagementDefaultLimit",
            "enforced_limit": "nvmlDeviceGetEnforcedPowerLimit",
        }[what]
        return int(self.ask(function, gpu)) / 1000

    def power_range_w(self, gpu: Handle) -> tuple[float, float]:
        """Give the lowest and the highest power limit that may be set, in watts."""
        low, high = self.ask("nvmlDeviceGetPowerManagementLimitConstraints", gpu)
        return low / 1000, high / 1000

    def temperature_c(self, gpu: Handle) -> int:
        """Give the temperature of the chip, by the versioned call or the one that it replaced."""
        return _first(
            lambda: int(self.ask("nvmlDeviceGetTemperatureV", gpu, 0)),
            lambda: int(self.ask("nvmlDeviceGetTemperature", gpu, 0)),
        )

    def memory_temperature_c(self, gpu: Handle) -> int:
        """Give the temperature of the memory. It is a field value, which carries an error of its own."""
        (field,) = self.ask("nvmlDeviceGetFieldValues", gpu, [_FIELD_MEMORY_TEMPERATURE])
        if field.nvmlReturn:
            raise NotReadError(self._errors.get(field.nvmlReturn, f"ERROR_{field.nvmlReturn}"))
        return int(field.value.uiVal)

    def temperature_threshold_c(self, gpu: Handle, what: str) -> int:
        """Give the temperature at which the card slows down or shuts down: `slowdown` or `shutdown`."""
        return int(self.ask("nvmlDeviceGetTemperatureThreshold", gpu, {"shutdown": 0, "slowdown": 1}[what]))

    def temperature_margin_c(self, gpu: Handle) -> int:
        """Give the degrees left until the card slows down (newer cards)."""
        return int(self.ask("nvmlDeviceGetMarginTemperature", gpu))

    def memory_mib(self, gpu: Handle) -> dict[str, int]:
        """Give total, used and free device memory; version 2 keeps the reserved part out of `used`."""
        told = _first(
            lambda: self.ask("nvmlDeviceGetMemoryInfo", gpu, _MEMORY_V2),
            lambda: self.ask("nvmlDeviceGetMemoryInfo", gpu),
        )
        return {"total": told.total // _MIB, "used": told.used // _MIB, "free": told.free // _MIB}

    def utilization_percent(self, gpu: Handle) -> tuple[int, int]:
        """Give the share of time in which kernels ran, and in which memory was read or written."""
        told = self.ask("nvmlDeviceGetUtilizationRates", gpu)
        return int(told.gpu), int(told.memory)

    def processes(self, gpu: Handle, kind: str) -> tuple[tuple[int, int | None], ...]:
        """Give pid and memory in MiB (None where it is not told) of each process. A key of PROCESS_KINDS."""
        function = PROCESS_FUNCTIONS[kind]
        found = _first(lambda: self.ask(f"{function}_v3", gpu), lambda: self.ask(f"{function}_v2", gpu))
        return tuple(
            (int(one.pid), None if one.usedGpuMemory is None else one.usedGpuMemory // _MIB) for one in found
        )

    def process_name(self, pid: int) -> str:
        """Give a process's program, without folders and arguments: those tell about the person."""
        words = str(self.ask("nvmlSystemGetProcessName", pid)).split()
        if not words:
            raise NotReadError("NO_NAME")
        return words[0].rpartition("/")[2]

    # The PCIe link, NVLinks and the way to other GPUs

    def pcie(self, gpu: Handle, what: str) -> int:
        """Give gen_now, gen_max, gen_max_device, width_now or width_max. In some VMs the driver answers 0."""
        function = {
            "gen_now": "nvmlDeviceGetCurrPcieLinkGeneration",
            "gen_max": "nvmlDeviceGetMaxPcieLinkGeneration",
            "gen_max_device": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            "width_now": "nvmlDeviceGetCurrPcieLinkWidth",
            "width_max": "nvmlDeviceGetMaxPcieLinkWidth",
        }[what]
        number = int(self.ask(function, gpu))
        if number in (0, _ALL_BITS):
            raise NotReadError("UNKNOWN")
        return number

    def pcie_replays(self, gpu: Handle) -> int:
        """Give how often a PCIe packet had to be sent again."""
        return int(self.ask("nvmlDeviceGetPcieReplayCounter", gpu))

    def common_ancestor(self, a: Handle, b: Handle) -> Hop:
        """Give how far two GPUs are apart on PCIe. `nvidia-smi topo -m`."""
        level = int(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b))
        try:
            return Hop.from_level(level)
        except ValueError as error:
            raise NotReadError(f"UNKNOWN_LEVEL_{level}") from error

    def p2p(self, a: Handle, b: Handle, what: str) -> str:
        """Give whether one GPU can `read` or `write` the other's memory, in NVML's words. `topo -p2p r`.

        pynvml's constant for reading is the tuple (0,), which ctypes refuses: hence the plain numbers.
        """
        code = int(self.ask("nvmlDeviceGetP2PStatus", a, b, {"read": 0, "write": 1}[what]))
        return P2P_STATUS.get(code, f"UNKNOWN_{code}")

    def nvlink_active(self, gpu: Handle, link: int) -> bool:
        """Tell whether an NVLink is up. INVALID_ARGUMENT after the last link of the card."""
        return bool(self.ask("nvmlDeviceGetNvLinkState", gpu, link))

    def nvlink_version(self, gpu: Handle, link: int) -> int:
        """Give the NVLink generation."""
        code = int(self.ask("nvmlDeviceGetNvLinkVersion", gpu, link))
        if code not in NVLINK_GENERATIONS:
            raise NotReadError(f"UNKNOWN_VERSION_{code}")
        return NVLINK_GENERATIONS[code]

    def nvlink_remote_address(self, gpu: Handle, link: int) -> str:
        """Give the PCI address of what is at the other end."""
        return _address(self.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))

    def nvlink_remote_kind(self, gpu: Handle, link: int) -> str:
        """Give what is at the other end: gpu, switch or ibmnpu."""
        code = int(self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link))
        if code not in NVLINK_REMOTES:
            raise NotReadError("UNKNOWN")
        return NVLINK_REMOTES[code]

    def nvlink_errors(self, gpu: Handle, link: int, counter: str) -> int:
        """Give an error counter of an NVLink. A key of NVLINK_ERRORS."""
        return int(self.ask("nvmlDeviceGetNvLinkErrorCounter", gpu, link, NVLINK_ERRORS[counter]))

    # Memory errors and modes

    def ecc_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Tell whether ECC is on now and after the next reboot."""
        now, pending = self.ask("nvmlDeviceGetEccMode", gpu)
        return bool(now), bool(pending)

    def ecc_errors(self, gpu: Handle, what: str, since: str) -> int:
        """Give `corrected` or `uncorrected` errors, `volatile` (since boot) or `aggregate` (in all)."""
        kind = {"corrected": 0, "uncorrected": 1}[what]
        return int(self.ask("nvmlDeviceGetTotalEccErrors", gpu, kind, {"volatile": 0, "aggregate": 1}[since]))

    def remapped_rows(self, gpu: Handle) -> tuple[int, int, bool, bool]:
        """Give rows remapped for correctable and other errors, whether one is pending, whether one failed."""
        correctable, uncorrectable, pending, failure = self.ask("nvmlDeviceGetRemappedRows", gpu)
        return correctable, uncorrectable, bool(pending), bool(failure)

    def retired_pages(self, gpu: Handle, cause: str) -> int:
        """Give the number of retired pages by cause, `single_bit` or `double_bit`."""
        return len(self.ask("nvmlDeviceGetRetiredPages", gpu, {"single_bit": 0, "double_bit": 1}[cause]))

    def retired_pages_pending(self, gpu: Handle) -> bool:
        """Tell whether a page waits for a reboot to be retired."""
        return bool(self.ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu))

    def mig_mode(self, gpu: Handle) -> tuple[bool, bool]:
        """Tell whether the card is split into instances now and after a reset."""
        now, pending = self.ask("nvmlDeviceGetMigMode", gpu)
        return bool(now), bool(pending)

    def compute_mode(self, gpu: Handle) -> str:
        """Give who may use the card: default, exclusive_process, prohibited."""
        code = int(self.ask("nvmlDeviceGetComputeMode", gpu))
        return COMPUTE_MODES.get(code, f"unknown_{code}")

    def persistence_mode(self, gpu: Handle) -> bool:
        """Tell whether the driver keeps the card awake when nobody uses it."""
        return bool(self.ask("nvmlDeviceGetPersistenceMode", gpu))


@contextlib.contextmanager
def open_nvml() -> Iterator[Nvml]:
    """Open NVML for the time of a `with` block. Raises NotReadError with the reason of nvmlInit.

    LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, NO_PERMISSION, LIB_RM_VERSION_MISMATCH, ...
    """
    import pynvml  # 25 ms, and not every command needs it

    nvml = Nvml(pynvml)
    nvml.ask("nvmlInit")
    try:
        yield nvml
    finally:
        with contextlib.suppress(NotReadError):
            nvml.ask("nvmlShutdown")


def _first(*ways: Callable[[], T]) -> T:
    """Take the first way that answers. If none does, raise the reason that says most; a lost GPU at once."""
    reasons: list[NotReadError] = []
    for way in ways:
        try:
            return way()
        except NotReadError as error:
            if error.reason == LOST:
                raise
            reasons.append(error)
    raise next((error for error in reasons if error.reason != "FUNCTION_NOT_FOUND"), reasons[0])


def _bits(words: Any) -> tuple[int, ...]:
    return tuple(
        64 * place + bit for place, word in enumerate(words) if word for bit in range(64) if word >> bit & 1
    )


def _address(info: Any) -> str:
    """Give the address of an nvmlPciInfo_t. Drivers before 2018 fill the numbers and not the text.

    pynvml decodes the text when the field is read, which fails on what a broken card may give.
    """
    try:
        address = normal_address(str(info.busId))
    except UnicodeDecodeError:
        address = None
    return address or f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
