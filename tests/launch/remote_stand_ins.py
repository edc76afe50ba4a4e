"""Stands in for ssh, srun and mpirun: runs agents here, as its name says. Hosts are called by what they do.

`refused`, `denied` and `unknown` are hosts that ssh does not reach; `bare` has no Python.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

SAID = {
    "refused": "ssh: connect to host refused port 22: Connection refused",
    "denied": "root@denied: Permission denied (publickey).",
    "unknown": "Host key verification failed.",
}


def installed(folder: Path) -> Path:
    """Write the stand-ins into a folder for PATH, and return it."""
    folder.mkdir()
    for name in ("ssh", "srun", "mpirun"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {name} {folder} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def main(name: str, folder: str, arguments: list[str]) -> int:
    """Start what ssh, srun or mpirun would."""
    with (Path(folder) / f"{name}.log").open("a") as log:
        print("\0".join(arguments), file=log)
    if name == "ssh":
        return ssh(*arguments[arguments.index("--") + 1 :])
    command = arguments[arguments.index("env") :]
    if name == "srun":
        size = int(next(one for one in arguments if one.startswith("--ntasks=")).partition("=")[2])
        return ranks(command, [{"SLURM_NODEID": str(rank)} for rank in range(size)], all_read=True)
    size = int(arguments[arguments.index("-n") + 1])
    return ranks(command, [{"OMPI_COMM_WORLD_RANK": str(rank)} for rank in range(size)], all_read=False)


def ssh(host: str, command: str) -> int:
    """Run a command by the shell of a host, whose environment is its own."""
    if host in SAID:
        print(SAID[host], file=sys.stderr)
        return 255
    if host == "bare":
        command = command.replace(sys.executable, "/nowhere/python")
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "HOSTNAME": host}
    os.execve("/bin/sh", ["sh", "-c", command], environ)


def ranks(command: list[str], variables: list[dict[str, str]], *, all_read: bool) -> int:
    """Run a process for each rank; stdin goes to all, or to rank 0."""
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **own},
            stdin=subprocess.PIPE if all_read or rank == 0 else subprocess.DEVNULL,
        )
        for rank, own in enumerate(variables)
    ]
    threading.Thread(
        target=forward, args=([one.stdin for one in processes if one.stdin],), daemon=True
    ).start()
    return max(one.wait() for one in processes)


def forward(pipes: list[IO[bytes]]) -> None:
    """Copy stdin to the processes, its end too."""
    while data := os.read(0, 4096):
        for pipe in pipes:
            os.write(pipe.fileno(), data)
    for pipe in pipes:
        pipe.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
