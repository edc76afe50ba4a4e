"""`--on-anomaly`: a command or a web address that is told of each anomaly, in a thread of its own.

Nothing here can delay or end a run: what cannot be delivered is reported once.
"""

import contextlib
import os
import platform
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from gputopo.launch.supervise.child import Ours
from gputopo.probes.processes import tethered
from gputopo.values.errors import UsageError
from gputopo.values.option import shown
from gputopo.values.run.events import Anomaly, AnomalyOver, Event

COMMAND_S, WEB_S = 30.0, 10.0  # that one delivery may take. Ours.
LAST_S = 5.0  # that the end of the run waits for what is not delivered yet. Ours.
MAX_WAITING = 100  # of anomalies; a run has a few. Ours.


def read_alarm(flag: str, text: str) -> str:
    """Read a command or an http(s) address. Raises UsageError."""
    if is_address(text):
        try:
            named = bool(urlsplit(text).hostname) and urlsplit(text).port != 0
        except ValueError:
            named = False
        if not named:
            raise UsageError(f"{flag} {shown(text)} names no host", "give an address: https://host/path")
        return text
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} {shown(text)}: {error}", "quote it as for a shell") from error
    if not words:
        raise UsageError(f"{flag} names no command: it is empty", "give a command, or an http(s) address")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"{flag}: there is no program {shown(words[0])}",
            "name one that is on PATH, or its path; it runs without a shell",
        )
    return text


def is_address(text: str) -> bool:
    """Whether a text is a web address, not a command."""
    return text.lower().startswith(("http://", "https://"))


class Alarm:
    """Delivers anomalies in their order. `on_problem` gets one line, once, from the caller's thread.

    `ours`: where a command that it starts is noted, so that its end is left to it.
    """

    def __init__(self, target: str, on_problem: Callable[[str], None], ours: Ours | None = None) -> None:
        self._target = target
        self._ours = Ours() if ours is None else ours
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
        """Wait a little for what is not delivered yet, and end what still runs."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(LAST_S)
            if self._thread.is_alive():
                self._problem = self._problem or f"not delivered within {LAST_S:g} s of the end"
                self._kill()
            self._thread = None
        self._report()

    def _report(self) -> None:
        if self._problem is not None and self._on_problem is not None:
            name = self._target if is_address(self._target) else shlex.split(self._target)[0]
            self._on_problem(f"--on-anomaly {name}: {self._problem}; the run goes on")
            self._on_problem = None

    def _deliver(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                message = message_of(event)
                (self._post if is_address(self._target) else self._call)(message, event)
            except (OSError, ValueError) as error:  # URLError is an OSError
                self._problem = self._problem or str(getattr(error, "reason", None) or error)

    def _post(self, message: bytes, event: Event) -> None:
        import urllib.error
        import urllib.request

        request = urllib.request.Request(
            self._target,
            data=message,
            method="POST",
            headers={"Content-Type": "application/json", "User-Agent": "gputopo"},
        )
        try:
            with urllib.request.urlopen(request, timeout=WEB_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            raise OSError(f"the server answered {error.code}") from error

    def _call(self, message: bytes, event: Event) -> None:
        with self._ours.starting:
            # Tethered, since the thread may block the signals that a program expects.
            self._running = process = subprocess.Popen(
                tethered(shlex.split(self._target), signal.SIGKILL),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **variables_of(event)},
            )
            self._ours.add(process.pid)
        try:
            process.communicate(message, timeout=COMMAND_S)
        except subprocess.TimeoutExpired as error:
            self._kill()
            process.wait()
            raise OSError(f"did not end within {COMMAND_S:g} s") from error
        if process.returncode:
            raise OSError(f"ended with exit code {process.returncode}")

    def _kill(self) -> None:
        process = self._running
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def message_of(event: Event) -> bytes:
    """Return the event as in events.jsonl, with `host`, and `text`: a line for chats that show it."""
    host = platform.node()
    fields = msgspec.to_builtins(event)
    return msgspec.json.encode({**fields, "host": host, "text": f"gputopo on {host}: {fields['says']}"})


def variables_of(event: Event) -> Mapping[str, str]:
    """Return the event as environment variables; what is not known is left out."""
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
        found = event.causes.found if event.causes is not None else ()
        values |= {"PERCENT": f"{event.percent_under:.1f}", "CAUSE": found[0].id if found else None}
    return {f"GPUTOPO_{name}": str(value) for name, value in values.items() if value is not None}
