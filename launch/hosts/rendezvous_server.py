"""Rank 0's rendezvous server: the other hosts join, report events and results, and learn the end, by HTTP."""

import contextlib
import errno
import math
import re
import signal
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

import gputopo
from gputopo.launch.hosts.addresses import Bindable, cannot_listen, places_to_listen
from gputopo.launch.hosts.allocation import JOIN_S
from gputopo.launch.hosts.http import Answer, HttpServer
from gputopo.launch.hosts.members import Member, Members, is_host_name
from gputopo.launch.hosts.messages import (
    JOIN_PATH,
    PATIENCE,
    EventsTaken,
    HostEvent,
    HostStart,
    HostTimeouts,
    Joining,
    Refused,
    Reply,
    RunEnd,
    Unable,
    Waiting,
)
from gputopo.launch.supervise.sampling import EventQueue
from gputopo.launch.user_program.steps import StepsReported
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.run.events import Event, Noticed

_POSTED = re.compile(r"/ranks/(\d{1,9})/(events|result)")
_PRESENT = 3  # intervals of silence after which a host is not waited for at the end


class _Head(msgspec.Struct):
    """What must be readable of a host of any version."""

    rank: int
    name: str
    version: str


# Made here, in one thread: msgspec crashes where two threads are the first to decode a type (0.22).
_head_decoder = msgspec.json.Decoder(_Head)
_joining_decoder: msgspec.json.Decoder[Joining | Unable] = msgspec.json.Decoder(Joining | Unable)
_event_decoder = msgspec.json.Decoder(HostEvent)
_STRANGER = Answer(
    HTTPStatus.FORBIDDEN,
    schema.encode(
        Refused(what="rank 0 does not know this host", hint="start all hosts again", exit_code=ExitCode.USAGE)
    ),
)


