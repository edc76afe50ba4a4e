"""The process that ssh starts on each host: it runs a program that does not outlive the driver.

`python -m gputopo.launch.hosts.agent FOLDER COMMAND...`

The first line of its stdin is JSON with variables for the program, so that no command line shows them. Each
byte after that line is a signal for the program. The end of stdin ends the program. On stderr it reports to
the driver that it has started, and the exit code of the program: see `report`. It imports few modules, so
that it starts within milliseconds.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputopo.launch.supervise import signals
from gputopo.probes import tethered

MARK = "\x1e"  # ASCII's record separator, which starts a report
DRIVEN = "GPUTOPO_DRIVEN"  # set for a program that a driver has started
SECRET = "GPUTOPO_SECRET"  # secret of the job, which `hosts.secret` removes from the environment
# From SIGTERM to SIGKILL. Not measured; chosen because workers get 5 s of it (`worker_life.Limits`), and then
# rank 0 saves its result.
AGENT_END_S = 15.0
_CHUNK_BYTES = 64 * 1024
_STDIN = 0


def is_driven(environ: Mapping[str, str]) -> bool:
    """Whether a driver has started this process. If so, the user sees the output of rank 0."""
    return DRIVEN in environ


def report(words: str) -> str:
    """Return a line for the driver: `started`, or `ended 3` with the exit code."""
    return f"{MARK}gputopo {words}\n"


def main(arguments: Sequence[str], *, end_s: float = AGENT_END_S) -> int:
    """Run the program of this host to its end; return 0, or its exit code if the driver is gone.

    `end_s`: seconds from SIGTERM to SIGKILL.
    """
    folder, *command = arguments
    _write(report("started"))
    given = json.loads(_line(_STDIN) or "{}")
    _enter(folder)
    with signals.caught(*signals.ENDING, signal.SIGCHLD) as came:
        code = _run(command, {**os.environ, **given, DRIVEN: "1"}, came, end_s)
    return 0 if _write(report(f"ended {code}")) else code


def _enter(folder: str) -> None:
    """Change to the driver's folder, or to the user's home if this host has no such folder."""
    try:
        os.chdir(folder)
    except OSError as error:
        home = Path.home()
        with contextlib.suppress(OSError):
            os.chdir(home)
        _write(f"gputopo: {folder}: {error.strerror}; started in {Path.cwd()}\n")


def _run(command: list[str], environ: Mapping[str, str], came: int, end_s: float) -> int:
    """Run a command until it ends or is ended; return its exit code, 128 + n for signal n."""
    process = subprocess.Popen(
        tethered(command, signal.SIGTERM), stdin=subprocess.DEVNULL, env=environ, start_new_session=True
    )
    watched, killed_at = {came, _STDIN}, None
    while process.poll() is None:
        # A process that hangs in a driver call survives SIGKILL, so it is polled only every 0.1 s.
        patience = None if killed_at is None else max(0.1, killed_at - time.monotonic())
        ready = select.select(watched, [], [], patience)[0]
        if killed_at is not None and time.monotonic() >= killed_at:
            process.kill()
        ending = [number for number in signals.take(came) if number != signal.SIGCHLD]
        if _STDIN in ready:
            told = os.read(_STDIN, _CHUNK_BYTES)
            for number in told:
                process.send_signal(number)
            if not told:
                watched.discard(_STDIN)
                ending.append(signal.SIGTERM)
        for number in ending:
            process.send_signal(number)
            killed_at = killed_at or time.monotonic() + end_s
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _line(handle: int) -> bytes:
    """Read a line byte by byte, so that the bytes after it stay in the pipe."""
    line = b""
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        line += byte
    return line


def _write(text: str) -> bool:
    """Write to stderr, in one piece if possible; return whether everything was written."""
    data = text.encode(errors="replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
    return not data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
