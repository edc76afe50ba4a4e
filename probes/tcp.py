"""Transfers by TCP to other hosts that run this program: rate and latency, by the standard library.

A connection begins with a line of the sender: `gputopo-network/1 TOKEN WHAT WARM_S WINDOW_S WINDOWS`. Of
`sink` the receiver counts what arrives in each window, and reports that when the sender has ended; of `echo`
it returns each message.
"""

import contextlib
import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean
from typing import Annotated, Any, Self

import msgspec

from gputopo.copies.network import Timing
from gputopo.values import schema

_MAGIC = "gputopo-network/1"
_MAX_HEAD = 256  # bytes of the first line
_CHUNK = 256 * 1024  # bytes of one call: windows of 0.1 s are 12 MB at 1 Gbit/s
_MESSAGE = b"gputopo!"  # of a round trip
_BATCH = 20  # round trips of which a mean is one repeat
_BATCHES = 10
_MARGIN_S = 0.02  # sent beyond the last window
_MAX_WINDOWS = 1000
_MAX_S = 600.0
_MAX_CONNECTIONS = 1024  # at once
_PATIENCE_S = 5.0  # without a byte
_counts = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0)]])
_LOOK_S = 0.05  # between two looks at whether the listener is to end


class Listener(socketserver.ThreadingTCPServer):
    """Receives the transfers of other hosts at an IP address and a port of its own; a context manager.

    `token`: what a sender must show. Raises OSError.
    """

    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, address: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.token = secrets.token_hex(16)
        super().__init__((address, 0), socketserver.BaseRequestHandler)
        self.port = int(self.server_address[1])

    def verify_request(self, request: object, client_address: object) -> bool:
        """Whether there is room for one more transfer."""
        return threading.active_count() <= _MAX_CONNECTIONS

    def finish_request(self, request: Any, client_address: object) -> None:
        """Take what another host sends, if it shows the token."""
        connection: socket.socket = request
        with contextlib.suppress(OSError, ValueError):
            connection.settimeout(_PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            magic, token, what, *numbers = _head(connection).split()
            if magic != _MAGIC or not secrets.compare_digest(token, self.token):
                return
            if what == "echo":
                while message := connection.recv(len(_MESSAGE)):
                    connection.sendall(message)
            elif what == "sink":
                warm_s, window_s, windows = numbers
                counts = _count(connection, float(warm_s), float(window_s), int(windows))
                connection.sendall(json.dumps(counts).encode())

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(_LOOK_S,), name="network", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def _head(connection: socket.socket) -> str:
    """Return the first line. Raises ValueError, OSError."""
    head = b""
    while not head.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(head) >= _MAX_HEAD:
            raise ValueError("no line")
        head += byte
    return head.decode("ascii")


def _count(connection: socket.socket, warm_s: float, window_s: float, windows: int) -> list[int]:
    """Return the bytes that arrive in each window after the warm-up, until the sender ends.

    Raises ValueError for times that no measurement has.
    """
    if not (0 < windows <= _MAX_WINDOWS and 0 < window_s <= _MAX_S and 0 <= warm_s <= _MAX_S):
        raise ValueError(f"{windows} windows of {window_s} s after {warm_s} s")
    counts = [0] * windows
    buffer = memoryview(bytearray(_CHUNK))
    begin_s: float | None = None
    while received := connection.recv_into(buffer):
        now_s = time.monotonic()
        begin_s = begin_s or now_s
        at = int((now_s - begin_s - warm_s) // window_s)
        if 0 <= at < windows:
            counts[at] += received
    return counts


def send(address: str, port: int, token: str, timing: Timing, streams: int) -> tuple[float, ...]:
    """Send to a listener over several connections at once; return GB/s that arrived in each window.

    Raises OSError.
    """
    with contextlib.ExitStack() as held:
        connections = [
            held.enter_context(_connected(address, port, token, "sink", timing)) for _ in range(streams)
        ]
        end_s = time.monotonic() + timing.transfer_s + _MARGIN_S
        with ThreadPoolExecutor(streams) as pool:
            futures = [pool.submit(_send, one, end_s) for one in connections]
            counts = [future.result() for future in futures]
    if any(len(one) != timing.windows for one in counts):
        raise ConnectionError("the other host refused the transfer")
    return tuple(sum(one) / timing.window_s / 1e9 for one in zip(*counts, strict=True))


def _send(connection: socket.socket, end_s: float) -> Sequence[int]:
    """Send until `end_s` of the monotonic clock; return what the receiver counted. Raises OSError."""
    data = bytes(_CHUNK)
    while time.monotonic() < end_s:
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    reply = b""
    while part := connection.recv(65536):
        reply += part
    try:
        return _counts.decode(reply or b"[]")
    except schema.UNREADABLE as error:
        raise ConnectionError("the other host answered something else") from error


def latency(address: str, port: int, token: str, timing: Timing) -> tuple[float, ...]:
    """Return microseconds of half a round trip of 8 bytes: means of 20 in a row, ten times or fewer.

    Raises OSError.
    """
    with _connected(address, port, token, "echo", timing) as connection:
        end_s = time.monotonic() + timing.latency_s
        _round_trips(connection, _BATCH)  # warm-up
        found: list[float] = []
        while len(found) < _BATCHES and (not found or time.monotonic() < end_s):
            found.append(mean(_round_trips(connection, _BATCH)) / 2)
    return tuple(found)


def _round_trips(connection: socket.socket, count: int) -> list[float]:
    """Return microseconds of round trips."""
    found = []
    for _ in range(count):
        begin_s = time.perf_counter()
        connection.sendall(_MESSAGE)
        missing = len(_MESSAGE)
        while missing:
            received = connection.recv(missing)
            if not received:
                raise ConnectionError("the other host refused the transfer")
            missing -= len(received)
        found.append((time.perf_counter() - begin_s) * 1e6)
    return found


def _connected(address: str, port: int, token: str, what: str, timing: Timing) -> socket.socket:
    """Return a connection to a listener that asks for a transfer. Raises OSError."""
    connection = socket.create_connection((address, port), timeout=_PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head: Iterable[object] = (_MAGIC, token, what, timing.warm_s, timing.window_s, timing.windows)
    connection.sendall((" ".join(map(str, head)) + "\n").encode("ascii"))
    return connection
