"""Runs Python programs on TensorFlow, each in its own process, without importing TensorFlow for each.

They are forks of a server that has imported TensorFlow and the training core and touched no device: no pool
or runtime has started.
A program with settings of its own in the environment gets a fresh interpreter, since TensorFlow reads some of
them when it is imported; so does every program where the import starts threads (other releases).
"""

import atexit
import functools
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.forks import ROOT, Done, Server
from tests.launch.train.worker_process import environment

_IMPORTED = (
    "keras",
    "tensorflow",
    "gputopo.launch.compare.methods",
    "gputopo.launch.compare.multi_worker",
    "gputopo.launch.compare.strategies",
    "gputopo.launch.train.lifecycle.evaluating",
    "gputopo.launch.train.training",
    "gputopo.launch.train.worker",
)


def run_program(
    *arguments: str, timeout_s: float = 300.0, more: Mapping[str, str] | None = None, fresh: bool = False
) -> Done:
    """Run `-m MODULE ARGUMENTS` or `-c CODE ARGUMENTS`; `more`: its environment variables.

    `fresh`: in an interpreter that has imported nothing, as with `more`. Raises TimeoutExpired if it takes
    longer than `timeout_s`.
    """
    forks = None if more or fresh else server()
    if forks is not None:
        return forks.run(arguments, environment(), timeout_s)
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(**more or {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def answer_of(*arguments: str, **how: Any) -> Any:
    """Run a program as `run_program` does, and return the JSON that it printed last."""
    done = run_program(*arguments, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


_WORKER = """
import os, sys
from gputopo.launch.train import worker
sys.exit(worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))]))
"""


@contextmanager
def forked_workers(folder: Path) -> Iterator[Callable[[Path, int], Sequence[str]]]:
    """Make the command of a worker of the core; where nothing can be forked, the real one."""
    forks = server()
    if forks is None:
        module = ("-P", "-m", "gputopo.launch.train.worker")
        yield lambda spec, events: (sys.executable, *module, str(spec), str(events))
        return
    with forks.door(folder) as python:
        yield lambda spec, events: (python, "-c", _WORKER, str(spec), f"/proc/self/fd/{events}")


_NUMBERED = """
import os, runpy, sys
files, _, module, *arguments, number = sys.argv[1:]  # the door takes -P out
sys.argv = [module, *arguments, str(os.open(files + number, os.O_WRONLY))]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@contextmanager
def forking_python(folder: Path) -> Iterator[str]:
    """Write a Python into a folder that forks for `-P -m MODULE ARGUMENTS FILE`; yield its path.

    FILE is the number of an open file. Any other command is run by the real Python, as is every one where
    nothing can be forked.
    """
    forks = server()
    if forks is None:
        yield sys.executable
        return
    with forks.door(folder) as door:
        python = folder / "forking"
        python.write_text(
            "#!/bin/sh\n"
            'case "$1 $2" in\n'
            f'"-P -m") exec {door} -c {shlex.quote(_NUMBERED)} /proc/self/fd/ "$@" ;;\n'
            f'*) exec {sys.executable} "$@" ;;\n'
            "esac\n"
        )
        python.chmod(0o755)
        yield str(python)


_starting = threading.Lock()


def server() -> Server | None:
    """Return the server, started by the first call; None: nothing can be forked where it is imported."""
    with _starting:
        return _started()


@functools.cache
def _started() -> Server | None:
    # NumPy's OpenBLAS would start threads at its import; TensorFlow does not use it.
    server = Server(_IMPORTED, environment(OPENBLAS_NUM_THREADS="1"))
    if server.threads != 1:
        server.end()
        return None
    atexit.register(server.end)
    return server
