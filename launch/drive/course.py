"""When the hosts of a driver are to be ended, and by which code it ends itself. Pure: times are given."""

import signal

from gputopo.launch.hosts.gathering.patience import END_S, SILENT_S

# Before the training has begun, for what fails by the same cause. Ours.
SETTLE_S = 1.0
# For rank 0 after another host has failed: it misses that one after SILENT_S, and saves its result.
LEADER_S = SILENT_S + END_S + 5.0
OTHERS_S = 10.0  # for the others after rank 0: they hear of it within a second, and end their servers
TERM_S = 30.0  # for rank 0 after SIGTERM, as batch systems have it (KillWait of slurm.conf)


class Course:
    """What is known of all ranks. `end_at`: when they are to be ended, by the clock of the caller.

    `needs_all`: a rank that fails ends the others; rank 0 does in any case. `may_lose`: one that fails after
    the training has begun does not: rank 0 knows whether it can go on.
    """

    def __init__(self, size: int, *, needs_all: bool = True, may_lose: bool = False) -> None:
        self._needs_all = needs_all
        self._may_lose = may_lose
        self.end_at: float | None = None
        self.failed: tuple[int, int] | None = None
        self._left = set(range(size))
        self._leader: int | None = None
        self._signals: list[int] = []

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended."""
        return not self._left

    @property
    def exit_code(self) -> int:
        """That of rank 0; where it was ended, that of the first rank that failed, or of the signal."""
        if self._leader is not None:
            return self._leader
        if self._signals:
            return 128 + self._signals[0]
        return 0 if self.failed is None else self.failed[1]

    @property
    def blamed(self) -> tuple[int, int] | None:
        """The rank that failed first, with its exit code, where rank 0 did not end by itself."""
        return self.failed if self._leader is None and not self._signals else None

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank has ended."""
        return rank not in self._left

    def ended(self, rank: int, code: int, now_s: float, *, has_begun: bool) -> None:
        """Note that the process of a rank has ended; `has_begun`: after the training has begun there."""
        self._left.discard(rank)
        was_ended = self.end_at is not None and now_s >= self.end_at
        if code and self.failed is None:
            self.failed = (rank, code)
        if rank == 0:
            self._leader = None if was_ended else code
            self._end_within(OTHERS_S if has_begun or not code else SETTLE_S, now_s)
        elif code and self._needs_all and not (self._may_lose and has_begun):
            self._end_within(LEADER_S if has_begun else SETTLE_S, now_s)

    def not_started(self, leads: bool, now_s: float) -> None:
        """Note that a host, or the one that `leads`, cannot be started, and is waited for in vain."""
        if leads or self._needs_all:
            self._end_within(0.0, now_s)

    def signalled(self, number: int, now_s: float) -> None:
        """Note a signal, which rank 0 gets too. After one Ctrl-C it may take its time; the third ends all."""
        self._signals.append(number)
        if len(self._signals) > 2:
            self._end_within(0.0, now_s)
        elif number != signal.SIGINT or len(self._signals) == 2:
            self._end_within(TERM_S, now_s)

    def _end_within(self, seconds: float, now_s: float) -> None:
        end_at = now_s + seconds
        self.end_at = end_at if self.end_at is None else min(self.end_at, end_at)
