"""Runs Python programs in separate processes without importing their modules each time.

A server imports modules, and forks for each program. A fork has only the thread that forked. So a server with
more than one thread after its imports (`threads`) must not be used: another thread may have held a lock.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO

from tests.kit import door

ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


class Program:
    """A program that a server has started; the end of its `with` block kills it if it still runs."""

    def __init__(self, answer: IO[bytes]) -> None:
        self._answer = answer
        self.pid = int(answer.readline())
        self._code: int | None = None

    def wait(self, timeout_s: float = 60.0) -> int:
        """Return its exit code, as in subprocess. Raises TimeoutExpired."""
        if self._code is None:
            if not select.select([self._answer], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
            self._code = int(self._answer.readline())
            self._answer.close()
        return self._code

    def kill(self) -> None:
        """Kill it, unless its exit code was read."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.kill()
        if self._code is None:
            self._answer.close()


class Server:
    """A `fork_server` that has imported these modules, started in `environment` in the repository's root."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.fork_server", *modules],
                env=dict(environment),
                cwd=ROOT,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        self.threads = int(self._requests.recv(16) or 0)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> Program:
        """Start `-m MODULE ARGUMENTS` or `-c CODE ARGUMENTS` with these files as its standard streams."""
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._requests, [request], [writing, *streams])
        finally:
            os.close(writing)  # the answer now ends with the process that waits for the program
        return Program(open(reading, "rb", 0))

    @contextmanager
    def started(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: int | None = None
    ) -> Iterator[tuple[Program, IO[str]]]:
        """Start a program without input; return it and its output, except output to the file `out`."""
        reading, writing = os.pipe()
        with open(reading) as printed:
            with open(os.devnull) as nothing, open(writing, "wb") as pipe:
                streams = [nothing.fileno(), pipe.fileno() if out is None else out, pipe.fileno()]
                program = self.start(arguments, environment, streams)
            with program:
                yield program, printed

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        given: bytes = b"",
        out: int | None = None,
        err: int | None = None,
    ) -> Done:
        """Run a program with `given` as its standard input; return its output that went to no file.

        Raises TimeoutExpired.
        """
        with TemporaryFile() as source, TemporaryFile() as printed, TemporaryFile() as reported:
            source.write(given)
            source.seek(0)
            streams = [
                source.fileno(),
                printed.fileno() if out is None else out,
                reported.fileno() if err is None else err,
            ]
            with self.start(arguments, environment, streams) as program:
                code = program.wait(timeout_s)
            for stream in (printed, reported):
                stream.seek(0)
            written = [stream.read().decode(errors="replace") for stream in (printed, reported)]
        return Done(arguments, code, *written)

    @contextmanager
    def door(self, folder: Path) -> Iterator[str]:
        """Write a `python` into a folder, which makes this server run its programs; yield its path."""
        name = f"gputopo-tests-{os.getpid()}-{self.process.pid}"
        (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -IS {door.__file__} {name} "$@"\n')
        (folder / "python").chmod(0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind("\0" + name)
            listening.listen()
            thread = threading.Thread(target=self._serve, args=(listening,))
            thread.start()
            try:
                yield str(folder / "python")
            finally:
                listening.shutdown(socket.SHUT_RDWR)  # from here on, nothing is accepted
                thread.join()

    def _serve(self, listening: socket.socket) -> None:
        with suppress(OSError):  # at the end of listening
            while True:
                threading.Thread(target=self._answer, args=(listening.accept()[0],)).start()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(ConnectionError):  # the client was killed
            message, streams, _, _ = socket.recv_fds(client, door.MESSAGE_BYTES, 3)
            request = json.loads(message)
            with self.start(request["arguments"], request["environment"], streams) as program:
                for stream in streams:
                    os.close(stream)
                code = program.wait(300)
            client.send(b"%d" % (code if code >= 0 else 128 - code))

    def end(self) -> None:
        """Let the server end, and wait for it."""
        self._requests.close()
        self.process.wait()
