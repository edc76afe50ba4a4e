"""A launcher of one of two hosts whose worker and server pretend: `launchers.py RANK PORT WHAT OPTIONS...`.

WHAT: JSON with the behaviour of `worker` (see `misbehave`), `silent_s`: after which a host is
gone, `version`: of gputopo on this host, `disk_bytes`: of a disk that is soon full, `machine`: a scenario of
the kit, whose GPUs this host has; `is_quick`: it looks who has claimed them before another one has.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import gputopo
from gputopo.cli import run_command
from gputopo.cli.run import training
from gputopo.launch.hosts.messages import PATIENCE
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.launch.jobs import claims, serving
from gputopo.launch.supervise import watchdog
from tests.kit.faults import selected
from tests.kit.nvml import FakeNvml, installed
from tests.kit.sysfs import write_tree
from tests.kit_workers import misbehave
from tests.launch.train.small_disk import small_disk


def main(rank: str, port: str, what: str, *options: str) -> int:
    """Take part in the training of the hosts of this one, and return the exit code."""
    given = json.loads(what)
    patience = replace(PATIENCE, silent_s=given.get("silent_s", 5.0), every_s=0.05, retry_s=0.05)
    for kind in (RendezvousClient, RendezvousServer):
        assert kind.__init__.__kwdefaults__ is not None
        kind.__init__.__kwdefaults__["patience"] = patience
    watchdog.LOOK_S = watchdog.SIGN_S = 0.1
    gputopo.__version__ = given.get("version", gputopo.__version__)

    def pretending(behaviour: str, file: Path, events_fd: int) -> Sequence[str]:
        return (sys.executable, "-IS", misbehave.__file__, behaviour, str(file), str(events_fd))

    def worker(file: Path, events_fd: int) -> Sequence[str]:
        return pretending(given.get("worker", "hangs"), file, events_fd)

    def server(file: Path, rank: int, events_fd: int) -> Sequence[str]:
        return pretending("serves", file, events_fd)

    vars(training)["worker_command"], vars(serving)["server_command"] = worker, server
    hosts = f"localhost:{port},localhost"
    words = ["run", "--hosts", hosts, "--node-rank", rank]
    words += [] if "--" in options else ["--model", "trivial"]
    with ExitStack() as doubles:
        if "disk_bytes" in given:
            doubles.enter_context(small_disk(given["disk_bytes"]))
        if "machine" in given:
            scenario = selected(given["machine"])
            folder = doubles.enter_context(TemporaryDirectory())
            os.environ["GPUTOPO_ROOT"] = str(write_tree(scenario, Path(folder)))
            doubles.enter_context(installed(FakeNvml(scenario)))
            if given.get("is_quick"):
                vars(claims)["claimed_by_others"] = lambda machine, folder: {}
        else:
            words += ["--cpu", "--num-gpus", "2"]
        return run_command([*words, *options])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
