"""Where the launchers of the other hosts meet that of rank 0: they join, report events, and learn the end."""

import errno
import math
import re
import signal
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import msgspec

import gputopo
from gputopo.launch.hosts.addresses import Bindable, cannot_listen, places_to_listen
from gputopo.launch.hosts.http import Answer, Server
from gputopo.launch.hosts.messages import (
    JOIN_PATH,
    JOIN_S,
    PATIENCE,
    End,
    GuestEvent,
    Joining,
    Patience,
    Refused,
    Reply,
    Start,
    Taken,
    Unable,
    Waiting,
)
from gputopo.launch.hosts.roll import Roll, Seat, is_host_name
from gputopo.launch.supervise.sampling import EventQueue
from gputopo.launch.user_program.steps import StepsReported
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.run.events import Event, Noticed

_EVENTS = re.compile(r"/ranks/(\d{1,9})/events")
_RESULT = re.compile(r"/ranks/(\d{1,9})/result")
_PRESENT = 3  # intervals of silence after which a host is not waited for at the end. Ours.
_STRANGER = Refused(
    what="rank 0 does not know this host", hint="start all hosts again", exit_code=ExitCode.USAGE
)
# Made here, in one thread: msgspec crashes where two threads are the first to decode a type (0.22).
_joining_decoder: msgspec.json.Decoder[Joining | Unable] = msgspec.json.Decoder(Joining | Unable)
_event_decoder = msgspec.json.Decoder(GuestEvent)


class Meeting:
    """The meeting of all hosts at a port of rank 0; a context manager, for rank 0's main thread.

    `names`: of all ranks, None where not known; that of rank 0 is where it listens. `port`: 0 for a free one.
    `job`: the starter's id of this job: hosts of another one are refused. `asked`: rank 0's options, as in
    `Joining.asked`. `allow_public`: rank 0 may listen on an address that can be reached from everywhere.
    Raises UsageError for a name or port that cannot be listened on, HardwareError for a port that is in use.

    `events`: what the other hosts report, with their rank and times of rank 0's clock. A host that falls
    silent is a RankFailed of its rank, once. `steps`: what their programs report, apart from that.

    Left before `end` was called, by an exception or not, it tells the other hosts that.
    """

    def __init__(
        self,
        names: Sequence[str | None],
        port: int,
        *,
        job: str | None = None,
        asked: Mapping[str, Any] | None = None,
        allow_public: bool = False,
        patience: Patience = PATIENCE,
    ) -> None:
        self._name, self._size = names[0] or "", len(names)
        self._patience = patience
        self.decided_s = patience.silent_s + patience.every_s  # after which a host that is gone is lost
        self._roll = Roll(names, job=job, asked=asked or {}, patience=patience)
        places = places_to_listen(self._name, allow_public=allow_public)
        self.events: EventQueue[Event] = EventQueue()
        self.steps: EventQueue[StepsReported] = EventQueue()
        self._desk = _Desk(self._roll, self.events, self.steps, patience)
        self._changed = self._desk.changed
        try:
            self._server = self._listening(places, port)
        except BaseException:
            self._close()
            raise
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(patience.look_s,), name="meeting", daemon=True
        )

    def _listening(self, places: Sequence[Bindable], port: int) -> Server:
        """Listen at the first place that this host has. Where its port is in use, no other will do.

        A host that tries them in the same order would meet who has that port.
        """
        refused: OSError | None = None
        for place in places:
            try:
                return Server(place, port, self._desk, hosts=self._size, patience=self._patience)
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._desk.end is None:
                self.end(_end_of(error))
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._close()

    def _close(self) -> None:
        self.events.close()
        self.steps.close()

    def wait(self, timeout_s: float = JOIN_S, *, needs_all: bool = True) -> dict[int, Joining]:
        """Wait until all other hosts have joined; return what they brought, by rank.

        Raises HardwareError, which names the hosts that are missing and those that were refused, after
        `timeout_s` seconds, or at once when there is nobody left to wait for. `needs_all`: where a host
        reports why it cannot join, that is raised at once, with its kind and hint.
        """

        def is_over() -> bool:
            return self._roll.is_decided() or (needs_all and self._roll.unable is not None)

        with self._changed:
            self._changed.wait_for(is_over, timeout_s)
            if needs_all and self._roll.unable is not None:
                raise self._roll.unable.error
            if not self._roll.missing():
                return {rank: seat.joining for rank, seat in sorted(self._roll.seats.items())}
            if self._roll.is_decided():
                raise HardwareError(self._roll.absence(""), "correct that, and start all hosts again")
            raise HardwareError(
                self._roll.absence(f" within {timeout_s:g} s"),
                f"start gputopo on all hosts at the same time; they must reach {self._name} port {self.port} "
                "(host name, firewall); --join-timeout waits longer",
            )

    def present(self) -> dict[int, Joining]:
        """Return what the hosts that are there have brought, by rank, be others missing or not."""
        with self._changed:
            missing = self._roll.missing()
            return {
                rank: seat.joining for rank, seat in sorted(self._roll.seats.items()) if rank not in missing
            }

    def answer(self, replies: Mapping[int, Reply]) -> None:
        """Answer each host that `wait` returned. One that starts must not fall silent from here on."""
        with self._changed:
            if set(replies) != set(self._roll.seats):
                raise ValueError(f"replies for ranks {sorted(replies)}, not {sorted(self._roll.seats)}")
            for rank, reply in replies.items():
                self._roll.seats[rank].reply = reply
            self._changed.notify_all()

    def lost(self) -> dict[int, str]:
        """Return the hosts that were started and have failed, by their ranks among those that train: why."""
        with self._changed:
            return self._roll.lost()

    def start_again(self, spec: bytes) -> None:
        """Have the hosts that are left start their servers by another spec, and end the lost ones."""
        with self._changed:
            self._roll.start_again(spec)

    def serving(self) -> bool:
        """Whether all hosts that are left serve by what they were told last."""
        with self._changed:
            return self._roll.serving()

    def give_up(self, why: str) -> None:
        """Take the hosts that do not serve for lost; see `Roll.give_up`."""
        with self._changed:
            self._roll.give_up(why)

    def results(self, timeout_s: float) -> dict[int, bytes]:
        """Wait until each host that was started has reported a result or fallen silent; return those."""

        def are_there() -> bool:
            seats = self._roll.seats.values()
            return all(seat.result is not None or seat.failure is not None for seat in seats)

        with self._changed:
            self._changed.wait_for(are_there, timeout_s)
            seats = sorted(self._roll.seats.items())
            return {rank: seat.result for rank, seat in seats if seat.result is not None}

    def quiet(self, seconds: float) -> frozenset[int]:
        """Return the ranks that were started, are not known to have failed, and were silent for so long."""
        with self._changed:
            return frozenset(
                rank
                for rank, seat in self._roll.seats.items()
                if isinstance(seat.reply, Start) and seat.failure is None and seat.silence.seconds >= seconds
            )

    def end(self, end: End) -> None:
        """Report the end of the run to all hosts, and wait until those that are there have heard it."""
        with self._changed:
            self._desk.end = end
            self._changed.notify_all()
            self._changed.wait_for(self._desk.all_told, self._patience.end_s)


