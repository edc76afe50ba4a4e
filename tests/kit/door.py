"""A door to a server of forks, for what starts a Python by its command: `door.py DOOR -m MODULE ARGUMENTS`.

This file is the small program that is started in the place of that Python, with its pipes, its session, its
environment and its exit code. What signals do is for tests that start everything anew.
"""

import json
import os
import socket
import sys

MESSAGE_BYTES = 2**20


def main(door: str, *words: str) -> int:
    """Run what the words name behind the door, by this process's files, and return its exit code.

    In them, /proc/self is this process.
    """
    own = [word.replace("/proc/self", f"/proc/{os.getpid()}") for word in words if word != "-P"]
    request = json.dumps({"arguments": own, "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
        forks.connect("\0" + door)
        socket.send_fds(forks, [request], [0, 1, 2])
        return int(forks.recv(16))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
