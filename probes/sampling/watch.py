"""Watches GPUs: samples, and the Xid errors between them; in this process, or in a child."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from gputopo.probes.nvml.door import NotReadError
from gputopo.probes.nvml.events import handle_number
from gputopo.probes.sampling.sampler import Monitor, MonitorChild, samples_of
from gputopo.values.run.events import MachineSample, Xid


class XidNews(msgspec.Struct, frozen=True, kw_only=True):
    """The Xid errors since the last sample. `reason`: why they are not reported."""

    time_s: float
    xids: tuple[Xid, ...]
    reason: str | None


class Watcher(Monitor):
    """Keeps NVML, the handles of `gpus` (indices of the machine) and an event set open; a context manager.

    `xid_reason`: why Xid errors are not reported, in NVML's words, None while they are: some drivers
    refuse events to anybody but root, some cards have none. `now` returns seconds since the epoch.
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
        """Return a sample of all GPUs and the Xid errors since the one before. Never raises, never waits."""
        xids = self._xids()
        return MachineSample(time_s=self._now(), gpus=self.sample(), xids=xids)

    def parts(self) -> Iterator[object]:
        """Yield the parts of a sample one after another: the Xid errors, then the GPUs."""
        yield XidNews(time_s=self._now(), xids=self._xids(), reason=self.xid_reason)
        yield from super().parts()

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
            self.xid_reason = error.reason  # a lost GPU may spoil the whole event set, for good or for now
            return ()
        self.xid_reason = None
        return tuple(Xid(code=code, gpu=self._gpus_by_handle.get(number)) for number, code in reported)


class WatcherChild(MonitorChild):
    """A Watcher in a child process, as MonitorChild is a Monitor. `xid_reason`: as of the last sample."""

    _make = Watcher

    def __init__(self, gpus: Sequence[int]) -> None:
        self.xid_reason: str | None = None
        super().__init__(gpus)

    def observe(self) -> MachineSample:
        """Return a sample of all GPUs and the Xid errors since the one before. Never raises."""
        parts = self._parts()
        if not parts:
            return MachineSample(time_s=time.time(), gpus=())
        news = msgspec.json.decode(parts[0], type=XidNews)
        self.xid_reason = news.reason
        return MachineSample(time_s=news.time_s, gpus=samples_of(parts[1:]), xids=news.xids)
