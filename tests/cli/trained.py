"""Workers that really train, and programs: forks of a process that has TensorFlow loaded.

In their place the launcher starts a small client, with the pipes, the session and the exit code of what it
stands for. What signals do is for tests that start everything anew.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gputopo.cli import run_command
from gputopo.cli.run import autotune, screen, sweep, training
from gputopo.launch.jobs.run import worker_command
from gputopo.values import schema
from gputopo.values.run.result import Result
from tests.kit.fork_server import MESSAGE_BYTES
from tests.kit.forks import Server
from tests.kit.machines import ReadingHere
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS
from tests.launch.forks import server

WITH_WORKERS = (autotune, screen, sweep, training)
"""The modules of commands that start a worker."""

_TIMEOUT_S = 300.0
# The events go through /proc: the server takes the three standard streams alone.
_CLIENT = """
import json, os, socket, sys
door, *words = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
    forks.connect("\\0" + door)
    words = [word.replace("/proc/self", f"/proc/{os.getpid()}") for word in words]
    request = {"arguments": ["-c", *words], "environment": dict(os.environ)}
    socket.send_fds(forks, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(forks.recv(16)))
"""
_WORKER = """
import os, sys
from gputopo.launch.train import worker
sys.exit(worker.main([sys.argv[1], str(os.open(sys.argv[2], os.O_WRONLY))]))
"""


@contextlib.contextmanager
def without_a_gpu(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Make this machine one without a GPU, `folder` the current one and its `home` that of gputopo.

    Workers are forks. The patches may be added to.
    """
    root = folder / "root"
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    no_driver = FakeNvml(SCENARIOS["four"], init_code=9)  # NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.MonkeyPatch.context() as patch, installed(no_driver), _forked() as command:
        patch.setattr("gputopo.probes.collect.NvmlReading", ReadingHere)
        patch.setenv("GPUTOPO_ROOT", str(root))
        patch.setenv("GPUTOPO_HOME", str(folder / "home"))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.chdir(folder)
        for module in WITH_WORKERS:
            patch.setattr(module, "worker_command", command)
        yield patch


def result_of(folder: Path, *options: str) -> Result:
    """Return what `gputopo run` with these options files in `folder`'s home."""
    before = set(folder.glob("home/runs/*/result.json"))
    with without_a_gpu(folder):
        assert run_command(["run", *options]) == 0
    (file,) = set(folder.glob("home/runs/*/result.json")) - before
    return schema.decode(file.read_bytes(), Result, origin="result.json")


@contextlib.contextmanager
def _forked() -> Iterator[Callable[[Path, int], Sequence[str]]]:
    """Make the command of a worker; where nothing can be forked, the real one."""
    with program(_WORKER) as command:
        if command[1] == "-c":
            yield worker_command
        else:
            yield lambda spec, events: (*command, str(spec), f"/proc/self/fd/{events}")


@contextlib.contextmanager
def program(code: str) -> Iterator[tuple[str, ...]]:
    """Make the command of a program in Python; where nothing can be forked, a fresh interpreter."""
    forks = server()
    if forks is None:
        yield sys.executable, "-c", code
        return
    door = f"gputopo-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("\0" + door)
        listening.listen()
        thread = threading.Thread(target=_serve, args=(listening, forks))
        thread.start()
        try:
            yield sys.executable, "-IS", "-c", _CLIENT, door, code
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # from here nothing is accepted
            thread.join()


def _serve(listening: socket.socket, forks: Server) -> None:
    with contextlib.suppress(OSError):  # at the end of listening
        while True:
            threading.Thread(target=_run, args=(listening.accept()[0], forks)).start()


def _run(client: socket.socket, forks: Server) -> None:
    with client, contextlib.suppress(ConnectionError):  # a client that was ended
        message, streams, _, _ = socket.recv_fds(client, MESSAGE_BYTES, 3)
        request = json.loads(message)
        with forks.start(request["arguments"], request["environment"], streams) as program:
            for stream in streams:
                os.close(stream)
            code = program.wait(_TIMEOUT_S)
        client.send(b"%d" % (code if code >= 0 else 128 - code))
