"""A launcher of one of several hosts: `launchers.py RANK HOSTS WHAT OPTIONS...`.

Its worker and server pretend, or with `trains` are real: forks of this process if it has TensorFlow loaded.
WHAT: JSON with `trains` or the behaviour of a `worker` that pretends (see `misbehave`), `silent_s`: after
which a host is gone, `machine`: a scenario of the kit, whose GPUs this host has.
"""

import atexit
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from gputopo.cli import run_command
from gputopo.launch.hosts import HostTimeouts, RendezvousClient, RendezvousServer
from gputopo.launch.jobs import serving
from gputopo.launch.supervise import watchdog, worker_process
from gputopo.probes.processes import end_with_parent
from tests.cli.conftest import CORE, pretending
from tests.kit import fork_server
from tests.kit.faults import selected
from tests.kit.nvml import FakeNvml, installed
from tests.kit.sysfs import write_tree
from tests.kit_workers import misbehave

SERVER = "gputopo.launch.train.server"
# Its arguments are the spec, the rank and the descriptor.
SERVES = f"""
import os, sys
words = [sys.executable, "-IS", {misbehave.__file__!r}, "serves", sys.argv[1], sys.argv[3]]
os.execv(sys.executable, words)
"""


class Forked:
    """In the place of the process of `-m MODULE ARGUMENTS`: a fork, with the modules of this process."""

    returncode: int | None = None

    def __init__(
        self, command: list[str], *, stdout: int, pass_fds: Sequence[int], env: dict[str, str], **_: Any
    ) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for caught in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(caught, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if not end_with_parent(parent):
            os._exit(1)
        streams = [os.open(os.devnull, os.O_RDONLY), os.dup(stdout), os.dup(stdout)]
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *pass_fds, *streams}:
            with suppress(OSError):
                os.close(number)
        atexit._clear()  # what is this process's to clean
        try:
            fork_server.run({"environment": env, "arguments": command[command.index("-m") :]}, streams)
        finally:  # an exception; how the program ends otherwise does not return
            traceback.print_exc()
            os._exit(1)


def main(rank: str, hosts: str, what: str, *options: str) -> int:
    """Take part in the training of the hosts of this one, and return the exit code."""
    given = json.loads(what)
    with ExitStack() as doubles:
        if not given.get("trains"):
            _pretend(given, Path(doubles.enter_context(TemporaryDirectory())))
        elif "tensorflow" in sys.modules:
            vars(worker_process)["subprocess"] = SimpleNamespace(Popen=Forked, DEVNULL=None)
        words = ["run", "--hosts", hosts, "--node-rank", rank]
        words += [] if "--" in options else ["--model", "trivial"]
        if "machine" in given:
            scenario = selected(given["machine"])
            folder = doubles.enter_context(TemporaryDirectory())
            os.environ["GPUTOPO_ROOT"] = str(write_tree(scenario, Path(folder)))
            doubles.enter_context(installed(FakeNvml(scenario)))
        else:
            words += ["--cpu", "--num-gpus", str(len(hosts.split(",")))]
        return run_command([*words, *options])


def _pretend(given: dict[str, Any], folder: Path) -> None:
    """Let what a launcher starts pretend, and hosts notice sooner that one is gone."""
    patience = HostTimeouts(silent_s=given.get("silent_s", 5.0), every_s=0.05, retry_s=0.05)
    for kind in (RendezvousClient, RendezvousServer):
        assert kind.__init__.__kwdefaults__ is not None
        kind.__init__.__kwdefaults__["patience"] = patience
    watchdog.LOOK_S = watchdog.SIGN_S = 0.1
    serving.LIMITS = replace(serving.LIMITS, after_term=1.0)  # what is stopped does not end by SIGTERM
    for number, (worker, module) in enumerate(((given.get("worker", "hangs"), CORE), (SERVES, SERVER))):
        (folder / str(number)).mkdir()
        sys.executable = pretending(folder / str(number), worker, module)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
