"""The one door to NVML, through pynvml: one call at a time, and one exception for all that is no answer.

Nothing here changes a setting: only `Get` functions are called, and those of an event set, which is this
process's own. What drivers and pynvml do wrong is worked round here and in `questions`, with its symptom.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NewType, TypeVar

from gputopo.values.fields import kernel_address

T = TypeVar("T")
Handle = NewType("Handle", object)

LOST = "GPU_IS_LOST"

_XID = 0x8  # nvmlEventTypeXidCriticalError
_EVENTS_AT_ONCE = 64  # a storm of errors must not hold up the one who asks
# nvmlValueType_t: which member of the union nvmlValue_t a field's answer is in.
_UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NotReadError(Exception):
    """A fact that NVML did not return. `reason` is NVML's name for why: NOT_SUPPORTED, GPU_IS_LOST, ..."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Nvml:
    """NVML of this process, opened by `open_nvml`; handles are good until it closes.

    `before_call` gets the function and the GPUs of each call before it is made, and may raise NotReadError.
    `about`: those GPUs, set by who asks: "3", "3-5" for a pair, "" for none.
    """

    def __init__(self, binding: Any, before_call: Callable[[str, str], None] | None = None) -> None:
        self.about = ""
        self._binding = binding
        self._before_call = before_call
        self._errors = {
            value: name.removeprefix("NVML_ERROR_")
            for name, value in vars(binding).items()
            if name.startswith("NVML_ERROR_")
        }

    def ask(self, function: str, *args: object) -> Any:
        """Call one pynvml function. Raises NotReadError for all that NVML and pynvml raise.

        NVMLLibraryMismatchError is no NVMLError: the unversioned process calls raise it on old drivers.
        A broken GPU gives names that are no UTF-8, or more processes than fit into the memory. A pynvml
        older than the function lacks it.
        """
        binding = self._binding
        call = getattr(binding, function, None)
        if call is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        if self._before_call is not None:
            self._before_call(function, self.about)
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

    def fields(self, gpu: Handle, wanted: Sequence[tuple[int, int]]) -> list[int | NotReadError]:
        """Return field values by (NVML_FI_*, scope), all in one call; each with its own error.

        The scope is the number of the NVLink for the fields that are about one, else 0.
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
        # A pynvml from before a member knows only the wider ones; the bytes are the same.
        member = _UNION_MEMBERS[kind]
        return int(getattr(value.value, member if hasattr(value.value, member) else "uiVal"))

    def reason(self, code: int) -> str:
        """Return NVML's name of an error."""
        return str(self._errors.get(code, f"ERROR_{code}"))

    def device_count(self) -> int:
        """Return the number of GPUs, the lost ones included."""
        return int(self.ask("nvmlDeviceGetCount"))

    def handle(self, index: int) -> Handle:
        """Return the handle of the GPU at an index in PCI order."""
        return Handle(self.ask("nvmlDeviceGetHandleByIndex", index))

    def filled(self, function: str, struct: str | type[ctypes.Structure], gpu: Handle) -> Any:
        """Return a struct, of this type or of pynvml by this name, that a function fills.

        It is passed by reference: pynvml hands a bare one on by value, which ends the process.
        """
        make: Callable[[], Any] | None
        make = getattr(self._binding, struct, None) if isinstance(struct, str) else struct
        if make is None:
            raise NotReadError("FUNCTION_NOT_FOUND")
        found = make()
        self.ask(function, gpu, ctypes.byref(found))
        return found

    def listen_for_xids(self, gpus: Sequence[Handle]) -> Any:
        """Return an event set that collects the Xid errors of some GPUs; end it with `stop_listening`.

        A GPU that does not report its errors (or is lost) is left out; raises NotReadError if all are.
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
        """Return (handle number, Xid) of the errors since the last call; does not wait.

        A lost GPU lets the call fail with GPU_IS_LOST; what was reported before it is still returned.
        """
        xids: list[tuple[int, int]] = []
        while len(xids) < _EVENTS_AT_ONCE:
            try:
                event = self.ask("nvmlEventSetWait_v2", events, 0)
            except NotReadError as error:
                if error.reason == "TIMEOUT" or xids:
                    break  # nothing more has happened
                raise
            if int(event.eventType) == _XID:
                xids.append((handle_number(event.device), int(event.eventData)))
        return tuple(xids)


@contextlib.contextmanager
def open_nvml(before_call: Callable[[str, str], None] | None = None) -> Iterator[Nvml]:
    """Open NVML for the time of a `with` block. Raises NotReadError with the reason of nvmlInit.

    LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, NO_PERMISSION, LIB_RM_VERSION_MISMATCH, ...
    `before_call` gets the function and the GPUs of each call (Nvml).
    """
    import pynvml  # 25 ms, and not every process needs it

    nvml = Nvml(pynvml, before_call)
    nvml.ask("nvmlInit")
    try:
        yield nvml
    finally:
        with contextlib.suppress(NotReadError):
            nvml.ask("nvmlShutdown")


def the_number(answer: int | NotReadError) -> int:
    """Return a field value; raise its refusal."""
    if isinstance(answer, NotReadError):
        raise answer
    return answer


def first(*calls: Callable[[], T]) -> T:
    """Return the first answer. If there is none, raise the most specific reason; a lost GPU at once."""
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
    """Return NVML's number in words. Raises NotReadError, which names it, for one that the table lacks."""
    if code not in table:
        raise NotReadError(f"UNKNOWN_{code}")
    return table[code]


def bits(words: Any) -> tuple[int, ...]:
    """Return the numbers of the bits that are set in an array of 64-bit words."""
    return tuple(
        64 * place + bit for place, one in enumerate(words) if one for bit in range(64) if one >> bit & 1
    )


def address_of(info: Any) -> str:
    """Return the address of an nvmlPciInfo_t. Drivers before 2018 fill the numbers and not the text.

    pynvml decodes the text when the field is read, which fails on what a broken GPU may give.
    """
    try:
        address = kernel_address(str(info.busId))
    except UnicodeDecodeError:
        address = None
    return address or f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def handle_number(handle: Any) -> int:
    """Return the number behind a handle: events carry a new object for the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
