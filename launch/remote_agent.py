"""What ssh runs on each host: `gputopo run` as a child process that does not outlive its driver.

`python -m gputopo.launch.remote_agent RANK NAME FOLDER WORDS...`: NAME is the host's in the lines that are
shown; WORDS are arguments of Python, such as `-m gputopo run`.

Its stdin is the tether: the first line is the secret of the job, each byte after it a signal for the process
of rank 0, and the end of file ends the process of every rank. Rank 0 writes to the stdout and stderr of ssh;
lines of the others go to stderr, with the host's name before them.

To the driver it writes on stderr that it has started, and how its process ended: see `report`. Its own exit
code is 0 then. It imports nothing but `signals` and `processes`, to start in a few milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from gputopo.launch.supervise import signals
from gputopo.probes.processes import tethered

MARK = "\x1e"  # ASCII's record separator, which begins a report
BEGUN = "GPUTOPO_BEGUN"  # names the file descriptor that is written to once the training has begun
SECRET = "GPUTOPO_SECRET"  # of the job, as `hosts.secret` takes it
# From SIGTERM to SIGKILL: workers have 5 s of it (`worker_life.Limits`), and rank 0 saves its result.
AGENT_LEADER_S, AGENT_OTHER_S = 15.0, 6.0
_DRAIN_S = 1.0  # for which output is read after the process has ended: a child of it may have the pipe open
_CHUNK_BYTES = 64 * 1024
_STDIN = 0


def begun(environ: Mapping[str, str]) -> None:
    """Tell the agent, if there is one, that all hosts have joined, and the training has begun here."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        os.write(int(environ[BEGUN]), b"1")


def is_driven(environ: Mapping[str, str]) -> bool:
    """Whether a driver has started this process: what rank 0 prints is seen where its own output is."""
    return BEGUN in environ


def report(ended: int | None = None, *, has_begun: bool = False) -> str:
    """Return the line for the driver: the agent has started, or its process ended by that exit code."""
    words = "started" if ended is None else f"ended {ended} {int(has_begun)}"
    return f"{MARK}gputopo {words}\n"


def main(arguments: Sequence[str]) -> int:
    """Run the process of this host to its end, and return the agent's exit code."""
    rank, name, folder, *words = arguments
    agent = _Agent(int(rank), name)
    _write(report().encode())
    agent.enter(folder)
    code = agent.run([sys.executable, *words], _line(_STDIN))
    return 0 if _write(report(code, has_begun=agent.has_begun).encode()) else code


class _Agent:
    def __init__(self, rank: int, name: str) -> None:
        self.has_begun = False
        self._rank = rank
        self._label = f"{name}: ".encode()
        self._killed_at: float | None = None

    def enter(self, folder: str) -> None:
        """Change to the driver's folder, or to the user's home where this host has no such one."""
        try:
            os.chdir(folder)
        except OSError as error:
            home = Path.home()
            with contextlib.suppress(OSError):
                os.chdir(home)
            self._relay(f"gputopo: {folder}: {error.strerror}; started in {Path.cwd()}\n".encode())

    def run(self, command: list[str], secret: str) -> int:
        """Run a command until it ends, or has been ended, and return its exit code, 128 + n for signal n."""
        with signals.caught(*signals.ENDING, signal.SIGCHLD) as came:
            return self._run(command, {SECRET: secret}, came)

    def _run(self, command: list[str], own: dict[str, str], came: int) -> int:
        begun_here, begun_there = os.pipe()
        leads = self._rank == 0
        process = subprocess.Popen(
            tethered(command, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=None if leads else subprocess.PIPE,
            stderr=None if leads else subprocess.STDOUT,
            env={**os.environ, **own, BEGUN: str(begun_there)},
            pass_fds=(begun_there,),
            start_new_session=True,
        )
        os.close(begun_there)
        watched = {came, begun_here, _STDIN}
        output = _Lines(process.stdout) if process.stdout is not None else None
        if output is not None:
            watched.add(output.handle)
        while process.poll() is None:
            ready = select.select(watched, [], [], self._patience())[0]
            if self._killed_at is not None and time.monotonic() >= self._killed_at:
                process.kill()
            for number in signals.take(came):
                if number != signal.SIGCHLD:
                    self._end(
                        process, number, AGENT_LEADER_S
                    )  # all hosts get it; rank 0 may take a last step
            if _STDIN in ready and not self._told(process, os.read(_STDIN, _CHUNK_BYTES)):
                watched.discard(_STDIN)
            if begun_here in ready:
                self.has_begun = bool(os.read(begun_here, 1)) or self.has_begun
                watched.discard(begun_here)
            if output is not None and output.handle in ready and not self._relay(output.take()):
                watched.discard(output.handle)
        if select.select([begun_here], [], [], 0)[0]:
            self.has_begun = bool(os.read(begun_here, 1)) or self.has_begun
        if output is not None:
            self._drain(output)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _patience(self) -> float | None:
        # A process in a call into a driver that hangs outlives SIGKILL: it is not asked all the time.
        return None if self._killed_at is None else max(0.1, self._killed_at - time.monotonic())

    def _told(self, process: subprocess.Popen[bytes], numbers: bytes) -> bool:
        """Do what the driver says; return whether it is still there."""
        if not numbers:
            self._end(process, signal.SIGTERM, AGENT_LEADER_S if self._rank == 0 else AGENT_OTHER_S)
        for number in numbers if self._rank == 0 else b"":
            process.send_signal(number)
        return bool(numbers)

    def _end(self, process: subprocess.Popen[bytes], number: int, within_s: float) -> None:
        process.send_signal(number)
        if self._killed_at is None:
            self._killed_at = time.monotonic() + within_s

    def _drain(self, output: "_Lines") -> None:
        end = time.monotonic() + _DRAIN_S
        while select.select([output.handle], [], [], max(0.0, end - time.monotonic()))[0]:
            if not self._relay(output.take()):
                return
        self._relay(output.rest())

    def _relay(self, lines: bytes | None) -> bool:
        """Write whole lines to stderr with the label of this host; return whether there may be more."""
        if lines:
            _write(b"".join(self._label + line for line in lines.splitlines(keepends=True)))
        return lines is not None


class _Lines:
    """Whole lines of a pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.handle = pipe.fileno()
        self._begun = b""

    def take(self) -> bytes | None:
        """Return the lines that have come; at the end of file the rest, then None."""
        data = os.read(self.handle, _CHUNK_BYTES)
        if not data:
            return self.rest() or None
        lines, newline, self._begun = (self._begun + data).rpartition(b"\n")
        return lines + newline

    def rest(self) -> bytes:
        """Return the line that was not ended."""
        rest, self._begun = self._begun, b""
        return rest and rest + b"\n"


def _line(handle: int) -> str:
    """Read a line, byte by byte: what follows it stays."""
    found = b""
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        found += byte
    return found.decode("ascii", "replace")


def _write(data: bytes) -> bool:
    """Write to stderr in one piece, so that lines of several hosts do not mix; whether it could be."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
    return not data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
