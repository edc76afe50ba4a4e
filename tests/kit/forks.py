"""Runs Python programs, each in a process of its own, without importing what they need for each of them.

A server imports modules, and forks for each program. A fork has only the thread that forked, so a server that
has more than one after its imports (`threads`) must not be used: another thread may have held a lock.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


class Server:
    """A `fork_server` with these modules imported, started in `environment` in the repository's root."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fork_server", *modules],
            env=dict(environment),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.threads = int(self.process.stdout.readline() or 0)
        self._lock = threading.Lock()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float, given: bytes = b""
    ) -> Done:
        """Run `-m MODULE ARGUMENTS` or `-c CODE ARGUMENTS` with `given` as its standard input.

        Raises TimeoutExpired.
        """
        reading, writing = os.pipe()
        with (
            TemporaryFile() as source,
            TemporaryFile() as out,
            TemporaryFile() as err,
            open(reading, "rb", 0) as answer,
        ):
            source.write(given)
            source.flush()
            numbers = (writing, source.fileno(), out.fileno(), err.fileno())
            files = [f"/proc/{os.getpid()}/fd/{number}" for number in numbers]
            self._request(
                {
                    "arguments": list(arguments),
                    "environment": dict(environment),
                    "answer": files[0],
                    "streams": files[1:],
                }
            )
            program = int(answer.readline())
            os.close(writing)  # from here the answer ends when the process that waits for the program does
            if not select.select([answer], [], [], timeout_s)[0]:
                os.kill(program, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s)
            code = int(answer.readline())
            for stream in (out, err):
                stream.seek(0)
            written = [stream.read().decode(errors="replace") for stream in (out, err)]
        return Done(arguments, code, *written)

    def _request(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with self._lock:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Let it end, and wait for it."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()