class _Desk:
    """Answers the requests of the other hosts, in the server's threads. `changed` guards all of it."""

    def __init__(
        self, roll: Roll, events: EventQueue[Event], steps: EventQueue[StepsReported], patience: Patience
    ) -> None:
        self.changed = threading.Condition()
        self.end: End | None = None
        self._roll = roll
        self._events, self._steps = events, steps
        self._patience = patience
        self._has_failed = False

    def all_told(self) -> bool:
        """Whether every host that is there has got its last answer."""
        gone_s = _PRESENT * self._patience.every_s
        return all(seat.told or seat.silence.seconds >= gone_s for seat in self._roll.seats.values())

    def look(self) -> None:
        """Look for hosts that have fallen silent."""
        with self.changed:
            self._events.put(*self._roll.look(time.monotonic(), time.time()))
            self.changed.notify_all()

    def note(self, error: BaseException) -> None:
        """Report the first request whose answer failed."""
        if not self._has_failed:
            self._has_failed = True
            says = f"A request of another host could not be answered: {type(error).__name__}: {error}"
            self._events.put(Noticed(time_s=time.time(), says=says))

    def respond(self, target: str, token: str, body: bytes) -> Answer:
        """Answer a request."""
        received_s = time.time()
        path, _, query = target.partition("?")
        try:
            if path == JOIN_PATH:
                return self._join(token, body)
            if result := _RESULT.fullmatch(path):
                return self._keep(int(result[1]), token, body)
            found = _EVENTS.fullmatch(path)
            if found is None:
                return Answer(HTTPStatus.NOT_FOUND)
            return self._take(int(found[1]), token, _query(query, received_s), body)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return Answer(HTTPStatus.BAD_REQUEST)

    def _join(self, token: str, body: bytes) -> Answer:
        head = _head_decoder.decode(body)
        if not is_host_name(head.name) or not token:
            return Answer(HTTPStatus.BAD_REQUEST)
        is_ours = head.version == gputopo.__version__
        joining = _joining_decoder.decode(body) if is_ours else None
        with self.changed:
            if joining is None:
                refused: Refused | None = self._roll.refuse_other_version(head.rank, head.name, head.version)
            elif isinstance(joining, Unable):
                self._roll.cannot_join(joining)
                self.changed.notify_all()
                return Answer(HTTPStatus.OK)
            else:
                refused = self._roll.join(joining, token, time.monotonic())
            self.changed.notify_all()
            if refused is not None:
                return Answer(HTTPStatus.FORBIDDEN, schema.encode(refused))
            return self._decision(self._roll.seats[head.rank])

    def _decision(self, seat: Seat) -> Answer:
        """Return the reply to a host that has joined, if there is one before long."""
        self.changed.wait_for(lambda: seat.reply or self.end, self._patience.poll_s)
        seat.silence.heard(time.monotonic())
        if seat.reply is None and self.end is None:
            return Answer(HTTPStatus.OK, schema.encode(Waiting()))
        reply = seat.reply or _refused(self.end)
        sent = None if isinstance(reply, Start) else partial(self._note_told, seat)
        return Answer(HTTPStatus.OK, schema.encode(reply), sent)

    def _take(self, rank: int, token: str, query: tuple[int, float, int], body: bytes) -> Answer:
        first, later_s, serves = query
        events = [_event_decoder.decode(line) for line in body.splitlines()]
        with self.changed:
            seat = self._roll.seat(rank, token)
            if seat is None:
                return Answer(HTTPStatus.FORBIDDEN, schema.encode(_STRANGER))
            seat.silence.heard(time.monotonic())
            seat.serves = serves
            taken = self._roll.take(rank, first, events, later_s=later_s)
            # Steps first: an end of the program among the events is after them.
            self._steps.put(*(one for one in taken if isinstance(one, StepsReported)))
            self._events.put(*(one for one in taken if not isinstance(one, StepsReported)))
            self.changed.notify_all()
            end = seat.end or self.end
            sent = None if end is None else partial(self._note_told, seat)
            answer = Taken(events=seat.taken, end=end, start=None if end else seat.newer)
            return Answer(HTTPStatus.OK, schema.encode(answer), sent)

    def _keep(self, rank: int, token: str, body: bytes) -> Answer:
        with self.changed:
            seat = self._roll.seat(rank, token)
            if seat is None:
                return Answer(HTTPStatus.FORBIDDEN, schema.encode(_STRANGER))
            seat.silence.heard(time.monotonic())
            seat.result = body
            self.changed.notify_all()
            return Answer(HTTPStatus.OK, schema.encode(Taken(events=seat.taken, end=self.end)))

    def _note_told(self, seat: Seat) -> None:
        with self.changed:
            seat.told = True
            self.changed.notify_all()


