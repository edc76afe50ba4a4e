"""What happened in a run, taken down once: in memory, in the events file, and for whoever looks on."""

import platform
import time
from collections.abc import Callable

import msgspec

import gputopo
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.supervise import failure
from gputopo.launch.supervise.run_folder import EventLog
from gputopo.runs import anomaly
from gputopo.values import schema
from gputopo.values.events import Event, RankFailed, RunFinished, RunStarted, Step


class Record:
    """The events of a run: in memory, in the file as long as it can be written, and to whoever looks on."""

    def __init__(self, log: EventLog | None, on_event: Callable[[Event], None]) -> None:
        """Take down events; `log` None: in memory only."""
        self.events: list[Event] = []
        self.failure: RankFailed | None = None
        self._held: RankFailed | None = None
        self._log: EventLog | None = log
        self._on_event = on_event
        self._began = time.monotonic()

    def close(self) -> None:
        """Close the file if `finish` did not come to it; nothing more is said."""
        self._close()

    @property
    def unwritable(self) -> bool:
        """Whether the file could not be written any more: what comes now is in memory only."""
        return self.failure is not None and self.failure.kind == "disk_full"

    def tell(self, event: Event) -> None:
        """Take an event. The first failure counts: a later one is passed over.

        That memory ran out is held back until it is known what would fit: see `release`.
        """
        if isinstance(event, RankFailed):
            if self.failure is not None:
                return
            self.failure = event
            if event.kind == failure.OUT_OF_MEMORY:
                self._held = event
                return
        self._tell(event)

    def release(self, remedy: str | None = None) -> None:
        """Tell the failure that was held back, if there is one, with another remedy if one is given."""
        held, self._held = self._held, None
        if held is not None:
            self.failure = held if remedy is None else msgspec.structs.replace(held, remedy=remedy)
            self._tell(self.failure)

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        unwritten = self._write(event)
        self._on_event(event)
        if unwritten is not None:
            self.tell(unwritten)

    def begin(self, spec: RunSpec) -> None:
        """Tell that the run begins."""
        self.tell(
            RunStarted(
                time_s=time.time(),
                host=platform.node(),
                spec=msgspec.json.decode(schema.encode(spec)),  # as a reader of the file sees it
                devices=spec.devices,
                backend=spec.backend,
                rehearsal_of=spec.rehearsal_of,
                versions={
                    "gputopo": gputopo.__version__,
                    "python": platform.python_version(),
                    **spec.versions,
                },
                says=spec.says,
            )
        )

    def finish(self) -> tuple[Event, ...]:
        """Look for slow devices, say how the run ended, close the file and give all events."""
        self.release()
        started = next(event for event in self.events if isinstance(event, RunStarted))
        steps = [event for event in self.events if isinstance(event, Step)]
        # Where the input is measured alone no device has work to be slow at.
        devices = () if started.spec.get("task") == "input" else started.devices
        for slow in anomaly.find_anomalies(devices, steps).anomalies:
            self.tell(slow.event(time.time()))
        self.tell(self._finished())
        unwritten = self._close()
        if unwritten is not None:
            self.tell(unwritten)
        if isinstance(self.events[-1], RankFailed):  # the disk took no more when the run had finished
            self.tell(self._finished())
        return tuple(self.events)

    def _finished(self) -> RunFinished:
        kind = None if self.failure is None else self.failure.kind
        status = {None: "complete", "interrupted": "interrupted", "terminated": "interrupted"}
        return RunFinished(
            time_s=time.time(),
            status=status.get(kind, "failed"),
            exit_code=0 if self.failure is None else self.failure.exit_code,
            wall_s=time.monotonic() - self._began,
        )

    def _write(self, event: Event) -> RankFailed | None:
        if self._log is None:
            return None
        try:
            self._log.write(event)
        except OSError as error:
            path = self._log.path
            self._close()
            return failure.unwritable(path, error, time_s=time.time())
        return None

    def _close(self) -> RankFailed | None:
        if self._log is None:
            return None
        log, self._log = self._log, None
        try:
            log.close()
        except OSError as error:
            return failure.unwritable(log.path, error, time_s=time.time())
        return None
