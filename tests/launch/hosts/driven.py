"""A driver whose hosts pretend: `python -m tests.launch.hosts.driven FOLDER HOSTS BEHAVIOURS`."""

import sys
from pathlib import Path

from gputopo.launch import HostOptions
from gputopo.launch.hosts import DriverTimeouts, read_hosts, start_hosts
from tests.launch.hosts import pretends

# Ranks that pretend do not hear of the end of rank 0.
TIMEOUTS = DriverTimeouts(leader_s=0.2, others_s=0.2, drain_s=0.2)
# Python as a host has it: an agent is one, and `-m gputopo BEHAVIOURS` pretends.
_PYTHON = """\
#!/bin/sh
test "$3" = gputopo.launch.hosts.agent && exec {python} "$@"
shift 3
exec {python} -IS {pretends} "$@"
"""


def installed(folder: Path) -> Path:
    """Write the Python of all hosts into a folder, and return it."""
    python = folder / "python"
    python.write_text(_PYTHON.format(python=sys.executable, pretends=pretends.__file__))
    python.chmod(0o755)
    return python


def drives(hosts: str, *words: str) -> int:
    """Start the hosts, `localhost` here and the others by ssh, and return the exit code."""
    options = HostOptions(remote_python=sys.executable)
    return start_hosts(read_hosts("--hosts", hosts), options, words, TIMEOUTS)


if __name__ == "__main__":
    sys.executable, *words = sys.argv[1:]
    sys.exit(drives(*words))
