"""gputopo in separate processes: forks of one process that has imported what its commands need (see `forks`).

Do not use it to test what happens at a start: imports, early signals, closed streams.
"""

import atexit
import os
import pty
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import IO

from tests.kit.forks import Done, Program, Server


def run(
    *arguments: str, given: str = "", out: int | None = None, err: int | None = None, **environment: str
) -> Done:
    """Run `-m MODULE ARGUMENTS` or `-c CODE ARGUMENTS`. `out` and `err`: files for its output."""
    return server().run(arguments, {**os.environ, **environment}, 120, given.encode(), out, err)


def started(
    *arguments: str, out: int | None = None, **environment: str
) -> AbstractContextManager[tuple[Program, IO[str]]]:
    """Start a program; return it and its output, except output to the file `out`."""
    return server().started(arguments, {**os.environ, **environment}, out)


def on_a_terminal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run a program on a pseudo-terminal of 80 columns; return its exit code and what it shows there."""
    ours, theirs = pty.openpty()
    terminal = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40", **environment}
    try:
        program = server().start(arguments, {**os.environ, **terminal}, [theirs] * 3)
    finally:
        os.close(theirs)
    with program:
        shown = b"".join(_read_to_the_end(ours))
        return program.wait(60), shown.decode()


def _read_to_the_end(file: int) -> Iterator[bytes]:
    with open(file, "rb", 0) as terminal:
        while True:
            try:
                part = terminal.read(65536)
            except OSError:  # end of a pseudo-terminal on Linux
                return
            if not part:
                return
            yield part


@cache
def server() -> Server:
    """Return the process that is forked; the first call starts it."""
    server = Server(["tests.kit.preloaded"], os.environ)
    assert server.threads == 1
    atexit.register(server.end)
    return server
