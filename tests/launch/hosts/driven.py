"""A driver with agents that pretend: `python -m tests.launch.hosts.driven HOSTS BEHAVIOURS`."""

import os
import sys

from gputopo.launch.hosts import driver
from gputopo.launch.hosts.driver import Agents, commands, drive
from gputopo.launch.hosts.hostlists import read_hosts
from tests.launch.hosts import pretends


def drives(hosts: str, behaviours: str, *, folder: str | None = None) -> int:
    """Drive the hosts, `localhost` here and the others by ssh, and return the exit code."""
    agents = Agents(
        words=("-IS", pretends.__file__, behaviours),
        remote_python=sys.executable,
        folder=folder or os.getcwd(),
        environment=dict(os.environ),
    )
    started = commands(read_hosts("--hosts", hosts), agents)
    return drive(started, agents)


if __name__ == "__main__":
    driver.OTHERS_S = 0.2  # ranks that pretend do not hear of the end of rank 0
    sys.exit(drives(sys.argv[1], sys.argv[2]))
