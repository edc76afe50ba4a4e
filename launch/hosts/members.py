"""The other hosts of a training, as rank 0 knows them: joined, refused, failed, silent. Pure."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

import gputopo
from gputopo.launch.failure import UNREACHABLE
from gputopo.launch.hosts.messages import (
    FromLeader,
    HostEvent,
    HostStart,
    HostTimeouts,
    Joining,
    Refused,
    Reply,
    RunEnd,
    Silence,
    Unable,
)
from gputopo.launch.user_program.steps import StepsReported
from gputopo.values.errors import ExitCode
from gputopo.values.option import listed, shown
from gputopo.values.run.events import RankFailed, Sample, Silent

# Counts, not measured on hardware.
MAX_STRANGERS = 8  # refused hosts outside of the training that are remembered for the message
CLOCK_REPORTS = 60  # latest reports whose quickest compares clocks, which drift apart by 10 ms meanwhile
_LOOKS_LATE = 4  # looks at silence may be this many times as far apart as planned on a busy host
SILENT, LEFT = "no longer answers", "closed the connection"  # failures that rank 0 notices


class Member:
    """A host that has joined. `outbox`: what is to be sent to it."""

    def __init__(self, joining: Joining, silence: Silence) -> None:
        self.joining = joining
        self.silence = silence
        self.outbox: list[FromLeader] = []
        self.reply: Reply | None = None
        self.later_s: deque[float] = deque(maxlen=CLOCK_REPORTS)  # by which rank 0's clock seemed ahead
        self.failure: str | None = None
        self.serves = 0  # number of the Start by which its server runs
        self.is_left_out = False  # the run goes on without it
        self.is_gone = False  # its connection is closed
        self.has_last = False  # it has its last message

    @property
    def start(self) -> HostStart | None:
        """What it trains by, None for a host that does not take part."""
        return self.reply if isinstance(self.reply, HostStart) else None

    @property
    def is_serving(self) -> bool:
        """Whether it serves by its latest Start."""
        return self.start is None or self.start.number <= self.serves

    @property
    def place(self) -> int:
        """Its rank among the hosts that train."""
        start = self.start
        return self.joining.rank if start is None or start.place is None else start.place

    def answer(self, reply: Reply) -> None:
        """Answer that it starts, or does not take part."""
        self.reply = reply
        self.outbox.append(reply)


class Members:
    """The hosts of ranks 1 and above. `unable`: why the first host that cannot join cannot."""

    def __init__(
        self,
        names: Sequence[str | None],
        *,
        job: str | None,
        asked: Mapping[str, Any],
        patience: HostTimeouts,
        note: Callable[[str], None],
    ) -> None:
        """`names`: of all ranks, None where not known. `asked`: rank 0's options. `note`: prints a line."""
        self._names = names
        self._job = job
        self._asked = msgspec.to_builtins(dict(asked))
        self._patience = patience
        self._refused: dict[int, str] = {}
        self._note = note
        self.strangers: list[str] = []
        self.joined: dict[int, Member] = {}  # by rank
        self.unable: Refused | None = None
        self._end: RunEnd | None = None

    def join(self, joining: Joining, now_s: float) -> Member | Refused:
        """Add a host, or refuse it. `now_s`: of a monotonic clock."""
        refused = self._outside(joining) or self._taken_by_another(joining)
        if refused is not None:
            self._note_stranger(refused.what)
            return refused
        refused = self._unlike(joining)
        if refused is not None:
            self._refused[joining.rank] = refused.what
            return refused
        self._refused.pop(joining.rank, None)
        silence = Silence(now_s, expected_s=self._patience.look_s * _LOOKS_LATE)
        member = self.joined[joining.rank] = Member(joining, silence)
        if self._end is not None:
            self._refuse_by(member, self._end)
        return member

    def cannot_join(self, unable: Unable) -> None:
        """Note why a host of this run cannot join, unless its rank is taken by one that has joined."""
        if self._outside(unable) is None and unable.rank not in self.joined:
            what = f"host {self.words(unable.rank, unable.name)}: {unable.what}"
            self._refused[unable.rank] = what
            self.unable = self.unable or Refused(what=what, hint=unable.hint, exit_code=unable.exit_code)

    def refuse_other_version(self, rank: int, name: str, version: str) -> Refused:
        """Refuse a host of another version of gputopo, whose other words may mean something else."""
        what = f"gputopo is {version} on {self.words(rank, name)}, {gputopo.__version__} on rank 0"
        if 0 < rank < len(self._names):
            self._refused[rank] = what
        else:
            self._note_stranger(what)
        return _refusal(what, "install the same version on all hosts")

    def note_secret(self, address: str) -> None:
        """Note that a program at an address did not prove the secret."""
        self._note_stranger(f"{address} without the secret of this run")

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not joined, or were lost before they were answered."""
        return tuple(
            rank for rank in range(1, len(self._names)) if rank not in self.joined or self._is_lost(rank)
        )

    def is_decided(self) -> bool:
        """Whether no host is to be waited for: every rank has joined, was refused, or cannot join."""
        return all(rank in self._refused or self._has_failed(rank) for rank in self.missing())

    def are_refused(self) -> bool:
        """Whether all that are missing were refused, or cannot join."""
        return all(rank in self._refused for rank in self.missing())

    def look(self, now_s: float, time_s: float) -> Iterator[RankFailed]:
        """Yield the failures of hosts that were started and have been lost since the last look.

        `time_s`: now, in seconds since the epoch.
        """
        for rank, member in self.joined.items():
            silent_s = member.silence.look(now_s)
            runs = member.start is not None and not member.has_last and member.failure is None
            if runs and (member.is_gone or silent_s >= self._patience.silent_s):
                member.failure = LEFT if member.is_gone else SILENT
                yield RankFailed(
                    time_s=time_s,
                    rank=rank,
                    kind=UNREACHABLE,
                    cause=f"host {self.words(rank)} {member.failure}",
                    remedy="see whether the host is up and its network works; what its gputopo printed "
                    "is in the output of its starter",
                    exit_code=int(ExitCode.HARDWARE),
                )

    def take(self, rank: int, events: Sequence[HostEvent], *, later_s: float) -> list[HostEvent]:
        """Return events with the rank of their host, and times of rank 0's clock.

        Samples, signs of life and reported steps have the rank of the host among those that train.
        `later_s`: by how much rank 0's clock is ahead of the host's, and what this report took on its way.
        """
        member = self.joined[rank]
        member.later_s.append(later_s)
        for event in events:
            if isinstance(event, RankFailed):
                member.failure = member.failure or event.cause
        return [self._adapted(rank, one, min(member.later_s)) for one in events]

    def lost(self) -> dict[int, str]:
        """Return the hosts that were started and have failed, by their ranks among those that train: why."""
        return {
            member.place: f"host {self.words(rank)}{_why(member.failure)}"
            for rank, member in self.joined.items()
            if member.start is not None and member.failure is not None
        }

    def start_again(self, spec: bytes) -> None:
        """Have all hosts that are left start their servers by another spec; the lost ones are to end."""
        for member in self.joined.values():
            start = member.start
            if start is not None and member.failure is None:
                again = msgspec.structs.replace(start, spec=msgspec.Raw(spec), number=start.number + 1)
                member.answer(again)
            elif start is not None and not member.is_left_out:
                member.is_left_out = True
                it = "it " if member.failure in (SILENT, LEFT) else ""
                end = RunEnd(
                    exit_code=int(ExitCode.HARDWARE),
                    cause=f"the training goes on without this host: {it}{member.failure}",
                    hint="see its output and that of rank 0; to train with it, start all hosts again",
                )
                member.outbox.append(end)

    def serving(self) -> bool:
        """Whether all hosts that are left serve by their latest Start."""
        return all(one.is_serving for one in self.joined.values() if one.failure is None)

    def give_up(self, why: str) -> None:
        """Take those that do not serve for lost. `why`: in words, after "it"."""
        for member in self.joined.values():
            if member.failure is None and not member.is_serving:
                member.failure = f"it {why}"

    def end(self, end: RunEnd) -> None:
        """Have all hosts learn the end; those that wait for an answer are refused by it."""
        self._end = end
        for member in self.joined.values():
            if member.reply is None:
                self._refuse_by(member, end)
            elif member.start is not None and not member.is_left_out:
                member.outbox.append(end)

    def _refuse_by(self, member: Member, end: RunEnd) -> None:
        what, hint = end.cause or "rank 0 has ended", end.hint or "see its output"
        member.answer(Refused(what=what, hint=hint, exit_code=end.exit_code))

    def words(self, rank: int, name: str | None = None) -> str:
        """Return how a host is called in messages: `n3 (rank 2)`."""
        if name is None and rank in self.joined:
            name = self.joined[rank].joining.name
        elif name is None and rank < len(self._names):
            name = self._names[rank]
        return f"rank {rank}" if name is None else f"{name} (rank {rank})"

    def absence(self, waited: str) -> str:
        """Return which hosts are missing and what is known of each, as text; `waited`: " within 60 s"."""
        absent = self.missing()
        of = f"{len(absent)} of {len(self._names)} hosts"
        text = f"{of} did not join{waited}: {listed([self.words(rank) for rank in absent], 'and')}"
        for rank in absent:
            if rank in self._refused:
                text += f"; {self._refused[rank]}"
            elif self._has_failed(rank):
                text += f"; {self.words(rank)} has ended: {self.joined[rank].failure}"
            elif rank in self.joined:
                text += f"; {self.words(rank)} joined and {LEFT if self.joined[rank].is_gone else SILENT}"
        if self.strangers:
            text += f"; refused besides: {', '.join(self.strangers)}"
        return text

    def _is_lost(self, rank: int) -> bool:
        member = self.joined[rank]
        silent = member.silence.seconds >= self._patience.silent_s
        return member.reply is None and (silent or member.is_gone or member.failure is not None)

    def _has_failed(self, rank: int) -> bool:
        return rank in self.joined and self.joined[rank].failure is not None

    def _outside(self, joining: Joining | Unable) -> Refused | None:
        size, where = len(self._names), self.words(joining.rank, joining.name)
        if joining.job != self._job:
            return _refusal(
                f"{where} belongs to {_job_words(joining.job)}, rank 0 to {_job_words(self._job)}",
                "start all hosts in one job, or give each run a port of its own",
            )
        if not 0 < joining.rank < size:
            return _refusal(
                f"{where} cannot join: rank 0 waits for ranks 1 to {size - 1}",
                "give each host its own rank, and the same number of hosts to all",
            )
        return None

    def _taken_by_another(self, joining: Joining) -> Refused | None:
        member = self.joined.get(joining.rank)
        if member is None or (self._is_lost(joining.rank) and member.joining.name == joining.name):
            return None  # it was started again
        where = f"{self.words(joining.rank, joining.name)} cannot join"
        if member.is_left_out:
            return _refusal(
                f"{where}: the training has lost this host, and goes on without it",
                "a training takes no host in: end it, and start all hosts again with --resume",
                ExitCode.HARDWARE,
            )
        return _refusal(
            f"{where}: that rank has joined already, from {member.joining.name}",
            "give each host its own rank, and start gputopo once on each",
        )

    def _unlike(self, joining: Joining) -> Refused | None:
        """Refuse a host with another command line; what it leaves out is as rank 0 has it."""
        for name, value in joining.asked.items():
            if name not in self._asked or self._asked[name] != value:
                flag = f"--{name.rstrip('_').replace('_', '-')}"
                where = self.words(joining.rank, joining.name)
                other = f"{_value(self._asked[name])} on rank 0" if name in self._asked else "not on rank 0"
                what = f"{flag} is {_value(value)} on {where}, {other}"
                return _refusal(what, "start all hosts with the same options")
        return None

    def _adapted(self, rank: int, event: HostEvent, later_s: float) -> HostEvent:
        place = self.joined[rank].place
        if isinstance(event, StepsReported):
            reports = tuple((time_s + later_s, report) for time_s, report in event.reports)
            return StepsReported(rank=place, reports=reports)
        changed: dict[str, Any] = {"rank": rank, "time_s": event.time_s + later_s}
        if isinstance(event, RankFailed):
            changed["cause"] = f"host {self.words(rank)}: {event.cause}"
        if isinstance(event, Sample | Silent):
            changed["rank"] = place
        if isinstance(event, Sample) and event.host is not None:
            changed["host"] = msgspec.structs.replace(event.host, time_s=event.host.time_s + later_s)
        return msgspec.structs.replace(event, **changed)

    def _note_stranger(self, words: str) -> None:
        if words not in self.strangers and len(self.strangers) < MAX_STRANGERS:
            self.strangers.append(words)
            self._note(f"refused: {words}")


def _refusal(what: str, hint: str, exit_code: int = ExitCode.USAGE) -> Refused:
    return Refused(what=what, hint=hint, exit_code=exit_code)


def _why(failure: str) -> str:
    return f" {failure}" if failure in (SILENT, LEFT) else f": {failure}"


def _job_words(job: str | None) -> str:
    return "no job" if job is None else f"job {job}"


def _value(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value)
