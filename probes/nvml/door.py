"""All access to NVML, through pynvml: one call at a time, and one exception if there is no answer.

Nothing here changes a setting: it calls only `Get` functions and the functions of an event set, which belongs
to this process. This module and `questions` work around errors in drivers and pynvml, and describe each
symptom.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NewType, Protocol, TypeVar

from gputopo.values.fields import kernel_address

T = TypeVar("T")
Handle = NewType("Handle", object)

LOST = "GPU_IS_LOST"

_XID = 0x8  # nvmlEventTypeXidCriticalError
_EVENTS_AT_ONCE = 64  # a flood of errors must not delay the caller
# nvmlValueType_t: the member of the union nvmlValue_t that contains a field's value.
_UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NotReadError(Exception):
    """A fact that NVML did not return. `reason` is NVML's name for why: NOT_SUPPORTED, GPU_IS_LOST, ..."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NvmlLog(Protocol):
    """Receives a note of each call, so that another process can tell which call hung or crashed."""

    def begin(self, function: str, gpus: str) -> None:
        """Note the next call. `gpus`: as `Nvml.about`. Raises NotReadError if the call is not allowed."""

    def end(self) -> None:
        """Note that the call returned."""


class Nvml:
    """NVML in this process, opened by `open_nvml`. Handles are valid until it closes.

    `about`: the GPUs that the next calls are about, set by the caller: "3", "3-5" for a pair, "" for none.
    """

    def __init__(self, binding: Any, log: NvmlLog | None = None) -> None:
        self.about = ""
        self._binding = binding
        self._log = log
        self._errors = {
            value: name.removeprefix("NVML_ERROR_")
            for name, value in vars(binding).items()
            if name.startswith("NVML_ERROR_")
        }

    def ask(self, function: str, *args: object) -> Any:
        """Call one pynvml function. Raises NotReadError for every error that NVML and pynvml raise.

        NVMLLibraryMismatchError is not an NVMLError: the unversioned process calls raise it on old drivers.
        A broken GPU returns names that are not UTF-8, or more processes than fit in memory. An old pynvml
        may not have the function.
        """
        binding = self._binding
        call = getattr(binding, function, None)
        if call is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        if self._log is not None:
            self._log.begin(function, self.about)
        try:
            return call(*args)
        except binding.NVMLError as error:
            raise NotReadError(self.reason(error.value)) from error
        except binding.NVMLLibraryMismatchError as error:
            raise NotReadError("FUNCTION_NOT_FOUND") from error
        except UnicodeDecodeError as error:
            raise NotReadError("UNREADABLE_TEXT") from error
        except (MemoryError, OverflowError) as error:
            raise NotReadError("UNREADABLE_COUNT") from error
        finally:
            if self._log is not None:
                self._log.end()

    def fields(self, gpu: Handle, wanted: Sequence[tuple[int, int]]) -> list[int | NotReadError]:
        """Return field values by (NVML_FI_*, scope), all in one call, each with its own error.

        The scope is the NVLink's number for fields about one NVLink, otherwise 0.
        """
        return [self._field(value) for value in self.ask("nvmlDeviceGetFieldValues", gpu, list(wanted))]

    def field(self, gpu: Handle, number: int) -> int:
        """Return one field value (NVML_FI_*)."""
        (answer,) = self.fields(gpu, [(number, 0)])
        return the_number(answer)

    def _field(self, value: Any) -> int | NotReadError:
        if value.nvmlReturn:
            return NotReadError(self.reason(value.nvmlReturn))
        kind = int(value.valueType)
        if kind >= len(_UNION_MEMBERS):
            return NotReadError(f"UNKNOWN_VALUE_TYPE_{kind}")
        # An older pynvml has only the wider members; the bytes are the same.
        member = _UNION_MEMBERS[kind]
        return int(getattr(value.value, member if hasattr(value.value, member) else "uiVal"))

    def reason(self, code: int) -> str:
        """Return NVML's name of an error."""
        return str(self._errors.get(code, f"ERROR_{code}"))

    def device_count(self) -> int:
        """Return the number of GPUs, including lost GPUs."""
        return int(self.ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        """Return the handle of the GPU at an index in PCI order."""
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    def filled(self, function: str, struct: str | type[ctypes.Structure], gpu: Handle) -> Any:
        """Return the struct that a function fills: of the given type, or pynvml's type with the given name.

        It is passed by reference: pynvml passes a plain struct by value, which crashes the process.
        """
        make: Callable[[], Any] | None
        make = getattr(self._binding, struct, None) if isinstance(struct, str) else struct
        if make is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        struct_filled = make()
        self.ask(function, gpu, ctypes.byref(struct_filled))
        return struct_filled

    def listen_for_xids(self, gpus: Sequence[Handle]) -> Any:
        """Return an event set that collects the Xid errors of GPUs. Free it with `stop_listening`.

        Skips a GPU that does not report its errors (or is lost). Raises NotReadError if it skips all.
        """
        events = self.ask("nvmlEventSetCreate")
        refused: NotReadError | None = None
        registered = 0
        for gpu in gpus:
            try:
                self.ask("nvmlDeviceRegisterEvents", gpu, _XID, events)
                registered += 1
            except NotReadError as error:
                refused = refused or error
        if refused is not None and not registered:
            self.stop_listening(events)
            raise refused
        return events

    def stop_listening(self, events: Any) -> None:
        """Free an event set."""
        self.ask("nvmlEventSetFree", events)

    def xids(self, events: Any) -> tuple[tuple[int, int], ...]:
        """Return (handle number, Xid) for each error since the last call. Does not wait.

        If a GPU is lost, the NVML call fails with GPU_IS_LOST. The errors reported before are still returned.
        """
        xids: list[tuple[int, int]] = []
        while len(xids) < _EVENTS_AT_ONCE:
            try:
                event = self.ask("nvmlEventSetWait_v2", events, 0)
            except NotReadError as error:
                if error.reason == "TIMEOUT" or xids:
                    break  # no more events
                raise
            if int(event.eventType) == _XID:
                xids.append((handle_number(event.device), int(event.eventData)))
        return tuple(xids)


@contextlib.contextmanager
def open_nvml(log: NvmlLog | None = None) -> Iterator[Nvml]:
    """Open NVML for a `with` block. Raises NotReadError with nvmlInit's reason.

    Reasons: LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, NO_PERMISSION, LIB_RM_VERSION_MISMATCH, ...
    """
    import pynvml  # 25 ms, and not every process needs it

    nvml = Nvml(pynvml, log)
    nvml.ask("nvmlInit")
    try:
        yield nvml
    finally:
        with contextlib.suppress(NotReadError):
            nvml.ask("nvmlShutdown")


def the_number(answer: int | NotReadError) -> int:
    """Return a field value, or raise its NotReadError."""
    if isinstance(answer, NotReadError):
        raise answer
    return answer


def first(*calls: Callable[[], T]) -> T:
    """Return the first answer. If there is none, raise the most specific reason. Stop at a lost GPU."""
    reasons: list[NotReadError] = []
    for call in calls:
        try:
            return call()
        except NotReadError as error:
            if error.reason == LOST:
                raise
            reasons.append(error)
    raise next((error for error in reasons if error.reason != "FUNCTION_NOT_FOUND"), reasons[0])


def signed(number: int) -> int:
    """Read a number as signed 32 bits: some drivers return negative margins as unsigned ones."""
    return number - (1 << 32) if 1 << 31 <= number < 1 << 32 else number


def word(table: Mapping[int, str], code: int) -> str:
    """Return NVML's number in words. Raises NotReadError with the number if it is not in the table."""
    if code not in table:
        raise NotReadError(f"UNKNOWN_{code}")
    return table[code]


def bits(words: Any) -> tuple[int, ...]:
    """Return the numbers of the bits that are set in an array of 64-bit words."""
    return tuple(
        64 * place + bit for place, word in enumerate(words) if word for bit in range(64) if word >> bit & 1
    )


def address_of(info: Any) -> str:
    """Return the address in an nvmlPciInfo_t. Drivers before 2018 fill only the numbers, not the text.

    pynvml decodes the text when the field is read, which fails for the bytes that a broken GPU may return.
    """
    try:
        address = kernel_address(str(info.busId))
    except UnicodeDecodeError:
        address = None
    return address or f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def handle_number(handle: Any) -> int:
    """Return the number inside a handle: events have a new handle object for the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
