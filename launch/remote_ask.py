"""Asks hosts, each by a process of its own through ssh or srun, line by line: lines of JSON on its pipes.

A host that cannot be reached, fails or hangs costs itself: its error has the words of ssh, srun or Python.
"""

import contextlib
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.remote_start import SSH, HostCommand, not_started, passed_on
from gputopo.values.errors import GputopoError, HardwareError

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE = 64  # processes that begin at the same time; not measured
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")
_END_S = 5.0  # for a process whose stdin was closed; not measured
_CHUNK_BYTES = 1024 * 1024
_MAX_BYTES = 64 * 1024 * 1024  # of a line; the machine of a host with 16 GPUs is below 1 MiB


def questions(
    hosts: Sequence[HostAddress],
    words: Callable[[int], Sequence[str]],
    python: tuple[str, str],
    environ: Mapping[str, str],
    is_here: Callable[[str], bool],
) -> list[HostCommand]:
    """Return the commands that ask each host. `words`: of Python, by rank; `python`: of this host, of others.

    Within a Slurm step other hosts are asked by steps beside it.
    """
    found = []
    for rank, host in enumerate(hosts):
        name = str(host.name)
        here = is_here(name)
        command = (python[0] if here else python[1], *words(rank))
        if not here and "SLURM_STEP_ID" in environ:
            command = (*_SRUN, name, *command)
        elif not here:
            command = (*SSH, "--", name, shlex.join(("env", *passed_on(environ), *command)))
        found.append(HostCommand(rank=rank, host=name, command=command, remote=not here))
    return found


class HostProcess:
    """The process by which a host answers; a context manager that ends it, by the end of its stdin first."""

    def __init__(self, start: HostCommand) -> None:
        """Start it. Raises HardwareError where there is no such program."""
        self.start = start
        self._rest = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
            )
        except OSError as error:
            self._stderr.close()
            raise HardwareError(f"cannot start {start.command[0]}: {error.strerror}", "install it") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def line(self, within_s: float, python: str) -> bytes:
        """Return its next line. Raises HardwareError if it ends, has none in that time, or one too long."""
        until_s = time.monotonic() + within_s
        while b"\n" not in self._rest:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self._stdout], [], [], left_s)[0]:
                raise HardwareError(
                    f"{self.start.host} did not answer within {within_s:g} s",
                    f"see what hangs there: ssh {self.start.host}; --join-timeout waits longer",
                )
            data = self._stdout.read(_CHUNK_BYTES)
            if not data:
                code = self._process.wait()
                self._stderr.seek(0)
                lines = self._stderr.read().decode(errors="replace").splitlines()
                raise not_started(self.start, code if code >= 0 else 128 - code, lines, python)
            self._rest += data
            if len(self._rest) > _MAX_BYTES:
                raise HardwareError(
                    f"{self.start.host} answered with a line of more than {_MAX_BYTES >> 20} MiB",
                    "see what its shell prints",
                )
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def tell(self, line: bytes) -> None:
        """Write a line to its stdin; one that has ended does not hear it."""
        with contextlib.suppress(OSError):
            self._stdin.write(line + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._stderr.close()


def answers(of: Iterable[K], ask: Callable[[K], T]) -> dict[K, T | GputopoError]:
    """Return what each of several hosts answers, asked at the same time, or why it does not."""

    def one(host: K) -> T | GputopoError:
        try:
            return ask(host)
        except GputopoError as error:
            return error

    hosts = list(of)
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(hosts)))) as pool:
        return dict(zip(hosts, pool.map(one, hosts), strict=True))