class RendezvousServer:
    """The rendezvous of all hosts at a port of rank 0; a context manager, for rank 0's main thread.

    `events`: what the other hosts report, with their rank and times of rank 0's clock. A host that falls
    silent is a RankFailed of its rank, once. `steps`: what their programs report.

    Left before `end` was called, by an exception or not, it reports that to the other hosts.
    """

    def __init__(
        self,
        names: Sequence[str | None],
        port: int,
        *,
        job: str | None = None,
        asked: Mapping[str, Any] | None = None,
        allow_public: bool = False,
        patience: HostTimeouts = PATIENCE,
    ) -> None:
        """Listen. `names`: of all ranks, None where not known; that of rank 0 is where it listens.

        `port`: 0 for a free one. `job`: the starter's id of this job: hosts of another one are refused.
        `asked`: rank 0's options, as in `Joining.asked`. `allow_public`: rank 0 may listen on an address that
        can be reached from everywhere. Raises UsageError for a name or port that cannot be listened on,
        HardwareError for a port that is in use.
        """
        self._name = names[0] or ""
        self._patience = patience
        self.decided_s = patience.silent_s + patience.every_s  # after which a host that is gone is lost
        self._members = Members(names, job=job, asked=asked or {}, patience=patience)
        self._changed = threading.Condition()  # guards the members and the end
        self._end: RunEnd | None = None
        self._has_failed = False
        places = places_to_listen(self._name, allow_public=allow_public)
        self.events: EventQueue[Event] = EventQueue()
        self.steps: EventQueue[StepsReported] = EventQueue()
        try:
            self._server = self._listening(places, port, len(names))
        except BaseException:
            self._close()
            raise
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(patience.look_s,), name="rendezvous", daemon=True
        )

    def _listening(self, places: Sequence[Bindable], port: int, hosts: int) -> HttpServer:
        """Listen at the first place that this host has. Where its port is in use, no other will do.

        A host that tries them in the same order would meet what has that port.
        """
        refused: OSError | None = None
        for place in places:
            try:
                return HttpServer(place, port, self, hosts=hosts, connection_s=self._patience.connection_s)
            except OSError as error:
                refused = refused or error
                if error.errno == errno.EADDRINUSE:
                    raise cannot_listen(self._name, port, error) from error
        assert refused is not None, "a name has an address"
        raise cannot_listen(self._name, port, refused) from refused

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            if self._end is None:
                self.end(_end_by(error))
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._close()

    def _close(self) -> None:
        self.events.close()
        self.steps.close()

    # For rank 0

    @contextlib.contextmanager
    def members(self) -> Iterator[Members]:
        """Lock the other hosts while in the context."""
        with self._changed:
            yield self._members

    def wait(self, timeout_s: float = JOIN_S, *, needs_all: bool = True) -> dict[int, Joining]:
        """Wait until all other hosts have joined; return what they brought, by rank.

        Raises HardwareError, which names the hosts that are missing and those that were refused, after
        `timeout_s` seconds, or at once when there is no host left to wait for. `needs_all`: where a host
        reports why it cannot join, that is raised at once, with its kind and hint.
        """
        members = self._members

        def is_over() -> bool:
            return members.is_decided() or (needs_all and members.unable is not None)

        with self._changed:
            self._changed.wait_for(is_over, timeout_s)
            if needs_all and members.unable is not None:
                raise members.unable.error
            if not members.missing():
                return self.present()
            if members.is_decided():
                raise HardwareError(members.absence(""), "correct that, and start all hosts again")
            raise HardwareError(
                members.absence(f" within {timeout_s:g} s"),
                f"start gputopo on all hosts at the same time; they must reach {self._name} port {self.port} "
                "(host name, firewall); --join-timeout waits longer",
            )

    def present(self) -> dict[int, Joining]:
        """Return what the hosts that are there have brought, by rank, also where others are missing."""
        with self._changed:
            missing, joined = self._members.missing(), sorted(self._members.joined.items())
            return {rank: member.joining for rank, member in joined if rank not in missing}

    def answer(self, replies: Mapping[int, Reply]) -> None:
        """Answer each host that `wait` returned. One that starts must not fall silent from here on."""
        with self._changed:
            joined = self._members.joined
            if set(replies) != set(joined):
                raise ValueError(f"replies for ranks {sorted(replies)}, not {sorted(joined)}")
            for rank, reply in replies.items():
                joined[rank].reply = reply
            self._changed.notify_all()

    def results(self, timeout_s: float) -> dict[int, bytes]:
        """Wait until each host that was started has reported a result or fallen silent; return those."""
        joined = self._members.joined

        def are_there() -> bool:
            return all(one.result is not None or one.failure is not None for one in joined.values())

        with self._changed:
            self._changed.wait_for(are_there, timeout_s)
            found = ((rank, member.result) for rank, member in sorted(joined.items()))
            return {rank: result for rank, result in found if result is not None}

    def quiet(self, seconds: float) -> frozenset[int]:
        """Return the ranks that were started, are not known to have failed, and were silent for so long."""
        with self._changed:
            return frozenset(
                rank
                for rank, one in self._members.joined.items()
                if one.start is not None and one.failure is None and one.silence.seconds >= seconds
            )

    def end(self, end: RunEnd) -> None:
        """Report the end of the run to all hosts, and wait until those that are there have heard it."""
        gone_s = _PRESENT * self._patience.every_s

        def all_told() -> bool:
            joined = self._members.joined.values()
            return all(one.has_last or one.silence.seconds >= gone_s for one in joined)

        with self._changed:
            self._end = end
            self._changed.notify_all()
            self._changed.wait_for(all_told, self._patience.end_s)

    # For the HTTP server, in its threads

    def look(self) -> None:
        """Look for hosts that have fallen silent."""
        with self._changed:
            self.events.put(*self._members.look(time.monotonic(), time.time()))
            self._changed.notify_all()

    def note(self, error: BaseException) -> None:
        """Report the first request whose answer failed."""
        if not self._has_failed:
            self._has_failed = True
            says = f"A request of another host could not be answered: {type(error).__name__}: {error}"
            self.events.put(Noticed(time_s=time.time(), says=says))

    def _note_sent(self, last_of: Member) -> None:
        with self._changed:
            last_of.has_last = True
            self._changed.notify_all()

    def respond(self, target: str, token: str, body: bytes) -> Answer:
        """Answer a POST to a target (path and query)."""
        received_s = time.time()
        path, _, query = target.partition("?")
        try:
            if path == JOIN_PATH:
                return self._join(token, body)
            posted = _POSTED.fullmatch(path)
            if posted is None:
                return Answer(HTTPStatus.NOT_FOUND)
            rank, is_result = int(posted[1]), posted[2] == "result"
            report = None if is_result else _Report.of(query, received_s, body)
            with self._changed:
                return self._take(rank, token, report, body)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return Answer(HTTPStatus.BAD_REQUEST)

    def _join(self, token: str, body: bytes) -> Answer:
        head = _head_decoder.decode(body)
        if not is_host_name(head.name) or not token:
            return Answer(HTTPStatus.BAD_REQUEST)
        joining = _joining_decoder.decode(body) if head.version == gputopo.__version__ else None
        with self._changed:
            refused: Refused | None = None
            if joining is None:
                refused = self._members.refuse_other_version(head.rank, head.name, head.version)
            elif isinstance(joining, Unable):
                self._members.cannot_join(joining)
            else:
                refused = self._members.join(joining, token, time.monotonic())
            self._changed.notify_all()
            if refused is not None:
                return Answer(HTTPStatus.FORBIDDEN, schema.encode(refused))
            if isinstance(joining, Unable):
                return Answer(HTTPStatus.OK)
            return self._decision(self._members.joined[head.rank])

    def _decision(self, member: Member) -> Answer:
        """Return the reply to a host that has joined, if there is one before long."""
        self._changed.wait_for(lambda: member.reply or self._end, self._patience.poll_s)
        member.silence.heard(time.monotonic())
        reply, end = member.reply, self._end
        if reply is None and end is None:
            return Answer(HTTPStatus.OK, schema.encode(Waiting()))
        if isinstance(reply, HostStart):
            return Answer(HTTPStatus.OK, schema.encode(reply))
        if reply is None and end is not None:  # it was waiting when rank 0 ended
            what, hint = end.cause or "rank 0 has ended", end.hint or "see its output"
            reply = Refused(what=what, hint=hint, exit_code=end.exit_code)
        assert reply is not None
        return Answer(HTTPStatus.OK, schema.encode(reply), partial(self._note_sent, member))

    def _take(self, rank: int, token: str, report: "_Report | None", body: bytes) -> Answer:
        """Take a report of events, or a result where there is none. Raises ValueError."""
        member = self._members.member(rank, token)
        if member is None:
            return _STRANGER
        member.silence.heard(time.monotonic())
        if report is None:
            member.result = body
        else:
            member.serves = report.serves
            taken = self._members.take(rank, report.first, report.events, later_s=report.later_s)
            # Steps first: an end of the program among the events is after them.
            self.steps.put(*(one for one in taken if isinstance(one, StepsReported)))
            self.events.put(*(one for one in taken if not isinstance(one, StepsReported)))
        self._changed.notify_all()
        end = member.end or self._end
        answer = EventsTaken(events=member.taken, end=end, start=None if end else member.newer)
        sent = None if end is None or report is None else partial(self._note_sent, member)
        return Answer(HTTPStatus.OK, schema.encode(answer), sent)


