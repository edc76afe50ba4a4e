"""Streams, events and holds, through the door."""

from gputopo.probes.cuda.calling import CudaCalls, CudaError, Event, Stream

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream
_WAIT_UNTIL_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
_NOT_READY = "CUDA_ERROR_NOT_READY"


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
        """Tell whether an event has happened. Raises CudaError with what went wrong on the device."""
        try:
            self.ask("cuEventQuery", event)
        except CudaError as error:
            if error.reason == _NOT_READY:
                return False
            raise
        return True

    def seconds_between(self, first: Event, second: Event) -> float:
        """Give the seconds between two events of one device. Their clock ticks about every 0.5 us."""
        return float(self.ask("cuEventElapsedTime", first, second)) / 1e3

    def wait_for_event(self, stream: Stream, event: Event) -> None:
        """Have a stream wait until an event has happened, which may be another device's."""
        self.ask("cuStreamWaitEvent", stream, event, 0)

    def wait_for_word(self, stream: Stream, address: int, value: int) -> None:
        """Have a stream wait until a 32-bit word of mapped memory is at least `value`."""
        self.ask("cuStreamWaitValue32", stream, address, value, _WAIT_UNTIL_AT_LEAST)

    def call_host(self, stream: Stream, function: int) -> None:
        """Have a function without arguments that count (its C address) called when the stream reaches it.

        cuda.bindings takes Python's lock for the call: it must be one that gives the lock up while it waits.
        """
        self.ask("cuLaunchHostFunc", stream, self._binding.CUhostFn(function), 0)
