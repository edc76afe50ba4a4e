"""Stands in for ssh: runs agents here. Hosts are called by what they do.

Those of `SAID` are not reached, or have no gputopo; `bare` has no Python; `hangs` does not answer;
`elsewhere` has no folder of the driver.
"""

import os
import sys
from pathlib import Path

# Exit code, and what ssh or a shell says.
SAID = {
    "refused": (255, "ssh: connect to host refused port 22: Connection refused"),
    "denied": (255, "root@denied: Permission denied (publickey)."),
    "unnamed": (255, "ssh: Could not resolve hostname unnamed: Name or service not known"),
    "old": (1, "/there/python: No module named gputopo.launch.hosts.agent"),
    "killed": (137, ""),
}


def installed(folder: Path) -> Path:
    """Write the stand-in into a folder for PATH, and return it."""
    folder.mkdir()
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} "$@"\n')
    (folder / "ssh").chmod(0o755)
    return folder


def ssh(host: str, command: str) -> int:
    """Run a command by the shell of a host, whose environment is its own."""
    if host in SAID:
        code, text = SAID[host]
        print(text, file=sys.stderr)
        return code
    if host == "hangs":
        command = "exec cat >/dev/null"  # until its stdin ends
    if host == "elsewhere":
        command = command.replace(os.getcwd(), "/not/there")
    if host == "bare":
        command = command.replace("/python -P", "/nowhere/python -P")
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "HOSTNAME": host}
    os.execve("/bin/sh", ["sh", "-c", command], environ)


if __name__ == "__main__":
    sys.exit(ssh(*sys.argv[sys.argv.index("--") + 1 :]))