class _Report(NamedTuple):
    """Events of a host with the query of their request."""

    first: int  # number of the first event
    later_s: float  # by which rank 0's clock is ahead of the host's
    serves: int  # number of the Start by which it serves
    events: list[HostEvent]

    @classmethod
    def of(cls, query: str, received_s: float, body: bytes) -> Self:
        """Read a request. Raises ValueError and msgspec's errors."""
        fields = dict(urllib.parse.parse_qsl(query, strict_parsing=True))
        first, later_s = int(fields.get("first", "")), received_s - float(fields.get("sent", ""))
        serves = int(fields.get("serves", ""))
        if first < 0 or serves < 0 or not math.isfinite(later_s):
            raise ValueError(query)
        return cls(first, later_s, serves, [_event_decoder.decode(line) for line in body.splitlines()])


def _end_by(error: BaseException | None) -> RunEnd:
    """Return what the other hosts are told when rank 0 ends by an exception, or without a word."""
    if isinstance(error, GputopoError):
        return RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
    code: int = ExitCode.BUG if error else ExitCode.HARDWARE
    for kind, number in ((KeyboardInterrupt, signal.SIGINT), (BrokenPipeError, signal.SIGPIPE)):
        if isinstance(error, kind):
            code = 128 + number
    return RunEnd(exit_code=code, cause="rank 0 has ended", hint="see its output")
