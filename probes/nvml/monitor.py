"""Samples GPU clocks, power and temperatures, and Xid errors, in this process or in a child."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from gputopo.probes.child import Channel, DriverChild, DriverStop, whole_s
from gputopo.probes.nvml.door import Handle, NotReadError, handle_number, open_nvml
from gputopo.probes.nvml.questions import fact
from gputopo.values.run.events import SAMPLED_FACTS, GpuSample, MachineSample, Xid

READ = (
    "gpu_utilization_percent",
    "graphics_mhz",
    "memory_mhz",
    "power_w",
    "temperature_c",
    "throttle_mask",
    "pcie_gen",
    "pcie_width",
    "pstate",
)

# How long to wait for another thread's sample to end after its child was killed. Not measured.
_CLOSE_S = 1.0


class Closed:
    """An object that is closed at the end of a `with` block."""

    def close(self) -> None:
        """Close the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Monitor(Closed):
    """Keeps NVML and the handles of `gpus` (indices of the machine) open, and samples them on request.

    `before_call` gets the function and the GPU of each call. Raises NotReadError with NVML's reason if NVML
    cannot be opened. Close the monitor, or use it in a `with` block.
    """

    def __init__(self, gpus: Sequence[int], before_call: Callable[[str, str], None] | None = None) -> None:
        self._open = contextlib.ExitStack()
        self._nvml = self._open.enter_context(open_nvml(before_call))
        self._refused: dict[int, str] = {}  # why a GPU has no handle, by GPU
        self._handles = {gpu: self._handle(gpu) for gpu in gpus}

    def sample(self) -> tuple[GpuSample, ...]:
        """Return a sample for each GPU, in the given order. Never raises: a field without answer is None."""
        return tuple(self._samples())

    def _samples(self) -> Iterator[GpuSample]:
        for gpu, handle in self._handles.items():
            self._nvml.about = str(gpu)
            yield self._sample(gpu, handle)

    def close(self) -> None:
        """Close NVML. Samples after this are empty."""
        self._handles = dict.fromkeys(self._handles)
        self._open.close()

    def _handle(self, gpu: int) -> Handle | None:
        self._nvml.about = str(gpu)
        try:
            return self._nvml.handle(gpu)
        except NotReadError as error:
            self._refused[gpu] = error.reason
            return None

    def _sample(self, gpu: int, handle: Handle | None) -> GpuSample:
        found: dict[str, Any] = {}
        if handle is not None:
            for field in READ:
                with contextlib.suppress(NotReadError):
                    found[field] = fact(self._nvml, handle, SAMPLED_FACTS[field].path)
        return GpuSample(gpu=gpu, **found)


class XidNews(msgspec.Struct, frozen=True, kw_only=True):
    """The Xid errors since the last sample. `reason`: why they are not reported."""

    time_s: float
    xids: tuple[Xid, ...]
    reason: str | None


class Watcher(Monitor):
    """Keeps NVML, the handles of `gpus` (indices of the machine) and an event set open; a context manager.

    `xid_reason`: NVML's reason why Xid errors are not reported, or None while they are. Some drivers allow
    events only for root; some cards have none. `now` returns seconds since the epoch.
    Raises NotReadError with NVML's reason if NVML cannot be opened; a GPU that is lost raises nothing.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        before_call: Callable[[str, str], None] | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(gpus, before_call)
        self._now = now
        self._gpus_by_handle = {
            handle_number(handle): gpu for gpu, handle in self._handles.items() if handle is not None
        }
        self._events: Any = None
        self.xid_reason: str | None = None
        self._listen()

    def observe(self) -> MachineSample:
        """Return a sample of all GPUs, and the Xid errors since the last sample. Never raises or waits."""
        xids = self._xids()
        return MachineSample(time_s=self._now(), gpus=self.sample(), xids=xids)

    def parts(self) -> Iterator[object]:
        """Yield the parts of a sample in order: the Xid errors, then the GPUs."""
        yield XidNews(time_s=self._now(), xids=self._xids(), reason=self.xid_reason)
        yield from self._samples()

    def close(self) -> None:
        """Close the event set and NVML. Samples after this are empty."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(NotReadError):
                self._nvml.stop_listening(events)
        super().close()

    def _listen(self) -> None:
        self._nvml.about = ""
        handles = [handle for handle in self._handles.values() if handle is not None]
        if not handles:
            self.xid_reason = "NO_GPU_ANSWERS"
            return
        try:
            self._events = self._nvml.listen_for_xids(handles)
        except NotReadError as error:
            self.xid_reason = error.reason

    def _xids(self) -> tuple[Xid, ...]:
        if self._events is None:
            return ()
        self._nvml.about = ""
        try:
            reported = self._nvml.xids(self._events)
        except NotReadError as error:
            self.xid_reason = error.reason  # a lost GPU may break the whole event set, permanently or for now
            return ()
        self.xid_reason = None
        return tuple(Xid(code=code, gpu=self._gpus_by_handle.get(number)) for number, code in reported)


class WatcherChild(Closed):
    """A Watcher in a child process. A driver that hangs or crashes ends only the samples.

    `stop`: the call that hung or crashed, or None. Samples do not contain GPUs that were due after that call.
    `xid_reason`: as of the last sample. Create it in the main thread. Another thread may sample, even while
    it is closed. Raises NotReadError as Watcher does, and if NVML does not answer.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self.stop: DriverStop | None = None
        self.xid_reason: str | None = None
        self._gpus = tuple(gpus)
        self._in_use = threading.Lock()
        self._closed = False
        try:
            self._child = DriverChild(self._work)
        except OSError as error:
            raise NotReadError("NO_CHILD_PROCESS") from error
        refused = [msgspec.json.decode(part, type=str) for part in self._answer()]
        if self.stop is not None or refused:
            self.close()
            raise NotReadError(refused[0] if self.stop is None else self.stop.text)

    def observe(self) -> MachineSample:
        """Return a sample of all GPUs, and the Xid errors since the last sample. Never raises."""
        parts: list[bytes] = []
        with self._in_use:
            if self.stop is None and not self._closed:
                self._child.request()
                parts = self._answer()
        if not parts:
            return MachineSample(time_s=time.time(), gpus=())
        news = msgspec.json.decode(parts[0], type=XidNews)
        self.xid_reason = news.reason
        gpus = tuple(msgspec.json.decode(part, type=GpuSample) for part in parts[1:])
        return MachineSample(time_s=news.time_s, gpus=gpus, xids=news.xids)

    def close(self) -> None:
        """End the child. Samples after this contain no GPU."""
        if self._closed:
            return
        self._closed = True
        self._child.kill()  # so that another thread no longer waits for it
        if self._in_use.acquire(timeout=_CLOSE_S):
            self._child.close()
            self._in_use.release()

    def _work(self, channel: Channel) -> None:
        """Sample in the child, once for each request."""
        try:
            with self._watcher(channel.nvml.begin) as watcher:
                channel.done()
                while channel.wait():
                    for part in watcher.parts():
                        channel.put(part)
                    channel.done()
        except NotReadError as error:
            channel.put(error.reason)
            channel.done()

    def _watcher(self, before_call: Callable[[str, str], None]) -> Watcher:
        """Open the Watcher that takes the samples, in the child."""
        return Watcher(self._gpus, before_call)

    def _answer(self) -> list[bytes]:
        """Return the parts of an answer."""
        parts = self._child.answer(whole_s(len(self._gpus)))
        if not self._closed:
            self.stop = self._child.stop
        return parts
