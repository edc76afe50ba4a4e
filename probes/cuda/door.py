"""All access to CUDA, through cuda.bindings.driver (versions 12.x and 13.x).

A method returns an answer or raises CudaError with the driver's reason. Devices have CUDA's numbers in this
process; their PCI address identifies the GPU. Use it in one thread only: each thread has its own current
context.
"""

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NewType

import msgspec

from gputopo.probes.cuda.kernels import KERNELS, PTX
from gputopo.values.errors import HardwareError
from gputopo.values.fields import kernel_address

Stream = NewType("Stream", object)
Event = NewType("Event", object)
Kernel = NewType("Kernel", object)

# The oldest Linux driver for each major version of cuda-bindings (cuda.bindings, Runtime Requirements).
DRIVERS = {12: "525.60.13", 13: "580.65.06"}
ABSENT = "FUNCTION_NOT_FOUND"  # gputopo's reason if the driver does not have a function; CUDA has none
UNKNOWN = "CUDA_ERROR_UNKNOWN"
_NOT_READY = "CUDA_ERROR_NOT_READY"

_PORTABLE_MAPPED = 0x01 | 0x02  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP (cuda.h)
_PORTABLE = 0x01
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream
_WAIT_VALUE_GEQ = 0  # CU_STREAM_WAIT_VALUE_GEQ

_ADDRESS_BYTES = 32


class NoCudaError(HardwareError):
    """CUDA cannot be used at all. `reason`: the driver's error name, or LIBRARY_MISSING, LIBRARY_ODD."""

    def __init__(self, reason: str, says: str, remedy: str) -> None:
        super().__init__(says, remedy)
        self.reason = reason
        self.says = says
        self.remedy = remedy


class CudaError(Exception):
    """A call that failed. `reason`: the driver's error name (`CUDA_ERROR_...`). `says`: its meaning."""

    def __init__(self, reason: str, says: str) -> None:
        super().__init__(f"{says} ({reason})")
        self.reason = reason
        self.says = says


def nameless(function: str, error: ValueError) -> CudaError:
    """Return the error for a result code that cuda.bindings does not know ("35 is not a valid CUresult")."""
    number = str(error).split(" ", 1)[0]
    reason = f"CUDA_ERROR_{number}" if number.isdecimal() else UNKNOWN
    return CudaError(reason, f"{function} failed with a code that is not known: {error}")


class CallLog:
    """Receives a note of each call, so that another process can tell which call hung or crashed."""

    def begin(self, function: str, ordinal: int | None) -> None:
        """Note the next call and the current device."""

    def end(self) -> None:
        """Note that the call returned."""


