"""`--on-anomaly`: runs a command for each anomaly, in a separate thread.

Nothing here can delay or end a run. The first failed delivery is reported.
"""

import contextlib
import os
import platform
import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from gputopo.launch.supervise.worker_process import OwnChildren
from gputopo.probes import kill_group, tethered
from gputopo.values.run.events import Anomaly, AnomalyOver, Event

COMMAND_S = 30.0  # limit of one delivery; not measured
LAST_S = 5.0  # how long the end of the run waits for pending deliveries; not measured
MAX_WAITING = 100  # anomalies; a run has only a few; not measured


class Alarm:
    """Delivers anomalies in order. `on_problem`: gets one line, once, from the caller's thread.

    `ours`: gets the commands that it starts, so that only this class waits for their end.
    """

    def __init__(
        self,
        command: str,
        on_problem: Callable[[str], None],
        ours: OwnChildren | None = None,
        *,
        command_s: float = COMMAND_S,
        last_s: float = LAST_S,
    ) -> None:
        """`command_s`: seconds for one delivery; `last_s`: for all that are pending at the end."""
        self._command_s, self._last_s = command_s, last_s
        self._command = command
        self._ours = OwnChildren() if ours is None else ours
        self._on_problem: Callable[[str], None] | None = on_problem
        self._waiting: queue.Queue[Event | None] = queue.Queue(MAX_WAITING)
        self._problem: str | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def event(self, event: Event) -> None:
        """Add the next event of the run."""
        if isinstance(event, Anomaly | AnomalyOver):
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name="alarm", daemon=True)
                self._thread.start()
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(event)
        self._report()

    def close(self) -> None:
        """Wait up to `last_s` for pending deliveries, and end any command that still runs."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(self._last_s)
            if self._thread.is_alive():
                self._problem = self._problem or f"not delivered within {self._last_s:g} s of the end"
                self._kill()
            self._thread = None
        self._report()

    def _report(self) -> None:
        if self._problem is not None and self._on_problem is not None:
            name = shlex.split(self._command)[0]
            self._on_problem(f"--on-anomaly {name}: {self._problem}; the run continues")
            self._on_problem = None

    def _deliver(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._call(message_of(event), event)
            except (OSError, ValueError) as error:
                self._problem = self._problem or str(error)

    def _call(self, message: bytes, event: Event) -> None:
        with self._ours.starting:
            # Tethered, because the thread may block the signals that a program needs.
            self._running = process = subprocess.Popen(
                tethered(shlex.split(self._command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **variables_of(event)},
            )
            self._ours.add(process.pid)
        try:
            process.communicate(message, timeout=self._command_s)
        except subprocess.TimeoutExpired as error:
            self._kill()
            process.wait()
            raise OSError(f"did not end within {self._command_s:g} s") from error
        if process.returncode:
            raise OSError(f"ended with exit code {process.returncode}")

    def _kill(self) -> None:
        process = self._running
        if process is not None and process.returncode is None:
            kill_group(process.pid)


def message_of(event: Event) -> bytes:
    """Return the event as in events.jsonl, with `host`, and `text`: a line that chat services show."""
    host = platform.node()
    fields = msgspec.to_builtins(event)
    return msgspec.json.encode({**fields, "host": host, "text": f"gputopo on {host}: {fields['says']}"})


def variables_of(event: Event) -> Mapping[str, str]:
    """Return the event as environment variables, without unknown values."""
    if not isinstance(event, Anomaly | AnomalyOver):
        return {}
    values: dict[str, object] = {
        "EVENT": "anomaly" if isinstance(event, Anomaly) else "anomaly_over",
        "SAYS": event.says,
        "TOWER": event.tower,
        "GPU": event.gpu,
        "RANK": event.rank or None,
        "TIME": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.time_s)),
    }
    if isinstance(event, Anomaly):
        causes = event.causes.found if event.causes is not None else ()
        values |= {"PERCENT": f"{event.percent_under:.1f}", "CAUSE": causes[0].id if causes else None}
    return {f"GPUTOPO_{name}": str(value) for name, value in values.items() if value is not None}
