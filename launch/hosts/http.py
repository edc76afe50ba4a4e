"""An HTTP server for one short request a connection, limited in size and time.

A client that is slow, or sends what is no HTTP, costs its own connection and nothing else.
"""

import contextlib
import http.server
import socket
import socketserver
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from gputopo.launch.hosts.addresses import Bindable
from gputopo.launch.hosts.messages import BEARER, MAX_BODY_BYTES

# Connections that may be open at once, for each host and besides. A host has one at a time, and another one
# early where one is cut off; a process may have 1024 open files (the usual limit of a shell).
CONNECTIONS_PER_HOST, MORE_CONNECTIONS = 2, 64


class Answer(NamedTuple):
    """An answer to a request. `sent` is called when it has been written."""

    status: HTTPStatus
    body: bytes = b""
    sent: Callable[[], None] | None = None


class Responder(Protocol):
    """Answers requests, in threads of their own."""

    def respond(self, target: str, token: str, body: bytes) -> Answer: ...  # noqa: D102
    def look(self) -> None: ...  # noqa: D102 (called now and then)
    def note(self, error: BaseException) -> None: ...  # noqa: D102 (a request whose answer failed)


class HttpServer(http.server.ThreadingHTTPServer):
    """Listens at an address, for a number of hosts. Raises OSError where it cannot."""

    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False  # two runs must not share a port
    request_queue_size = 256  # all hosts of a large allocation come at once

    def __init__(
        self, place: Bindable, port: int, responder: Responder, *, hosts: int, connection_s: float
    ) -> None:
        self.address_family, address = place
        self.responder = responder
        self._connection_s = connection_s
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
        limit = time.monotonic() - self._connection_s
        for request, began in list(self._open.items()):
            if began < limit:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
        self.responder.look()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that goes away; note other errors, and print nothing."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.responder.note(error)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HttpServer
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
            token = self.headers.get("Authorization", "").removeprefix(BEARER)
            answer = self.server.responder.respond(self.path, token, body)
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
        """Print nothing: stderr is the user's."""
