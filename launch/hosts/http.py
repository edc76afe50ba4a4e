"""The HTTP server of rank 0: one short request a connection, limited in size and time.

A client that is slow, or sends what is no HTTP, costs its own connection and nothing else.
"""

import contextlib
import http.server
import socket
import socketserver
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from gputopo.launch.hosts.addresses import Bindable
from gputopo.launch.hosts.messages import MAX_BODY_BYTES, Patience

# Connections that may be open at once, for each host and besides. A host has one at a time, and has another
# one early where one is cut off. Ours; a process may have 1024 open files (the usual limit of a shell).
CONNECTIONS_PER_HOST, MORE_CONNECTIONS = 2, 64
_BEARER = "Bearer "  # RFC 6750


@dataclass(frozen=True)
class Answer:
    """An answer to a request. `sent` is called when it has been written."""

    status: HTTPStatus
    body: bytes = b""
    sent: Callable[[], None] | None = None


class Desk(Protocol):
    """Answers requests, in threads of their own."""

    def respond(self, target: str, token: str, body: bytes) -> Answer:
        """Answer a POST to a target (path and query)."""

    def look(self) -> None:
        """Do what is to be done now and then."""

    def note(self, error: BaseException) -> None:
        """Take note of a request whose answer failed."""


class Server(http.server.ThreadingHTTPServer):
    """Serves a desk, for a number of hosts, at an address. Raises OSError if it cannot listen there."""

    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False  # two runs must not share a port
    request_queue_size = 256  # all hosts of a large allocation come at once

    def __init__(self, place: Bindable, port: int, desk: Desk, *, hosts: int, patience: Patience) -> None:
        self.address_family, address = place
        self.desk = desk
        self._patience = patience
        self._max_open = CONNECTIONS_PER_HOST * hosts + MORE_CONNECTIONS
        self._open: dict[Any, float] = {}
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without asking DNS for a name (as HTTPServer does), and on :: for IPv4 as well."""
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is room for a connection."""
        if len(self._open) >= self._max_open:
            return False
        self._open[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that have been open for too long: their threads read an end of file."""
        limit = time.monotonic() - self._patience.connection_s
        for request, began in list(self._open.items()):
            if began < limit:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
        self.desk.look()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is none of our business; what else fails is noted, not printed."""
        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.desk.note(error)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "gputopo"
    sys_version = ""

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            answer = Answer(HTTPStatus.LENGTH_REQUIRED)
        elif len(length) > len(str(MAX_BODY_BYTES)) or int(length) > MAX_BODY_BYTES:
            answer = Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):  # the client went away
                self.close_connection = True
                return
            token = self.headers.get("Authorization", "").removeprefix(_BEARER)
            answer = self.server.desk.respond(self.path, token, body)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)
        if answer.sent is not None:
            answer.sent()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed: stderr is the user's."""


def authorization(token: str) -> str:
    """Return the `Authorization` header of who has a token."""
    return _BEARER + token
