"""Xid errors as NVML reports them while a program listens."""

import ctypes
from collections.abc import Sequence
from typing import Any

from gputopo.probes.nvml.calling import Handle, NotReadError, NvmlDoor

_XID = 0x8  # nvmlEventTypeXidCriticalError
_EVENTS_AT_ONCE = 64  # a storm of errors must not hold up the one who asks


class EventQuestions(NvmlDoor):
    """Events of GPUs. An event set belongs to this process and changes nothing of a GPU."""

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


def handle_number(handle: Any) -> int:
    """Return the number behind a handle: events carry a new object for the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