NO_LOG = CallLog()


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: its number in this process, and `pci_address` in the form of `Gpu.pci_address`."""

    ordinal: int
    pci_address: str | None
    multiprocessors: int = 1  # of the chip
    l2_bytes: int | None = None  # its L2 cache, or None if it is not reported


def read_device(calls: "Cuda", binding_attributes: object, ordinal: int) -> CudaDevice:
    """Read one device. Raises CudaError if not even its address can be read."""
    handle = calls.ask("cuDeviceGet", ordinal)

    def attribute(name: str) -> int | None:
        try:
            return int(calls.ask("cuDeviceGetAttribute", getattr(binding_attributes, name), handle)) or None
        except CudaError:
            return None

    return CudaDevice(
        ordinal=ordinal,
        pci_address=kernel_address(text_of(calls.ask("cuDeviceGetPCIBusId", _ADDRESS_BYTES, handle))),
        multiprocessors=attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT") or 1,
        l2_bytes=attribute("CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"),
    )


def text_of(buffer: bytes) -> str:
    """Return the text before the first NUL. cuda.bindings returns the whole buffer."""
    return bytes(buffer).split(b"\0")[0].decode(errors="replace").strip()


class Cuda:
    """CUDA in this process. `unreadable`: errors of devices that CUDA counts but that do not answer.

    `doubt`: cuda-bindings has a later major version than the driver, which NVIDIA does not support. The only
    call used here that it may then not find is replaced.
    """

    def __init__(self, binding: Any, log: CallLog = NO_LOG) -> None:
        self._binding = binding
        self._log = log
        self._replaced: dict[str, Callable[..., tuple[Any, ...]]] = {}
        self.current: int | None = None  # the ordinal of the current device
        number = int(self.ask("cuDriverGetVersion"))
        self.driver_version = f"{number // 1000}.{number % 1000 // 10}"
        self.doubt = _doubt(int(binding.CUDA_VERSION), number)
        if self.doubt and self._lacks_elapsed_time():
            self._replaced["cuEventElapsedTime"] = partial(_elapsed_time, binding)
        self._contexts: dict[int, Any] = {}
        self._abandoned: set[int] = set()
        devices: list[CudaDevice] = []
        refused: list[str] = []
        for ordinal in range(int(self.ask("cuDeviceGetCount"))):
            try:
                devices.append(read_device(self, binding.CUdevice_attribute, ordinal))
            except CudaError as error:
                refused.append(f"CUDA device {ordinal}: {error}")
        self.devices = tuple(devices)
        self.unreadable = tuple(refused)

    def use(self, ordinal: int) -> None:
        """Make a device the current one. The first time, retain its primary context."""
        self.current = ordinal
        if ordinal not in self._contexts:
            self._contexts[ordinal] = self.ask("cuDevicePrimaryCtxRetain", self._handle(ordinal))
        self.ask("cuCtxSetCurrent", self._contexts[ordinal])

    def can_reach(self, ordinal: int, peer: int) -> bool:
        """Return whether a device can get access to the memory of another."""
        return bool(self.ask("cuDeviceCanAccessPeer", self._handle(ordinal), self._handle(peer)))

    def open_peer(self, ordinal: int, peer: int) -> None:
        """Give a device access to the memory of another. Does nothing if it already has access."""
        self.use(peer)
        self.use(ordinal)
        try:
            self.ask("cuCtxEnablePeerAccess", self._contexts[peer], 0)
        except CudaError as error:
            if error.reason != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                raise

    def close_peer(self, ordinal: int, peer: int) -> None:
        """Revoke the access."""
        self.use(ordinal)
        self.ask("cuCtxDisablePeerAccess", self._contexts[peer])

    def copy_to_peer(self, to: tuple[int, int], source: tuple[int, int], size: int, stream: Any) -> None:
        """Copy between the memories of two devices, each side given as (ordinal, address)."""
        target = self._contexts[to[0]]
        origin = self._contexts[source[0]]
        self.ask("cuMemcpyPeerAsync", to[1], target, source[1], origin, size, stream)

    def abandon(self, ordinal: int) -> None:
        """Never release this device's context: releasing a device that hangs would wait forever."""
        self._abandoned.add(ordinal)

    def close(self) -> None:
        """Release all contexts except those of abandoned devices."""
        for ordinal in set(self._contexts) - self._abandoned:
            with contextlib.suppress(CudaError):
                self.ask("cuDevicePrimaryCtxRelease", self._handle(ordinal))
        self._contexts.clear()

    def _handle(self, ordinal: int) -> Any:
        return self.ask("cuDeviceGet", ordinal)

    def ask(self, function: str, *args: object) -> Any:
        """Call one function. Return None, its result, or a tuple of results. Raises CudaError.

        cuda.bindings raises RuntimeError if the library is missing or the driver does not have the function,
        and ValueError for an unknown result code. Older bindings do not have all functions.
        """
        call = self._replaced.get(function) or getattr(self._binding, function, None)
        if call is None:
            raise CudaError(ABSENT, f"cuda-bindings has no {function}")
        self._log.begin(function, self.current)
        try:
            code, *results = call(*args)
        except RuntimeError as error:
            raise CudaError(ABSENT, f"the driver has no {function}: {error}") from error
        except ValueError as error:
            raise nameless(function, error) from error
        finally:
            self._log.end()
        if int(code):
            raise CudaError(self._name(code), f"{function}: {self._says(code)}")
        return results[0] if len(results) == 1 else tuple(results) or None

    def _lacks_elapsed_time(self) -> bool:
        try:
            self.ask("cuEventElapsedTime", self._binding.CUevent(0), self._binding.CUevent(0))
        except CudaError as error:
            return error.reason == ABSENT
        return False

    def _name(self, code: Any) -> str:
        return str(getattr(code, "name", None) or f"CUDA_ERROR_{int(code)}")

    def _says(self, code: Any) -> str:
        with contextlib.suppress(RuntimeError, ValueError):
            refused, text = self._binding.cuGetErrorString(code)
            if not int(refused) and text:
                return text_of(text)
        return self._name(code).removeprefix("CUDA_ERROR_").replace("_", " ").lower()

    # Memory of the current device

    def free_bytes(self) -> int:
        """Return the free bytes of device memory."""
        return int(self.ask("cuMemGetInfo")[0])

    def allocate(self, size: int) -> int:
        """Allocate device memory and return its address."""
        return int(self.ask("cuMemAlloc", size))

    def allocate_host(self, size: int, *, mapped: bool = False) -> int:
        """Allocate page-locked host memory that every device can use, and return its address."""
        return int(self.ask("cuMemHostAlloc", size, _PORTABLE_MAPPED if mapped else _PORTABLE))

    def device_view(self, host: int) -> int:
        """Return the address under which the current device sees page-locked host memory."""
        return int(self.ask("cuMemHostGetDevicePointer", host, 0))

    # Streams and events of the current device

    def new_stream(self) -> Stream:
        """Create a stream."""
        return Stream(self.ask("cuStreamCreate", _NON_BLOCKING))

    def new_event(self) -> Event:
        """Create an event that records its time."""
        return Event(self.ask("cuEventCreate", 0))

    def happened(self, event: Event) -> bool:
        """Return whether an event has happened. Raises CudaError with an error on the device."""
        try:
            self.ask("cuEventQuery", event)
        except CudaError as error:
            if error.reason == _NOT_READY:
                return False
            raise
        return True

    def seconds_between(self, first: Event, second: Event) -> float:
        """Return the seconds between two events of one device. Their clock ticks about every 0.5 us."""
        return float(self.ask("cuEventElapsedTime", first, second)) / 1e3

    def wait_for_event(self, stream: Stream, event: Event) -> None:
        """Make a stream wait for an event, which may belong to another device."""
        self.ask("cuStreamWaitEvent", stream, event, 0)

    def wait_for_word(self, stream: Stream, address: int, value: int) -> None:
        """Make a stream wait until a 32-bit word of mapped memory is at least `value`."""
        self.ask("cuStreamWaitValue32", stream, address, value, _WAIT_VALUE_GEQ)

    # Kernels of the current device

    def load_kernels(self) -> tuple[Any, Mapping[str, Kernel]]:
        """Return the module of the current device and its kernels by name. Raises CudaError."""
        module = self.ask("cuModuleLoadData", PTX.encode() + b"\0")
        return module, {
            name: Kernel(self.ask("cuModuleGetFunction", module, name.encode())) for name in KERNELS
        }

    def launch(
        self, kernel: Kernel, stream: Stream, words: tuple[int, ...], threads: tuple[int, int]
    ) -> None:
        """Run a kernel with 64-bit parameters. `threads`: (blocks, threads in each block)."""
        blocks, block = threads
        parameters = (words, (ctypes.c_uint64,) * len(words))
        self.ask("cuLaunchKernel", kernel, blocks, 1, 1, block, 1, 1, 0, stream, parameters, 0)


def _doubt(bindings: int, driver: int) -> str | None:
    """Return a text if cuda-bindings is too new for the driver (12040: 12.4), otherwise None."""
    major = bindings // 1000
    if driver // 1000 >= major:
        return None
    made_for = f"CUDA {major}.0 (Linux driver {DRIVERS.get(major, 'not known')}) or later"
    has = f"{driver // 1000}.{driver % 1000 // 10}"
    return f"cuda-bindings {major} is made for {made_for}; this driver has CUDA {has}"


def _elapsed_time(binding: Any, first: Any, second: Any) -> tuple[Any, float]:
    """Call the cuEventElapsedTime that every driver exports. Return the result code and milliseconds.

    cuda-bindings 13 uses CUDA 12.8's function (cuEventElapsedTime_v2), which older drivers do not have.
    """
    milliseconds = ctypes.c_float()
    handles = (ctypes.c_void_p(int(event)) for event in (first, second))
    code = ctypes.CDLL("libcuda.so.1").cuEventElapsedTime(ctypes.byref(milliseconds), *handles)
    return binding.CUresult(code), milliseconds.value
