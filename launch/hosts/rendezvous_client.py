"""The rendezvous client of a host of rank 1 or above: its launcher's connection to rank 0's."""

import http.client
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Self

import msgspec

from gputopo.launch.hosts.allocation import JOIN_S
from gputopo.launch.hosts.messages import (
    BEARER,
    EXCUSE_S,
    JOIN_PATH,
    LAST_S,
    MAX_BODY_BYTES,
    PATIENCE,
    EventsTaken,
    HostEvent,
    HostStart,
    HostTimeouts,
    Joining,
    Reply,
    RunEnd,
    Silence,
    Unable,
    Waiting,
    path_of,
)
from gputopo.values import schema
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.option import shown
from gputopo.values.run.events import RankFailed, RunFinished

MAX_REPORT_BYTES = MAX_BODY_BYTES // 4  # of one request with events, unless one alone is larger; not measured
wall_s = time.time
_NO_ANSWER = (OSError, http.client.HTTPException, UnicodeError)  # a name too long for DNS is a UnicodeError
_reply_decoder: msgspec.json.Decoder[Reply | Waiting] = msgspec.json.Decoder(Reply | Waiting)
_taken_decoder = msgspec.json.Decoder(EventsTaken)


class LeaderGoneError(HardwareError):
    """Rank 0 has not answered for so long that it must have ended, or does not know this host."""


