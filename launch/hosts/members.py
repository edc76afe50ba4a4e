"""The other hosts of a training from the view of rank 0: joined, refused, failed or gone."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import gputopo
from gputopo.launch.failure import UNREACHABLE, launcher_stopped
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import HostEvent, HostStart, Joining, Reply, Report, RunEnd
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, UsageError
from gputopo.values.index_ranges import host_set, index_ranges
from gputopo.values.option import listed, shown
from gputopo.values.run.events import RankFailed, Sample, Silent

# Numbers of items; not measured on hardware.
MAX_STRANGERS = 8  # refused hosts outside the training that are reported
_NAMED = 3  # up to this number, missing hosts are listed one by one
CLOCK_REPORTS = 60  # the fastest of the latest reports compares the clocks, which drift by 10 ms meanwhile


class Member:
    """A host that has joined. `send`: sends a message to it."""

    def __init__(self, joining: Joining, send: Callable[[bytes], object]) -> None:
        self.joining = joining
        self.send = send
        self.reply: Reply | None = None
        self.later_s: deque[float] = deque(maxlen=CLOCK_REPORTS)  # seconds that rank 0's clock seemed ahead
        self.failure: str | None = None
        self.is_told = False  # its last message was sent
        self.gone: str | None = None  # how its connection ended

    @property
    def start(self) -> HostStart | None:
        """The reply that started it, or None if the host does not take part."""
        return self.reply if isinstance(self.reply, HostStart) else None

    @property
    def place(self) -> int:
        """Its rank among the hosts that train."""
        return self.joining.rank if self.start is None else self.start.place

    def answer(self, reply: Reply) -> None:
        """Reply to the host that it starts or does not take part."""
        self.reply = reply
        self.is_told = isinstance(reply, RunEnd)
        self.send(schema.encode(reply))

    def end(self, end: RunEnd) -> None:
        """Tell the host once that its part is over."""
        if not self.is_told:
            self.is_told = True
            self.send(schema.encode(end))


class Members:
    """The hosts of ranks 1 and above. `unable`: the error of the first host that cannot take part."""

    def __init__(
        self,
        names: Sequence[str | None],
        leader: HostAddress,
        *,
        job: str | None,
        asked: Mapping[str, Any],
        note: Callable[[str], None],
    ) -> None:
        """`names`: of all ranks, None if not known. `leader`: where rank 0 listens.

        `asked`: the options of rank 0 that must be the same on all hosts. `note`: prints a line.
        """
        self._names = names
        self._leader = leader
        self._job = job
        self._asked = msgspec.to_builtins(dict(asked))
        self._note = note
        self.strangers: list[str] = []
        self.joined: dict[int, Member] = {}  # by rank
        self.unable: GputopoError | None = None
        self._end: RunEnd | None = None

    def join(self, joining: Joining, send: Callable[[bytes], object], address: str) -> Member | RunEnd:
        """Add the host at an address, or refuse it. If a host of this run cannot take part, the wait ends."""
        rank, where = joining.rank, self.words(joining.rank, joining.name)
        refused = self._outside(joining, where) or (
            None if joining.unable else self._taken_by_another(joining, where)
        )
        if refused is not None:
            self.note_stranger(address, str(refused.cause))
            return refused
        if (unable := joining.unable) is not None:
            if rank not in self.joined:
                failed = msgspec.structs.replace(unable, cause=f"host {where}: {unable.cause}")
                self.unable = self.unable or failed.error
            return unable
        if (refused := self._unlike(joining, where)) is not None:
            self.unable = self.unable or refused.error
            return refused
        member = self.joined[rank] = Member(joining, send)
        if self._end is not None:
            member.answer(_of_waiting(self._end))
        return member

    def refuse_other_version(self, rank: int, name: str, version: str, address: str) -> RunEnd:
        """Refuse a host with another version of gputopo, whose messages may mean something else."""
        what = f"gputopo is {version} on {self.words(rank, name)}, {gputopo.__version__} on rank 0"
        refused = _refusal(what, "install the same version on all hosts")
        if rank in self.missing():
            self.unable = self.unable or refused.error
        else:
            self.note_stranger(address, what)
        return refused

    def note_stranger(self, address: str, why: str) -> None:
        """Report once that a host outside the training was refused."""
        words = f"a host at {address} was refused: {why}"
        if words not in self.strangers and len(self.strangers) < MAX_STRANGERS:
            self.strangers.append(words)
            self._note(words)

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not joined, or were lost before they got a reply."""
        return tuple(
            rank for rank in range(1, len(self._names)) if rank not in self.joined or self._is_lost(rank)
        )

    def is_decided(self) -> bool:
        """Whether the wait is over: a host cannot take part, or every host has joined or failed."""
        return self.unable is not None or all(
            rank in self.joined and self.joined[rank].failure is not None for rank in self.missing()
        )

    def lose(self, member: Member, how: str, stopped_s: float) -> list[RankFailed]:
        """Note that a host's connection ended; return its failure if it was started and had none yet.

        `stopped_s`: for which rank 0 was stopped itself just before: a host that has left meanwhile did so as
        rank 0 was silent, which comes first then.
        """
        member.gone = how
        if member.start is None or member.is_told or member.failure is not None:
            return []
        member.failure = how
        failed = RankFailed(
            time_s=time.time(),
            rank=member.joining.rank,
            kind=UNREACHABLE,
            cause=f"host {self.words(member.joining.rank)} {how}",
            remedy="see whether the host is up and its network works; what its gputopo printed is in the "
            "output of its launcher",
            exit_code=int(ExitCode.HARDWARE),
        )
        if not stopped_s:
            return [failed]
        return [launcher_stopped(self._names[0] or "", stopped_s, time_s=failed.time_s), failed]

    def are_gone(self) -> bool:
        """Whether the connections of all hosts that joined have ended."""
        return all(member.gone is not None for member in self.joined.values())

    def take(self, member: Member, report: Report, *, later_s: float) -> list[HostEvent]:
        """Return the events that a host reports, with its rank, and with times of rank 0's clock.

        Sample and Silent events get the host's rank among the hosts that train. `later_s`: how far rank 0's
        clock is ahead of the host's clock, plus the travel time of this report.
        """
        member.later_s.append(later_s)
        for event in report.events:
            if isinstance(event, RankFailed):
                member.failure = member.failure or event.cause
        return [self._adapted(member, event, min(member.later_s)) for event in report.events]

    def end(self, end: RunEnd) -> None:
        """Tell all hosts the end of the run; it refuses the hosts that wait for a reply."""
        self._end = end
        for member in self.joined.values():
            if member.reply is None:
                member.answer(_of_waiting(end))
            else:
                member.end(end)

    def words(self, rank: int, name: str | None = None) -> str:
        """Return the name of a host in messages: `n3 (rank 2)`."""
        if name is None and rank in self.joined:
            name = self.joined[rank].joining.name
        elif name is None and rank < len(self._names):
            name = self._names[rank]
        return f"rank {rank}" if name is None else f"{name} (rank {rank})"

    def absence(self, waited: str, hint: str) -> GputopoError:
        """Return an error with the missing hosts and what is known of them. `waited`: " within 60 s"."""
        absent = self.missing()
        counted = f"{len(absent)} of {len(self._names)} hosts"
        text = f"{counted} did not join{waited}: {self._ranks(absent)}"
        for rank in absent:
            member = self.joined.get(rank)
            if member is not None and member.failure is not None:
                text += f"; {self.words(rank)} has ended: {member.failure}"
            elif member is not None:
                text += f"; {self.words(rank)} joined and {member.gone}"
        text = "; ".join((text, *self.strangers))
        # A refused host, for example with a different secret or number of hosts, ended with exit code 2.
        return (UsageError if self.strangers else HardwareError)(text, hint)

    def _ranks(self, ranks: Sequence[int]) -> str:
        if len(ranks) <= _NAMED:
            return listed([self.words(rank) for rank in ranks], "and")
        named = [name for rank in ranks if (name := self._names[rank]) is not None]
        numbers = f"ranks {index_ranges(ranks)}"
        return f"{host_set(named)} ({numbers})" if len(named) == len(ranks) else numbers

    def _is_lost(self, rank: int) -> bool:
        member = self.joined[rank]
        return member.reply is None and (member.gone or member.failure) is not None

    def _outside(self, joining: Joining, where: str) -> RunEnd | None:
        size, meant = len(self._names), joining.leader or self._leader
        # If there is no job id, runs are told apart by the rank 0 that a host was started for. A host that
        # somebody on the network has led to another run must not take part there.
        is_led = joining.job is None and (meant.port != self._leader.port or meant.differs(self._leader))
        if joining.job != self._job or is_led:
            return _refusal(
                f"{where} belongs to {_run_words(joining.job, meant)}, rank 0 to "
                f"{_run_words(self._job, self._leader)}",
                "start all hosts in one job, or give the same name and port of rank 0 on all hosts",
            )
        if not 0 < joining.rank < size:
            return _refusal(
                f"{where} cannot join: rank 0 waits for ranks 1 to {size - 1}",
                "give each host a different rank, and all hosts the same number of hosts",
            )
        return None

    def _taken_by_another(self, joining: Joining, where: str) -> RunEnd | None:
        member = self.joined.get(joining.rank)
        if member is None or (self._is_lost(joining.rank) and member.joining.name == joining.name):
            return None  # the host was started again
        return _refusal(
            f"{where} cannot join: that rank has joined already, from {member.joining.name}",
            "give each host its own rank, and start gputopo once on each",
        )

    def _unlike(self, joining: Joining, where: str) -> RunEnd | None:
        """Refuse a host with different options, or a different version of Python or TensorFlow."""
        for name in sorted({*joining.asked, *self._asked}):
            its, ours = (_value(asked.get(name)) for asked in (joining.asked, self._asked))
            if its != ours:
                same = "options" if name.startswith("--") else "command and the same versions"
                return _refusal(
                    f"{name} is {its} on {where}, {ours} on rank 0", f"start all hosts with the same {same}"
                )
        return None

    def _adapted(self, member: Member, event: HostEvent, later_s: float) -> HostEvent:
        rank, place = member.joining.rank, member.place
        changed: dict[str, Any] = {"rank": rank, "time_s": event.time_s + later_s}
        if isinstance(event, RankFailed):
            changed["cause"] = f"host {self.words(rank)}: {event.cause}"
        if isinstance(event, Sample | Silent):
            changed["rank"] = place
        if isinstance(event, Sample) and event.host is not None:
            changed["host"] = msgspec.structs.replace(event.host, time_s=event.host.time_s + later_s)
        return msgspec.structs.replace(event, **changed)


def _of_waiting(end: RunEnd) -> RunEnd:
    """Return the end of a run as the reply to a host that waits for one."""
    return RunEnd(
        exit_code=end.exit_code, cause=end.cause or "rank 0 has ended", hint=end.hint or "see its output"
    )


def _refusal(what: str, hint: str) -> RunEnd:
    return RunEnd(cause=what, hint=hint, exit_code=int(ExitCode.USAGE))


def _run_words(job: str | None, leader: HostAddress) -> str:
    return f"the run at {leader}" if job is None else f"job {job}"


def _value(value: object) -> str:
    return "not given" if value is None else shown(value) if isinstance(value, str) else str(value)
