"""Meetings on loopback for tests, with hosts that are threads, and little patience."""

import hmac
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

import gputopo
from gputopo.launch.hosts import (
    HostStart,
    HostTimeouts,
    Joining,
    RendezvousClient,
    RendezvousServer,
    RunEnd,
)

T = TypeVar("T")
PROMPT = HostTimeouts(silent_s=0.3, every_s=0.02, retry_s=0.01, greeting_s=5.0, end_s=5.0)
PATIENT = replace(PROMPT, silent_s=10.0)  # for a test that itself takes the CPU
LOOPBACK = "127.0.0.1"
SECRET = b"a secret of tests"
MAGIC = b"gputopo hosts 2\n"  # begins a connection
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
    of: RendezvousServer | int,
    secret: bytes = SECRET,
    patience: HostTimeouts = PROMPT,
    clock: Callable[[], float] = time.time,
) -> RendezvousClient:
    """Return the connection of a host to a meeting, or to a port."""
    port = of if isinstance(of, int) else of.port
    return RendezvousClient(LOOPBACK, port, secret, patience=patience, clock=clock)


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


class Hang:
    """Lets what calls it hang, longer than `PROMPT` hosts wait. It is also the clock of a host."""

    def __init__(self) -> None:
        self._asked = False

    def begin(self) -> None:
        """Let the next call hang."""
        self._asked = True

    def __call__(self, *_: object) -> float:
        if self._asked:
            self._asked = False
            time.sleep(0.7)
        return time.time()


def hang_rank_0(of: RendezvousServer, hang: Hang) -> None:
    """Let rank 0 hang: it notes a stranger by `hang`."""
    hang.begin()
    stranger = joining(1, job="of another job")
    threading.Thread(target=guest(of, patience=PATIENT).join, args=(stranger,), daemon=True).start()


def started(
    of: RendezvousServer,
    *ranks: int,
    patience: HostTimeouts = PROMPT,
    clock: Callable[[], float] = time.time,
) -> list[RendezvousClient]:
    """Let all other ranks join and start them; return their connections. `clock`: of the last of them."""
    guests = [guest(of, patience=patience) for _ in ranks[:-1]]
    guests.append(guest(of, patience=patience, clock=clock))
    replies = [Later(partial(each.join, joining(rank))) for rank, each in zip(ranks, guests, strict=True)]
    of.answer(dict.fromkeys(of.wait(5), START))
    assert all(isinstance(each.result(), HostStart) for each in replies)
    return guests


def signed(key: bytes, body: bytes, number: int = 0, *, leads: bool) -> bytes:
    """Return a message of rank 0, or of a host."""
    mac = hmac.digest(key, bytes((leads,)) + number.to_bytes(8) + body, "sha256")
    return len(body).to_bytes(4) + mac + body


def lead(connection: socket.socket, secret: bytes, says: Callable[[bytes], bytes]) -> None:
    """Speak as rank 0 does, by this secret; `says`: what follows the proof, by the key."""
    own, theirs = bytes(32), connection.recv(len(MAGIC) + 32, socket.MSG_WAITALL)[len(MAGIC) :]
    key = hmac.digest(secret, theirs + own, "sha256")
    connection.sendall(MAGIC + own + hmac.digest(key, b"rank 0", "sha256") + says(key))


@contextmanager
def stranger_at_rank_0(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A stranger who listens first, and serves whoever comes; yields the port."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    with listening.accept()[0] as connection, suppress(OSError):
                        serve(connection)
                        while connection.recv(65536):
                            pass

        threading.Thread(target=accept, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
