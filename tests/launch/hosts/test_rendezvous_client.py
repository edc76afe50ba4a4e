import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

import gputopo
from gputopo.launch.hosts.messages import RunEnd, Unable, Unused
from gputopo.launch.hosts.rendezvous_client import LeaderGoneError, RendezvousClient, Reporting
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.events import Noticed
from tests.launch.hosts.meetings import LOOPBACK, PROMPT, SECRET, Later, guest, joining, meeting, started


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as bound:
        return int(bound.getsockname()[1])


@contextmanager
def answering(what: bytes) -> Iterator[int]:
    """A server that answers every connection with these bytes; yields its port."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(what)

        threading.Thread(target=answer, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def test_a_host_that_comes_before_rank_0_waits_for_it() -> None:
    port = free_port()
    later = Later(lambda: guest(port, 1).join(joining(1), 5))
    with RendezvousServer([LOOPBACK, "n1"], port, SECRET, patience=PROMPT) as one:
        one.wait(5)
        one.answer({1: Unused(why="")})
        assert later.result() == Unused(why="")


def test_a_rank_0_that_is_not_there_is_named_with_what_to_look_at() -> None:
    port = free_port()
    with pytest.raises(HardwareError) as failed:
        guest(port, 1).join(joining(1), 0.05)
    assert failed.value.what == (
        f"rank 0 at 127.0.0.1 port {port} did not answer within 0.05 s: connection refused"
    )
    assert "start rank 0" in failed.value.hint


def test_a_host_that_cannot_join_waits_a_little_for_a_rank_0_to_tell_and_not_for_a_name() -> None:
    unable = Unable(rank=1, name="n1", version=gputopo.__version__, what="no disk", hint="", exit_code=3)
    port = free_port()
    later = Later(lambda: guest(port, 1).excuse(unable, 60))
    with (
        RendezvousServer([LOOPBACK, "n1"], port, SECRET, patience=PROMPT) as one,
        pytest.raises(HardwareError),
    ):
        one.wait(60)
    later.result()
    guest(port, 1).excuse(unable, 0.05)
    RendezvousClient(1, "no-such-host.invalid", 4000, SECRET, patience=PROMPT).excuse(unable, 60)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 300])
def test_a_name_that_cannot_be_resolved_is_an_error_of_the_name(name: str) -> None:
    with pytest.raises(HardwareError) as failed:
        RendezvousClient(1, name, 4000, SECRET, patience=PROMPT).join(joining(1), 0)
    assert "IP address" in failed.value.hint


@pytest.mark.parametrize(
    "what", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 404 Not Found\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[1]"]
)
def test_another_program_at_the_port_is_recognised_at_once(what: bytes) -> None:
    with answering(what) as port, pytest.raises(UsageError, match="it is not a gputopo run"):
        guest(port, 1).join(joining(1), 60)


def test_a_rank_0_that_hangs_is_given_up_after_the_time_to_join() -> None:
    with socket.create_server((LOOPBACK, 0)) as listening:  # accepts by the kernel, and answers nothing
        port = listening.getsockname()[1]
        hasty = RendezvousClient(1, LOOPBACK, port, SECRET, patience=replace(PROMPT, greeting_s=0.1))
        with pytest.raises(HardwareError, match="no answer") as failed:
            hasty.join(joining(1), 0.05)
    assert "firewall" in failed.value.hint


def test_a_host_ends_by_itself_when_rank_0_is_gone() -> None:
    with meeting("n1", patience=replace(PROMPT, end_s=0.0)) as one:
        (its,) = started(one, 1)
        one._is_closed = True
        one._thread.join()
        for connection in one._connections:
            connection.close()
        with Reporting(its) as telling:
            telling.put(Noticed(time_s=0.0, says="is lost"))
            telling._thread.join(5)
        assert telling.end is not None
        assert telling.end.exit_code == 3
        assert f"rank 0 at 127.0.0.1 port {one.port} has ended" in str(telling.end.cause)


def test_a_host_ends_by_itself_when_rank_0_is_silent() -> None:
    with meeting("n1", patience=replace(PROMPT, end_s=0.0)) as one:
        (its,) = started(one, 1)
        with one._changed, Reporting(its) as telling:  # its thread waits
            telling._thread.join(5)
            assert telling.end is not None
            assert "has not answered for 0.3 s" in str(telling.end.cause)


def error_of(its: RendezvousClient) -> str:
    with pytest.raises(LeaderGoneError) as failed:
        its.join(joining(1))
    return failed.value.what


def test_a_rank_0_that_ends_while_hosts_wait_is_named() -> None:
    with meeting("n1", patience=replace(PROMPT, end_s=0.0)) as one:
        later = Later(partial(error_of, guest(one, 1)))
        one.wait(5)
        one._is_closed = True
        one._thread.join()
        for connection in one._connections:
            connection.close()
        assert "has ended" in later.result()


def test_a_host_that_ends_by_an_error_lets_rank_0_end_first() -> None:
    with meeting("n1") as one:
        (its,) = started(one, 1)
        outlasting = Later(its.outlast)
        one.end(RunEnd(exit_code=3))
        with pytest.raises(AssertionError):
            outlasting.result(0.1)
    outlasting.result()
