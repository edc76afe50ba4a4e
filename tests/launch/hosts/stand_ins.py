"""Stands in for ssh: runs agents here. Hosts are called by what they do.

`refused`, `denied` and `unknown` are hosts that ssh does not reach; `bare` has no Python; `hangs` does not
answer.
"""

import os
import sys
from pathlib import Path

SAID = {
    "refused": "ssh: connect to host refused port 22: Connection refused",
    "denied": "root@denied: Permission denied (publickey).",
    "unknown": "Host key verification failed.",
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
        print(SAID[host], file=sys.stderr)
        return 255
    if host == "hangs":
        command = "exec sleep 60"
    if host == "bare":
        command = command.replace("/python -P", "/nowhere/python -P")
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "HOSTNAME": host}
    os.execve("/bin/sh", ["sh", "-c", command], environ)


if __name__ == "__main__":
    sys.exit(ssh(*sys.argv[sys.argv.index("--") + 1 :]))
