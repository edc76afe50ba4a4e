"""What ssh runs on each host: a program as a child process that does not outlive its driver.

`python -m gputopo.launch.remote_agent FOLDER COMMAND...`

Its stdin is the tether. The first line is JSON of variables for the program, so that no command line shows
them; each byte after it is a signal for the program, and the end of file ends the program. To the driver it
writes on stderr that it has started, and the exit code of the program: see `report`. It imports little, to
start in a few milliseconds.
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
from gputopo.probes.processes import tethered

MARK = "\x1e"  # ASCII's record separator, which begins a report
DRIVEN = "GPUTOPO_DRIVEN"  # set for a program that a driver has started
SECRET = "GPUTOPO_SECRET"  # of the job, as `hosts.secret` takes it
# From SIGTERM to SIGKILL: workers have 5 s of it (`worker_life.Limits`), and rank 0 saves its result.
AGENT_END_S = 15.0
_CHUNK_BYTES = 64 * 1024
_STDIN = 0


def is_driven(environ: Mapping[str, str]) -> bool:
    """Whether a driver has started this process: what rank 0 prints is seen where its own output is."""
    return DRIVEN in environ


def report(words: str) -> str:
    """Return a line for the driver: `started`, `ended 3` (the exit code)."""
    return f"{MARK}gputopo {words}\n"


def main(arguments: Sequence[str]) -> int:
    """Run the program of this host to its end; return 0, or the exit code of a program nobody waits for."""
    folder, *command = arguments
    _write(report("started"))
    given = json.loads(_line(_STDIN) or "{}")
    _enter(folder)
    with signals.caught(*signals.ENDING, signal.SIGCHLD) as came:
        code = _run(command, {**os.environ, **given, DRIVEN: "1"}, came)
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


def _run(command: list[str], environ: Mapping[str, str], came: int) -> int:
    """Run a command until it ends, or has been ended, and return its exit code, 128 + n for signal n."""
    process = subprocess.Popen(
        tethered(command, signal.SIGTERM), stdin=subprocess.DEVNULL, env=environ, start_new_session=True
    )
    watched, killed_at = {came, _STDIN}, None
    while process.poll() is None:
        # A process in a call into a driver that hangs outlives SIGKILL: it is not asked all the time.
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
            killed_at = killed_at or time.monotonic() + AGENT_END_S
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _line(handle: int) -> bytes:
    """Read a line, byte by byte: what follows it stays."""
    found = b""
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        found += byte
    return found


def _write(text: str) -> bool:
    """Write to stderr, in one piece if it can be; return whether it could be."""
    data = text.encode(errors="replace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
    return not data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
