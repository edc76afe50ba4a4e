"""The stderr of a program: it reaches the user unchanged, and its last lines show why the program failed.

| stderr of gputopo | the program's stderr           | its last lines are read                     |
|-------------------|--------------------------------|---------------------------------------------|
| a file            | the same file                  | in the file                                 |
| a pipe            | a pipe that a thread passes on | as they pass                                |
| a terminal, other | the same                       | not at all: gputopo cannot read them        |

If stdout is the same pipe, it becomes the same new pipe, so that the lines of both keep their order.
"""

import contextlib
import os
import select
import signal
import stat
import threading
from collections.abc import Sequence

from gputopo.launch.supervise import signals
from gputopo.launch.supervise.worker_output import LINES, WorkerOutput

# If the last `LINES` have no known message, this many lines are searched: torchrun prints about 40 lines
# after the error of a process.
MORE_LINES = 100
_AT_ONCE = 65_536  # bytes: a full pipe
_STDOUT, _STDERR = 1, 2


class ErrorOutput:
    """The stderr of a program. `stdout`, `stderr`: the pipe for the program, None to inherit."""

    def __init__(self) -> None:
        self.stdout: int | None = None
        self.stderr: int | None = None
        self._passed = b""  # the last bytes of the output
        self._file_begin: int | None = None
        self._relay: threading.Thread | None = None
        with contextlib.suppress(OSError, RuntimeError):  # stderr is closed, or no thread can be started
            status = os.fstat(_STDERR)
            if stat.S_ISREG(status.st_mode):
                self._file_begin = status.st_size
            elif stat.S_ISFIFO(status.st_mode):
                self._begin_relay(is_stdout=os.path.samestat(os.fstat(_STDOUT), status))

    def _begin_relay(self, *, is_stdout: bool) -> None:
        self._reading, writing = os.pipe()
        self._program_ended = os.eventfd(0)
        relay = threading.Thread(target=self._pass_on, args=(True,), name="stderr", daemon=True)
        with signals.blocked(signal.valid_signals()):
            relay.start()
        self._relay = relay
        self.stderr = writing
        if is_stdout:
            self.stdout = writing

    def close(self) -> None:
        """Pass on what processes that the program left behind have printed since."""
        if self._relay is not None and not self._relay.is_alive():
            self._pass_on(False)

    def program_started(self) -> None:
        """Close this process's copy of the program's end of the pipe."""
        if self.stderr is not None:
            os.close(self.stderr)

    def program_ended(self, came: int) -> None:
        """Wait until all output is passed on, or a signal `came`, because the reader may hang."""
        if self._relay is not None:
            os.eventfd_write(self._program_ended, 1)
            while self._relay.is_alive() and not {*signals.ENDING}.intersection(signals.take(came)):
                self._relay.join(0.05)

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last `MORE_LINES` lines so far, without the messages that TensorFlow prints at each start."""
        data = self._passed
        if self._file_begin is not None:
            with contextlib.suppress(OSError), open(f"/proc/self/fd/{_STDERR}", "rb") as file:
                file.seek(max(self._file_begin, file.seek(0, os.SEEK_END) - _AT_ONCE))
                data = file.read()
        printed = WorkerOutput(lines=MORE_LINES)
        printed.take(data)
        return tuple(line for line in printed.last_lines if not line.startswith("gputopo: "))

    def _pass_on(self, waits: bool) -> None:
        """Pass on output: if `waits`, until the program has ended, else only what is available now."""
        while self._reading >= 0:
            handles = [self._reading, self._program_ended] if waits else [self._reading]
            ready = select.select(handles, [], [], None if waits else 0)[0]
            if self._reading in ready:
                data = os.read(self._reading, _AT_ONCE)
                if not data:
                    return
                self._passed = (self._passed + data)[-_AT_ONCE:]
                try:
                    while data:
                        select.select([], [_STDERR], [])  # another process may have made it non-blocking
                        data = data[os.write(_STDERR, data) :]
                except OSError:
                    os.close(self._reading)  # the program gets SIGPIPE, as without gputopo
                    self._reading = -1
            elif waits:
                waits = False
            else:
                return


def known_cause(lines: Sequence[str]) -> tuple[str, str | None] | None:
    """Return the cause that a program's last lines report, and a remedy; None if no message is known."""
    from gputopo.captures import failure_in, read_messages  # only a failure needs these modules
    from gputopo.findings import find

    for count in (LINES, MORE_LINES):
        for machine in read_messages("\n".join(lines[-count:])):
            for finding in find(machine):
                if finding.severity != "info":
                    return finding.says.partition(" reports ")[2] or finding.says, finding.remedy
    says = failure_in(lines[-LINES:])
    return None if says is None else (says, None)
