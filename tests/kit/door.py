"""A door to a fork server, for code that starts Python by its command: `door.py DOOR -m MODULE ARGUMENTS`.

This small program runs instead of that Python, with its pipes, its session, its environment and its exit
code. Tests of signals must start a real process instead.
"""

import json
import os
import socket
import sys

MESSAGE_BYTES = 2**20


def main(door: str, *words: str) -> int:
    """Run `words` behind the door with this process's files; return its exit code.

    In the words, /proc/self means this process.
    """
    own = [word.replace("/proc/self", f"/proc/{os.getpid()}") for word in words if word != "-P"]
    request = json.dumps({"arguments": own, "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
        forks.connect("\0" + door)
        socket.send_fds(forks, [request], [0, 1, 2])
        return int(forks.recv(16))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
