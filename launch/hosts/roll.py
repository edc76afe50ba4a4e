"""Which hosts have come, which were refused, and which have fallen silent. Pure: times are given."""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import gputopo
from gputopo.launch.failure import UNREACHABLE
from gputopo.launch.hosts.messages import (
    End,
    GuestEvent,
    Joining,
    Patience,
    Refused,
    Reply,
    Silence,
    Start,
    Unable,
)
from gputopo.launch.user_program.steps import StepsReported
from gputopo.values.errors import ExitCode
from gputopo.values.option import listed, shown
from gputopo.values.run.events import RankFailed, Sample, Silent

MAX_STRANGERS = 8  # refused ones outside of the training that are remembered for the message. Ours.
_NAME = re.compile(r"[\w.:%-]{1,255}")  # a host name or an address: what a terminal can show
# Of the latest reports of a host the one that was quickest on its way compares its clock with rank 0's; in so
# many, one a second, clocks drift apart by less than 10 ms. Ours.
CLOCK_REPORTS = 60
_LOOKS_LATE = 4  # looks at silence may be this many times as far apart as planned on a busy host. Ours.


_SILENT = "it no longer answers"


class Seat:
    """A host that has joined. `told`: that it has been sent what is the last for it.

    `result`: what it has reported at its end, where it was asked for a result. `serves`: number of the Start
    by which its server runs. `end`: the run goes on without it. `later_s`: by how much rank 0's clock seemed
    to be ahead of the host's, in its latest reports.
    """

    def __init__(self, joining: Joining, token: str, silence: Silence) -> None:
        self.joining = joining
        self.token = token
        self.silence = silence
        self.reply: Reply | None = None
        self.taken = 0
        self.later_s: deque[float] = deque(maxlen=CLOCK_REPORTS)
        self.failure: str | None = None
        self.result: bytes | None = None
        self.serves = 0
        self.end: End | None = None
        self.told = False

    @property
    def start(self) -> Start | None:
        """What it trains by, None for a host that does not take part."""
        return self.reply if isinstance(self.reply, Start) else None

    @property
    def newer(self) -> Start | None:
        """The Start by which it does not serve yet, None where it does."""
        start = self.start
        return start if start is not None and start.number > self.serves else None


