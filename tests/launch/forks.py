"""Runs Python programs on TensorFlow, each in a process of its own, without importing TensorFlow for each.

A server imports TensorFlow and touches no device, and forks for each program. A fork keeps only the thread
that forks, so the server counts its threads first: with one there is no lock that another could hold, and no
pool or runtime has started. With more (other releases) every program gets a fresh interpreter, as does one
with settings of its own in the environment: TensorFlow reads some of them when it is imported.
"""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.launch.train.worker_process import environment

ROOT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


def run_program(*arguments: str, timeout_s: float = 300.0, more: Mapping[str, str] | None = None) -> Done:
    """Run `-m MODULE ARGUMENTS` or `-c CODE ARGUMENTS` in the repository's root, and return what it printed.

    Its environment also has what is in `more`. Raises TimeoutExpired if it takes longer than `timeout_s`.
    """
    server = None if more else _server()
    return _fresh(arguments, timeout_s, more or {}) if server is None else server.run(arguments, timeout_s)


def _fresh(arguments: tuple[str, ...], timeout_s: float, more: Mapping[str, str]) -> Done:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(**more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class Server:
    """A `fork_server`."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.fork_server"],
            # NumPy's OpenBLAS would start threads at its import; TensorFlow does not use it.
            env=environment(OPENBLAS_NUM_THREADS="1"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.threads = int(self.process.stdout.readline() or 0)
        self.asking = threading.Lock()

    def run(self, arguments: tuple[str, ...], timeout_s: float) -> Done:
        reading, writing = os.pipe()
        with (
            TemporaryFile() as out,
            TemporaryFile() as err,
            open(reading, "rb", 0) as answer,
        ):
            files = [f"/proc/{os.getpid()}/fd/{number}" for number in (writing, out.fileno(), err.fileno())]
            self._ask(
                {
                    "arguments": arguments,
                    "environment": environment(),
                    "answer": files[0],
                    "streams": files[1:],
                }
            )
            program = int(answer.readline())
            os.close(writing)  # from here the answer ends when the process that waits for the program does
            if not select.select([answer], [], [], timeout_s)[0]:
                os.kill(program, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, timeout_s)
            code = int(answer.readline())
            for stream in (out, err):
                stream.seek(0)
            said = [stream.read().decode(errors="replace") for stream in (out, err)]
        return Done(arguments, code, *said)

    def _ask(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with self.asking:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Let it end, and wait for it."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()


_starting = threading.Lock()


def _server() -> Server | None:
    with _starting:
        return _started()


@functools.cache
def _started() -> Server | None:
    server = Server()
    if server.threads != 1:
        server.end()
        return None
    atexit.register(server.end)
    return server
