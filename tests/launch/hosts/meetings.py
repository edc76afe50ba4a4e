"""Meetings on loopback for tests, with hosts that are threads, and little patience."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

import gputopo
from gputopo.launch.hosts.messages import HostStart, HostTimeouts, Joining, RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer

T = TypeVar("T")
PROMPT = HostTimeouts(silent_s=0.3, every_s=0.02, retry_s=0.01, greeting_s=5.0, end_s=5.0)
PATIENT = replace(PROMPT, silent_s=10.0)  # for a test that itself takes the CPU
LOOPBACK = "127.0.0.1"
SECRET = b"a secret of tests"
START = HostStart(spec=msgspec.Raw(b'{"schema":"gputopo.run/1","steps":3}'), environment={"A": "b"}, place=1)


def meeting(*others: str | None, **options: Any) -> RendezvousServer:
    """Return a meeting of rank 0 and others on a free port."""
    return RendezvousServer([LOOPBACK, *others], 0, SECRET, **{"patience": PROMPT, **options})


def joining(rank: int, name: str | None = None, **fields: Any) -> Joining:
    """Return what a host brings, whose server has a port by its rank."""
    whole = {"version": gputopo.__version__, "address": f"10.0.0.{rank}", "port": 4000 + rank, **fields}
    return Joining(rank=rank, name=name or f"n{rank}", **whole)


UNUSED = RunEnd(exit_code=0, cause="1 host is enough")


def guest(
    of: RendezvousServer | int, secret: bytes = SECRET, patience: HostTimeouts = PROMPT
) -> RendezvousClient:
    """Return the connection of a host to a meeting, or to a port."""
    port = of if isinstance(of, int) else of.port
    return RendezvousClient(LOOPBACK, port, secret, patience=patience)


class Later(Generic[T]):
    """What a function returns that runs in a thread; `result` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._results.append(self._work())

    def result(self, within_s: float = 10) -> T:
        self._thread.join(within_s)
        assert self._results, "it has not ended, or failed"
        return self._results[0]


def started(of: RendezvousServer, *ranks: int, patience: HostTimeouts = PROMPT) -> list[RendezvousClient]:
    """Let all other ranks join and start them; return their connections."""
    guests = [guest(of, patience=patience) for _ in ranks]
    replies = [Later(partial(each.join, joining(rank))) for rank, each in zip(ranks, guests, strict=True)]
    of.answer(dict.fromkeys(of.wait(5), START))
    assert all(isinstance(each.result(), HostStart) for each in replies)
    return guests
