"""Ports of this host for tests."""

import socket


def free_port() -> int:
    """Return a port that no process listens on now."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])
