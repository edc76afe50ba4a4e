"""A driver with agents that pretend: `python -m tests.launch.remote_driven HOSTS BEHAVIOURS`."""

import os
import sys

from gputopo.launch import remote_start
from gputopo.launch.hosts.hostlists import read_hosts
from gputopo.launch.remote_start import Agents, commands, drive
from tests.launch import remote_pretends


def drives(hosts: str, behaviours: str, *, folder: str | None = None) -> int:
    """Drive the hosts, `localhost` here and the others by ssh, and return the exit code."""
    agents = Agents(
        words=("-IS", remote_pretends.__file__, behaviours),
        remote_python=sys.executable,
        folder=folder or os.getcwd(),
        environment=dict(os.environ),
    )
    started = commands(read_hosts("--hosts", hosts), agents)
    return drive(started, agents, show=says, note=lambda line: says(f"gputopo: {line}\n"))


def says(text: str) -> None:
    """Write to stderr."""
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    remote_start.OTHERS_S = 0.2  # ranks that pretend do not hear of the end of rank 0
    sys.exit(drives(sys.argv[1], sys.argv[2]))
