"""How CUDA is asked: one call at a time through cuda.bindings, and one exception for all that is refused."""

import contextlib
from typing import Any, NewType, Protocol

from gputopo.values.errors import HardwareError

Stream = NewType("Stream", object)
Event = NewType("Event", object)
Kernel = NewType("Kernel", object)

ABSENT = "FUNCTION_NOT_FOUND"  # our name for a function that this driver lacks; CUDA has none for it
UNKNOWN = "CUDA_ERROR_UNKNOWN"
_NOT_READY = "CUDA_ERROR_NOT_READY"

_PORTABLE_MAPPED = 0x01 | 0x02  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP (cuda.h)
_PORTABLE = 0x01
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream
_WAIT_VALUE_GEQ = 0  # CU_STREAM_WAIT_VALUE_GEQ


class NoCudaError(HardwareError):
    """CUDA cannot be used at all. `reason`: the driver's name for why, or LIBRARY_MISSING, LIBRARY_ODD."""

    def __init__(self, reason: str, says: str, remedy: str) -> None:
        super().__init__(says, remedy)
        self.reason = reason
        self.says = says
        self.remedy = remedy


class CudaError(Exception):
    """One call that was refused. `reason` is the driver's name (`CUDA_ERROR_...`), `says` what it means."""

    def __init__(self, reason: str, says: str) -> None:
        super().__init__(f"{says} ({reason})")
        self.reason = reason
        self.says = says


def nameless(function: str, error: ValueError) -> CudaError:
    """Make the error of a result code that cuda.bindings has no name for ("35 is not a valid CUresult")."""
    number = str(error).split(" ", 1)[0]
    reason = f"CUDA_ERROR_{number}" if number.isdecimal() else UNKNOWN
    return CudaError(reason, f"{function} failed with a code that is not known: {error}")


class CallLog(Protocol):
    """What is notified of each call, so that one that hangs or crashes can be named from outside."""

    def begin(self, function: str, ordinal: int | None) -> None:
        """Note the call that comes next, and the device that is current."""
        ...

    def end(self) -> None:
        """Note that it returned."""
        ...


class _NoLog:
    def begin(self, function: str, ordinal: int | None) -> None:
        pass

    def end(self) -> None:
        pass


NO_LOG: CallLog = _NoLog()


class CudaCalls:
    """One call to CUDA. What the bindings do wrong with every call is worked round here.

    `current`: the ordinal of the device that is current.
    """

    def __init__(self, binding: Any, log: CallLog = NO_LOG) -> None:
        self._binding = binding
        self._log = log
        self.current: int | None = None

    def ask(self, function: str, *args: object) -> Any:
        """Call one function: None, its one result, or the tuple of them. Raises CudaError.

        A function that the driver lacks, or a missing library, is a RuntimeError of cuda.bindings; a result
        code that it does not know is a ValueError of its enumeration. Older bindings lack some functions.
        """
        call = getattr(self._binding, function, None)
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

    def _name(self, code: Any) -> str:
        return str(getattr(code, "name", None) or f"CUDA_ERROR_{int(code)}")

    def _says(self, code: Any) -> str:
        with contextlib.suppress(RuntimeError, ValueError):
            refused, text = self._binding.cuGetErrorString(code)
            if not int(refused) and text:
                return bytes(text).split(b"\0")[0].decode(errors="replace")
        return self._name(code).removeprefix("CUDA_ERROR_").replace("_", " ").lower()


class MemoryCalls(CudaCalls):
    """Allocations of the device that is current, and copies that a stream carries out."""

    def free_and_total(self) -> tuple[int, int]:
        """Return the bytes of device memory that are free, and all."""
        free, total = self.ask("cuMemGetInfo")
        return int(free), int(total)

    def allocate(self, size: int) -> int:
        """Allocate device memory and return its address."""
        return int(self.ask("cuMemAlloc", size))

    def release(self, address: int) -> None:
        """Free device memory."""
        self.ask("cuMemFree", address)

    def allocate_host(self, size: int, *, mapped: bool = False) -> int:
        """Allocate page-locked host memory that every device can use, and return its address."""
        return int(self.ask("cuMemHostAlloc", size, _PORTABLE_MAPPED if mapped else _PORTABLE))

    def release_host(self, address: int) -> None:
        """Free page-locked host memory."""
        self.ask("cuMemFreeHost", address)

    def device_view(self, host: int) -> int:
        """Return the address under which the current device sees page-locked host memory."""
        return int(self.ask("cuMemHostGetDevicePointer", host, 0))

    def upload(self, device: int, host: int, size: int, stream: Stream) -> None:
        """Copy host memory to the device."""
        self.ask("cuMemcpyHtoDAsync", device, host, size, stream)

    def download(self, host: int, device: int, size: int, stream: Stream) -> None:
        """Copy device memory to the host."""
        self.ask("cuMemcpyDtoHAsync", host, device, size, stream)

    def copy_inside(self, destination: int, source: int, size: int, stream: Stream) -> None:
        """Copy within the memory of one device."""
        self.ask("cuMemcpyDtoDAsync", destination, source, size, stream)

    def set_bytes(self, address: int, value: int, size: int, stream: Stream) -> None:
        """Set every byte of device memory to one value."""
        self.ask("cuMemsetD8Async", address, value, size, stream)


class StreamCalls(CudaCalls):
    """Streams and events of the device that is current."""

    def new_stream(self) -> Stream:
        """Make a stream."""
        return Stream(self.ask("cuStreamCreate", _NON_BLOCKING))

    def end_stream(self, stream: Stream) -> None:
        """Destroy a stream."""
        self.ask("cuStreamDestroy", stream)

    def new_event(self) -> Event:
        """Make an event that keeps its time."""
        return Event(self.ask("cuEventCreate", 0))

    def end_event(self, event: Event) -> None:
        """Destroy an event."""
        self.ask("cuEventDestroy", event)

    def record(self, event: Event, stream: Stream) -> None:
        """Have the event happen when all that the stream has been given so far is done."""
        self.ask("cuEventRecord", event, stream)

    def happened(self, event: Event) -> bool:
        """Return whether an event has happened. Raises CudaError with what went wrong on the device."""
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
        """Have a stream wait until an event has happened, which may be another device's."""
        self.ask("cuStreamWaitEvent", stream, event, 0)

    def wait_for_word(self, stream: Stream, address: int, value: int) -> None:
        """Have a stream wait until a 32-bit word of mapped memory is at least `value`."""
        self.ask("cuStreamWaitValue32", stream, address, value, _WAIT_VALUE_GEQ)

    def call_host(self, stream: Stream, function: int) -> None:
        """Have a function without arguments that count (its C address) called when the stream reaches it.

        cuda.bindings needs the GIL for the call: it must be one that releases it while it waits.
        """
        self.ask("cuLaunchHostFunc", stream, self._binding.CUhostFn(function), 0)
