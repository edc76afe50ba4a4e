"""The other hosts of a run that may start again: who is left after a failure, and serves what goes on."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gputopo.launch.failure import UNREACHABLE
from gputopo.launch.jobs.restarting import continued, without_hosts
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values import schema
from gputopo.values.errors import UsageError
from gputopo.values.option import listed
from gputopo.values.run.events import RankFailed

if TYPE_CHECKING:
    from gputopo.launch.hosts.gathering.meeting import Meeting

Wait = Callable[[Callable[[], bool], float], bool | None]
"""Waits until something is so, for some seconds; returns whether it came to be, None after a signal."""


class Regrouping:
    """Goes on with the hosts that are left, as long as there are `least`, rank 0 among them; None: with all.

    `timeout_s`: until all of them must have started their servers again. For the launcher's main thread.
    """

    def __init__(self, meeting: "Meeting", least: int | None, timeout_s: float) -> None:
        self.may_lose = least is not None
        self._meeting = meeting
        self._least = least
        self._timeout_s = timeout_s
        self._lost: Mapping[int, str] = {}  # those that the run goes on without, by rank: why

    def rest(
        self, spec: RunSpec, failed: RankFailed, counted: int, wait: Wait, note: Callable[[str], None]
    ) -> tuple[RunSpec | None, str]:
        """Return the rest of a run for the hosts that are left, once their servers are there, and the cause.

        `spec`: as the run began; `failed`: why its last worker ended; `counted`: its steps that are saved.
        None where it cannot go on: `note` got the reason, or a signal came. Servers start again also after a
        failure of rank 0's worker alone: what it had on them stays for minutes, and collectives of another
        process wait for it.
        """
        meeting, before = self._meeting, self._lost
        # The worker sees that a server is gone, and not always whose; its host says why, or falls silent.
        if failed.kind == UNREACHABLE and wait(lambda: meeting.lost() != before, meeting.decided_s) is None:
            return None, ""
        while True:
            self._lost = lost = meeting.lost()
            try:
                fewer = without_hosts(spec, lost)
            except UsageError as error:
                note(f"Training cannot go on without this host: {error.what}.")
                return None, ""
            rest = continued(fewer, counted)
            if rest is None or not self._are_enough(spec, fewer, note):
                return None, ""
            meeting.start_again(schema.encode(rest))
            came = wait(partial(self._is_settled, lost), self._timeout_s)
            if came is None:
                return None, ""
            if not came:
                meeting.give_up(f"did not start its server again within {self._timeout_s:g} s")
            elif meeting.lost() == lost:
                new = [why for rank, why in lost.items() if rank not in before]
                return rest, listed(new, "and") if new else failed.cause

    def _is_settled(self, lost: Mapping[int, str]) -> bool:
        return self._meeting.serving() or self._meeting.lost() != lost

    def _are_enough(self, spec: RunSpec, fewer: RunSpec, note: Callable[[str], None]) -> bool:
        left, needed = len(fewer.ranks), self._least or len(spec.ranks)
        if left < needed:
            hosts = f"{left} host{' is' if left == 1 else 's are'}"
            why = (
                f"--min-hosts is {needed}"
                if self.may_lose
                else f"without --min-hosts all {needed} are needed"
            )
            note(f"Training cannot go on: {hosts} left, and {why}.")
        return left >= needed
