"""The process behind `forks.Server`: imports the modules of its arguments, then runs each program in a fork.

It writes first how many threads it has after the imports. Then it reads lines of JSON:
{"arguments": ["-m", MODULE, ...] or ["-c", CODE, ...], "environment": all of it, "answer": a file for the
program's process id and, when it has ended, its exit code, "streams": [files for its input, output, errors]}.
It ends when there is nothing more to read.
"""

import gc
import importlib
import json
import os
import runpy
import sys
from typing import Any


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    requests = os.fdopen(os.dup(0), "rb")
    os.write(1, b"%d\n" % len(os.listdir("/proc/self/task")))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    gc.freeze()  # or the first collection in each fork would copy all that it shares with us
    waiting: list[int] = []
    while line := requests.readline():
        request = json.loads(line)
        waiting = [child for child in waiting if os.waitpid(child, os.WNOHANG)[0] == 0]
        if child := os.fork():
            waiting.append(child)
            continue
        answer = os.open(request["answer"], os.O_WRONLY)  # from here in a process that waits for one program
        if program := os.fork():
            os.write(answer, b"%d\n" % program)
            os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
            os._exit(0)
        requests.close()
        os.close(answer)
        _run(request)
        return
    for child in waiting:
        os.waitpid(child, 0)


def _run(request: dict[str, Any]) -> None:
    for number, (path, mode) in enumerate(
        zip(request["streams"], (os.O_RDONLY, *[os.O_WRONLY | os.O_APPEND] * 2), strict=True)
    ):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    kind, program, *arguments = request["arguments"]
    if kind == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
