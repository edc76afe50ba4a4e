"""The process behind `forks.Server`: imports the modules in its arguments, then runs each program in a fork.

Its standard input is a socket. First it writes how many threads it has after the imports. Then it reads
messages in JSON: {"arguments": ["-m", MODULE, ...] or ["-c", CODE, ...], "environment": all of it}. Each
message has four files: one for the program's process id and, when it has ended, its exit code; and the
program's standard streams. The server ends at the end of its input.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from typing import Any, NoReturn

from tests.kit.door import MESSAGE_BYTES

FILES = 4


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    requests = socket.socket(fileno=os.dup(0))
    requests.send(b"%d" % len(os.listdir("/proc/self/task")))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    gc.collect()
    gc.freeze()  # otherwise the first collection in each fork would copy all shared memory
    waiting: list[int] = []
    while (received := socket.recv_fds(requests, MESSAGE_BYTES, FILES))[0]:
        message, (answer, *streams), _, _ = received
        waiting = [child for child in waiting if os.waitpid(child, os.WNOHANG)[0] == 0]
        if child := os.fork():
            waiting.append(child)
            for file in (answer, *streams):
                os.close(file)
            continue
        requests.close()  # from here on, this process waits for one program
        if program := os.fork():
            for file in streams:
                os.close(file)
            os.write(answer, b"%d\n" % program)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
            os._exit(0)
        os.close(answer)
        run(json.loads(message), streams)
    for child in waiting:
        os.waitpid(child, 0)


def run(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Become the program of a request, with these files as standard streams. Call it in a fork."""
    try:
        _run(request, streams)
    except SystemExit as end:
        if isinstance(end.code, str):  # a message to print
            raise
        _end(end.code or 0)
    _end(0)


def _run(request: dict[str, Any], streams: list[int]) -> None:
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    _open_streams()
    kind, program, *arguments = request["arguments"]
    if kind == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def _end(code: int) -> NoReturn:
    """Exit as an interpreter does, but do not free the modules, which takes longer than most programs."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(ValueError):  # it is closed
        sys.stdout.flush()
    os._exit(code)


def _open_streams() -> None:
    """Open the standard streams as a new interpreter does: on a terminal, lines are not buffered."""
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
    )


if __name__ == "__main__":
    main()