class _Head(msgspec.Struct):
    """What must be readable of a host of whatever version."""

    rank: int
    name: str
    version: str


_head_decoder = msgspec.json.Decoder(_Head)


def _query(query: str, received_s: float) -> tuple[int, float, int]:
    """Return the number of the first event, by how much rank 0's clock is ahead, and by what the host serves.

    Raises ValueError.
    """
    fields = dict(urllib.parse.parse_qsl(query, strict_parsing=True))
    first, later_s = int(fields.get("first", "")), received_s - float(fields.get("sent", ""))
    serves = int(fields.get("serves", ""))
    if first < 0 or serves < 0 or not math.isfinite(later_s):
        raise ValueError(query)
    return first, later_s, serves


def _refused(end: End | None) -> Refused:
    """Return the refusal of a host that was waiting when rank 0 ended."""
    assert end is not None
    return Refused(
        what=end.cause or "rank 0 has ended", hint=end.hint or "see its output", exit_code=end.exit_code
    )


def _end_of(error: BaseException | None) -> End:
    """Return what the other hosts are told when rank 0 ends by an exception, or without a word."""
    if isinstance(error, GputopoError):
        return End(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
    code: int = ExitCode.BUG if error else ExitCode.HARDWARE
    for kind, number in ((KeyboardInterrupt, signal.SIGINT), (BrokenPipeError, signal.SIGPIPE)):
        if isinstance(error, kind):
            code = 128 + number
    return End(exit_code=code, cause="rank 0 has ended", hint="see its output")