class Roll:
    """The hosts of ranks 1 to `size` - 1. `names`: of all ranks, None where a name is not known.

    `asked`: the options of rank 0, as typed. Clocks are rank 0's, monotonic. `unable`: why the first host
    that cannot join cannot, None where there is none.
    """

    def __init__(
        self,
        names: Sequence[str | None],
        *,
        job: str | None,
        asked: Mapping[str, Any],
        patience: Patience,
    ) -> None:
        self._names = names
        self._job = job
        self._asked = msgspec.to_builtins(dict(asked))
        self._patience = patience
        self._seats: dict[int, Seat] = {}
        self._refused: dict[int, str] = {}
        self._strangers: list[str] = []
        self.unable: Refused | None = None

    @property
    def seats(self) -> Mapping[int, Seat]:
        """The hosts that have joined, by rank."""
        return self._seats

    def join(self, joining: Joining, token: str, now_s: float) -> Refused | None:
        """Give a host its seat, or refuse it. The same host may ask again."""
        refused = self._outside(joining) or self._taken_by_another(joining, token)
        if refused is not None:
            self._note_stranger(refused.what)
            return refused
        refused = self._unlike(joining)
        if refused is not None:
            self._refused[joining.rank] = refused.what
            return refused
        self._refused.pop(joining.rank, None)
        seat = self._seats.get(joining.rank)
        if seat is None or seat.token != token:
            expected_s = self._patience.look_s * _LOOKS_LATE
            seat = self._seats[joining.rank] = Seat(joining, token, Silence(now_s, expected_s=expected_s))
        seat.silence.heard(now_s)
        return None

    def cannot_join(self, unable: Unable) -> None:
        """Note why a host of this run cannot join, unless its rank is taken by one that has joined."""
        if self._outside(unable) is None and unable.rank not in self._seats:
            what = f"host {self.words(unable.rank, unable.name)}: {unable.what}"
            self._refused[unable.rank] = what
            self.unable = self.unable or Refused(what=what, hint=unable.hint, exit_code=unable.exit_code)

    def refuse_other_version(self, rank: int, name: str, version: str) -> Refused:
        """Refuse a host of another version of gputopo, whose other words may mean something else."""
        what = f"gputopo is {_plain(version)} on {self.words(rank, name)}, {gputopo.__version__} on rank 0"
        if 0 < rank < len(self._names):
            self._refused[rank] = what
        else:
            self._note_stranger(what)
        return Refused(what=what, hint="install the same version on all hosts", exit_code=ExitCode.USAGE)

    def seat(self, rank: int, token: str) -> Seat | None:
        """Return the seat of a host that shows the token it joined with, else None."""
        seat = self._seats.get(rank)
        return seat if seat is not None and seat.token == token else None

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not come, or have fallen silent before they were answered."""
        return tuple(
            rank for rank in range(1, len(self._names)) if rank not in self._seats or self._is_lost(rank)
        )

    def is_decided(self) -> bool:
        """Whether nobody is to be waited for: every rank has come, was refused, or cannot join."""
        return all(rank in self._refused or self._has_failed(rank) for rank in self.missing())

    def look(self, now_s: float, time_s: float) -> list[RankFailed]:
        """Return the failures of hosts that were started and have fallen silent since the last look.

        `time_s`: now, in seconds since the epoch.
        """
        failed = []
        for rank, seat in self._seats.items():
            silent_s = seat.silence.look(now_s)
            runs = seat.start is not None and not seat.told and seat.failure is None
            if runs and silent_s >= self._patience.silent_s:
                seat.failure = _SILENT
                failed.append(
                    RankFailed(
                        time_s=time_s,
                        rank=rank,
                        kind=UNREACHABLE,
                        cause=f"host {self.words(rank)} no longer answers",
                        remedy="see whether the host is up and its network works; what its gputopo printed "
                        "is in the output of its starter",
                        exit_code=int(ExitCode.HARDWARE),
                    )
                )
        return failed

    def take(
        self, rank: int, first: int, events: Sequence[GuestEvent], *, later_s: float
    ) -> list[GuestEvent]:
        """Return the events that have not come before, with their rank, and times of rank 0's clock.

        Samples, signs of life and reported steps have that of the host among those that train.

        `first`: number of the first event, counted from 0; a request whose answer was lost comes again.
        `later_s`: by how much rank 0's clock is ahead of the host's, and what this report took on its way.
        Raises ValueError where events between are missing.
        """
        seat = self._seats[rank]
        if first > seat.taken:
            raise ValueError(f"event {first} comes after {seat.taken} events")
        seat.later_s.append(later_s)
        fresh = events[seat.taken - first :]
        seat.taken += len(fresh)
        for event in fresh:
            if isinstance(event, RankFailed):
                seat.failure = seat.failure or event.cause
        return [self._adapted(rank, one, min(seat.later_s)) for one in fresh]

    def lost(self) -> dict[int, str]:
        """Return the hosts that were started and have failed, by their ranks among those that train: why."""
        found = {}
        for rank, seat in self._seats.items():
            if seat.start is not None and seat.failure is not None:
                why = " no longer answers" if seat.failure == _SILENT else f": {_printable(seat.failure)}"
                found[_place(rank, seat.start)] = f"host {self.words(rank)}{why}"
        return found

    def start_again(self, spec: bytes) -> None:
        """Have all hosts that are left start their servers by another spec; the lost ones are to end."""
        for seat in self._seats.values():
            if seat.start is None:
                continue
            if seat.failure is None:
                seat.reply = msgspec.structs.replace(
                    seat.start, spec=msgspec.Raw(spec), number=seat.start.number + 1
                )
            elif seat.end is None:
                seat.end = End(
                    exit_code=int(ExitCode.HARDWARE),
                    cause=f"the training goes on without this host: {_printable(seat.failure)}",
                    hint="see its output and that of rank 0; to train with it, start all hosts again",
                )

    def serving(self) -> bool:
        """Whether all hosts that are left serve by what they were told last."""
        return all(seat.newer is None for seat in self._seats.values() if seat.failure is None)

    def give_up(self, why: str) -> None:
        """Take those that do not serve for lost. `why`: in words, after "it"."""
        for seat in self._seats.values():
            if seat.failure is None and seat.newer is not None:
                seat.failure = f"it {why}"

    def words(self, rank: int, name: str | None = None) -> str:
        """Return how a host is called in messages: `n3 (rank 2)`."""
        if name is None and rank in self._seats:
            name = self._seats[rank].joining.name
        elif name is None and rank < len(self._names):
            name = self._names[rank]
        return f"rank {rank}" if name is None else f"{_plain(name)} (rank {rank})"

    def absence(self, waited: str) -> str:
        """Return which hosts are missing and what is known of each, in words; `waited`: " within 60 s"."""
        absent = self.missing()
        said = [self.words(rank) for rank in absent]
        of = f"{len(absent)} of {len(self._names)} hosts"
        text = f"{of} did not join{waited}: {listed(said, 'and')}"
        for rank in absent:
            if rank in self._refused:
                text += f"; {self._refused[rank]}"
            elif self._has_failed(rank):
                text += f"; {self.words(rank)} has ended: {_printable(self._seats[rank].failure or '')}"
            elif rank in self._seats:
                text += f"; {self.words(rank)} joined and no longer answers"
        if self._strangers:
            text += f"; refused besides: {', '.join(self._strangers)}"
        return text

    def _is_lost(self, rank: int) -> bool:
        seat = self._seats[rank]
        silent = seat.silence.seconds >= self._patience.silent_s
        return seat.reply is None and (silent or seat.failure is not None)

    def _has_failed(self, rank: int) -> bool:
        return rank in self._seats and self._seats[rank].failure is not None

    def _outside(self, joining: Joining | Unable) -> Refused | None:
        size, where = len(self._names), self.words(joining.rank, joining.name)
        if joining.job != self._job:
            return Refused(
                what=f"{where} belongs to {_job_words(joining.job)}, rank 0 to {_job_words(self._job)}",
                hint="start all hosts in one job, or give each run a port of its own",
                exit_code=ExitCode.USAGE,
            )
        if not 0 < joining.rank < size:
            return Refused(
                what=f"{where} cannot join: rank 0 waits for ranks 1 to {size - 1}",
                hint="give each host its own rank, and the same number of hosts to all",
                exit_code=ExitCode.USAGE,
            )
        return None

    def _taken_by_another(self, joining: Joining, token: str) -> Refused | None:
        seat = self._seats.get(joining.rank)
        if seat is None or seat.token == token:
            return None
        if self._is_lost(joining.rank) and seat.joining.name == joining.name:
            return None  # it was started again
        where = self.words(joining.rank, joining.name)
        if seat.end is not None:
            return Refused(
                what=f"{where} cannot join: the training has lost this host, and goes on without it",
                hint="a training takes no host in: end it, and start all hosts again with --resume",
                exit_code=ExitCode.HARDWARE,
            )
        return Refused(
            what=f"{where} cannot join: that rank has joined already, from {_plain(seat.joining.name)}",
            hint="give each host its own rank, and start gputopo once on each",
            exit_code=ExitCode.USAGE,
        )

    def _unlike(self, joining: Joining) -> Refused | None:
        """Refuse a host with another command line; what it leaves out is as rank 0 has it."""
        for name, value in joining.asked.items():
            if name not in self._asked or self._asked[name] != value:
                flag = f"--{_plain(name.rstrip('_')).replace('_', '-')}"
                where = self.words(joining.rank, joining.name)
                other = f"{_value(self._asked[name])} on rank 0" if name in self._asked else "not on rank 0"
                return Refused(
                    what=f"{flag} is {_value(value)} on {where}, {other}",
                    hint="start all hosts with the same options",
                    exit_code=ExitCode.USAGE,
                )
        return None

    def _adapted(self, rank: int, event: GuestEvent, later_s: float) -> GuestEvent:
        start = self._seats[rank].start
        place = rank if start is None else _place(rank, start)
        if isinstance(event, StepsReported):
            return StepsReported(
                rank=place, reports=tuple((time_s + later_s, report) for time_s, report in event.reports)
            )
        changed: dict[str, Any] = {"rank": rank, "time_s": event.time_s + later_s}
        if isinstance(event, RankFailed):
            changed["cause"] = f"host {self.words(rank)}: {event.cause}"
        if isinstance(event, Sample | Silent):
            changed["rank"] = place
        if isinstance(event, Sample) and event.host is not None:
            changed["host"] = msgspec.structs.replace(event.host, time_s=event.host.time_s + later_s)
        return msgspec.structs.replace(event, **changed)

    def _note_stranger(self, words: str) -> None:
        if words not in self._strangers and len(self._strangers) < MAX_STRANGERS:
            self._strangers.append(words)


def _place(rank: int, start: Start) -> int:
    return rank if start.place is None else start.place


def is_host_name(name: str) -> bool:
    """Whether text from the network can be the name of a host."""
    return _NAME.fullmatch(name) is not None


def _job_words(job: str | None) -> str:
    return "no job" if job is None else f"job {_plain(job)}"


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def _plain(text: str) -> str:
    return text if is_host_name(text) else shown(text)


def _value(value: object) -> str:
    return shown(value) if isinstance(value, str) else _plain(str(value))