class RendezvousClient:
    """The connection of the host `rank` to the server at `name` and `port` of rank 0.

    `serves`: number of the Start by which this host's server runs. `newer`: the latest one that came after
    the reply to joining.
    """

    def __init__(self, rank: int, name: str, port: int, *, patience: HostTimeouts = PATIENCE) -> None:
        self.patience = patience
        self._rank = rank
        self._name = name
        self._port = port
        self._address = name  # that which answered, of those that the name has
        self._token = secrets.token_hex(16)
        self._silence = Silence(time.monotonic(), expected_s=patience.request_s + patience.every_s)
        self.serves = 0
        self.newer: HostStart | None = None
        self._told = 0
        self._waiting: deque[bytes] = deque()

    def join(self, joining: Joining, timeout_s: float = JOIN_S) -> Reply:
        """Join, and return rank 0's reply once it has planned all hosts.

        Tries for `timeout_s` seconds to reach rank 0, which may start later than this host; then waits as
        long as rank 0 answers. Raises HardwareError if it cannot be reached, LeaderGoneError if it ends
        meanwhile, UsageError if something else answers at its port.
        """
        deadline_s = time.monotonic() + timeout_s
        has_answered = False

        def give_up(error: Exception) -> None:
            if _is_no_http(error):
                raise self._not_ours(str(error)) from error
            if has_answered:
                self._require_present(error)
            elif time.monotonic() >= deadline_s:
                raise self._unreachable(error, timeout_s) from error

        while True:
            status, answer = self._post_until(JOIN_PATH, schema.encode(joining), give_up)
            has_answered = True
            try:
                reply = _reply_decoder.decode(answer)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise self._not_ours(f"{status} {_phrase(status)}") from error
            if not isinstance(reply, Waiting):
                return reply

    def excuse(self, unable: Unable, timeout_s: float = EXCUSE_S) -> bool:
        """Report that this host cannot join, and let rank 0 end first (see `outlast`); whether it was there.

        Tries for `timeout_s` seconds to reach rank 0, which may start later; in vain where it has no address.
        """
        deadline_s = time.monotonic() + timeout_s

        def give_up(error: Exception) -> None:
            if _is_unresolved(error) or time.monotonic() >= deadline_s:
                raise error

        try:
            self._post_until(JOIN_PATH, schema.encode(unable), give_up)
        except _NO_ANSWER:
            return False
        self.outlast()
        return True

    def tell(self, events: Iterable[HostEvent] = ()) -> RunEnd | None:
        """Report events, and that this host is there; return the end of the run once it is over.

        One request: events that rank 0 did not take are reported again with the next. Raises
        LeaderGoneError after `silent_s` seconds without an answer.
        """
        self._waiting.extend(msgspec.json.encode(one) + b"\n" for one in events)
        lines = self._next_lines()
        target = (
            f"{path_of(self._rank, 'events')}?first={self._told}&sent={wall_s():.6f}&serves={self.serves}"
        )
        try:
            status, answer = self._post(target, b"".join(lines))
        except _NO_ANSWER as error:
            self._require_present(error)
            return None
        try:
            taken = _taken_decoder.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LeaderGoneError(
                f"{self._where} does not know this host: it answered {status} {_phrase(status)}",
                "it was ended or started again: see its output, and start all hosts again",
            ) from error
        for _ in lines[: max(0, taken.events - self._told)]:
            self._waiting.popleft()
        self._told = taken.events
        self.newer = taken.start or self.newer
        return taken.end

    def report(self, result: bytes) -> None:
        """Report a result, JSON of at most `MAX_BODY_BYTES`; try until rank 0 has it.

        Raises LeaderGoneError after `silent_s` seconds without an answer, or where it is not taken.
        """
        status, _ = self._post_until(path_of(self._rank, "result"), result, self._require_present)
        if status != HTTPStatus.OK:
            raise LeaderGoneError(
                f"{self._where} did not take the result: it answered {status} {_phrase(status)}",
                "see its output, and start all hosts again",
            )

    def outlast(self, timeout_s: float = LAST_S) -> None:
        """Wait until rank 0 has ended, at most so long, unless it is gone already.

        For a host that ends by an error: mpirun, and srun --kill-on-bad-exit, end all others then, and rank 0
        has not reported why.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._silence.seconds and time.monotonic() < deadline_s:
            try:
                self._post(f"{path_of(self._rank, 'events')}?first={self._told}&sent={wall_s():.6f}", b"")
            except _NO_ANSWER:
                return
            time.sleep(self.patience.retry_s)

    def _next_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        size = 0
        for line in self._waiting:
            size += len(line)
            if lines and size > MAX_REPORT_BYTES:
                break
            lines.append(line)
        return lines

    def _post_until(
        self, target: str, body: bytes, give_up: Callable[[Exception], None]
    ) -> tuple[int, bytes]:
        """Post until there is an answer; `give_up` gets each error, and raises one where that is the last."""
        while True:
            try:
                return self._post(target, body)
            except _NO_ANSWER as error:
                give_up(error)
                time.sleep(self.patience.retry_s)

    def _post(self, target: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=self.patience.request_s)
        headers = {"Content-Type": "application/json", "Authorization": BEARER + self._token}
        try:
            connection.connect()
            self._address = connection.sock.getpeername()[0]
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            answer = response.read(MAX_BODY_BYTES)
        finally:
            connection.close()
        self._silence.heard(time.monotonic())
        return response.status, answer

    def _require_present(self, error: Exception) -> None:
        if self._silence.look(time.monotonic()) >= self.patience.silent_s:
            raise LeaderGoneError(
                f"{self._where} has not answered for {self.patience.silent_s:g} s: {_reason(error)}",
                "see the output of rank 0, and whether its host is up",
            ) from error

    def _unreachable(self, error: Exception, timeout_s: float) -> HardwareError:
        what = f"{self._where} did not answer within {timeout_s:g} s: {_reason(error)}"
        if _is_unresolved(error):
            return HardwareError(
                what, "name rank 0 by its IP address, or by a name that this host can resolve"
            )
        if isinstance(error, ConnectionRefusedError):
            hint = "start rank 0 too, with the same port; its name must mean the same address on all hosts"
            return HardwareError(what, hint)
        return HardwareError(
            what, "look for a firewall between the hosts, or name rank 0 by an address on another interface"
        )

    def _not_ours(self, answered: str) -> UsageError:
        return UsageError(
            f"{self._where} is not a gputopo run: it answered {shown(answered)}",
            "another program listens there: name another port on all hosts",
        )

    @property
    def _where(self) -> str:
        return f"rank 0 at {self._name} port {self._port}"


class Reporting:
    """Reports events from a thread of its own, and that this host is there; a context manager.

    `also`: returns what else is to be reported, before what was put; it is asked each time. `ready`: a file
    descriptor that is readable once `end` is set: the run is over, or rank 0 is gone; and once `start` is:
    this host's server is to be started anew by that. When the context is left, what was put before has been
    sent, if rank 0 answers.
    """

    def __init__(self, client: RendezvousClient, also: Callable[[], Iterable[HostEvent]] = tuple) -> None:
        self.end: RunEnd | None = None
        self.start: HostStart | None = None
        self.ready = os.eventfd(0)
        self._client = client
        self._also = also
        self._changed = threading.Condition()
        self._new: list[HostEvent] = []
        self._is_urgent = False
        self._is_left = False
        self._thread = threading.Thread(target=self._tell, name="reporting", daemon=True)

    def put(self, *events: HostEvent) -> None:
        """Report events within `every_s` seconds, a failure or an end at once."""
        with self._changed:
            self._new.extend(events)
            if any(isinstance(one, RankFailed | RunFinished) for one in events):
                self._is_urgent = True
                self._changed.notify_all()

    def serves(self, number: int) -> None:
        """Report at once that this host's server runs by the Start of that number."""
        with self._changed:
            self._client.serves = number
            self._is_urgent = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._is_left = self._is_urgent = True
            self._changed.notify_all()
        self._thread.join(2 * self._client.patience.request_s)  # that under way, and the last
        if not self._thread.is_alive():
            os.close(self.ready)

    def _tell(self) -> None:
        try:
            self._tell_until_the_end()
        finally:  # also where that fails: who waits for the end must not wait for ever
            os.eventfd_write(self.ready, 1)

    def _tell_until_the_end(self) -> None:
        is_left = False
        while self.end is None and not is_left:
            with self._changed:
                self._changed.wait_for(lambda: self._is_urgent, self._client.patience.every_s)
                events, self._new, self._is_urgent = self._new, [], False
                is_left = self._is_left
            try:
                self.end = self._client.tell([*self._also(), *events])
            except LeaderGoneError as gone:
                self.end = RunEnd(exit_code=int(gone.exit_code), cause=gone.what, hint=gone.hint)
            newer = self._client.newer
            if newer is not None and (self.start is None or newer.number > self.start.number):
                self.start = newer
                os.eventfd_write(self.ready, 1)


def _is_no_http(error: Exception) -> bool:
    return isinstance(error, http.client.HTTPException) and not isinstance(
        error, OSError | http.client.IncompleteRead
    )


def _is_unresolved(error: Exception) -> bool:
    import socket

    return isinstance(error, socket.gaierror | UnicodeError)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__).lower()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
