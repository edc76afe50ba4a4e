import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import gputopo
from gputopo.launch.hosts.messages import RunEnd, Unable, Unused
from gputopo.launch.hosts.rendezvous_client import LeaderGoneError, RendezvousClient, Reporting
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.events import Noticed
from tests.launch.hosts.meetings import LOOPBACK, PROMPT, Later, guest, joining, meeting, started


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
    later = Later(lambda: RendezvousClient(1, LOOPBACK, port, patience=PROMPT).join(joining(1), 5))
    with RendezvousServer([LOOPBACK, "n1"], port, patience=PROMPT) as one:
        one.wait(5)
        one.answer({1: Unused(why="")})
        assert later.result() == Unused(why="")


def test_a_rank_0_that_is_not_there_is_named_with_what_to_look_at() -> None:
    port = free_port()
    with pytest.raises(HardwareError) as failed:
        RendezvousClient(1, LOOPBACK, port, patience=PROMPT).join(joining(1), 0.05)
    assert failed.value.what == (
        f"rank 0 at 127.0.0.1 port {port} did not answer within 0.05 s: connection refused"
    )
    assert "start rank 0" in failed.value.hint


def test_a_host_that_cannot_join_waits_a_little_for_a_rank_0_to_tell_and_not_for_a_name() -> None:
    unable = Unable(rank=1, name="n1", version=gputopo.__version__, what="no disk", hint="", exit_code=3)
    port = free_port()
    later = Later(lambda: RendezvousClient(1, LOOPBACK, port, patience=PROMPT).excuse(unable, 60))
    with RendezvousServer([LOOPBACK, "n1"], port, patience=PROMPT) as one, pytest.raises(HardwareError):
        one.wait(60)
    later.result()
    RendezvousClient(1, LOOPBACK, port, patience=PROMPT).excuse(unable, 0.05)
    RendezvousClient(1, "no-such-host.invalid", 4000, patience=PROMPT).excuse(unable, 60)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 300])
def test_a_name_that_cannot_be_resolved_is_an_error_of_the_name(name: str) -> None:
    with pytest.raises(HardwareError) as failed:
        RendezvousClient(1, name, 4000, patience=PROMPT).join(joining(1), 0)
    assert "IP address" in failed.value.hint


@pytest.mark.parametrize(
    "what", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 404 Not Found\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[1]"]
)
def test_another_program_at_the_port_is_recognised_at_once(what: bytes) -> None:
    with answering(what) as port, pytest.raises(UsageError, match="is not a gputopo run"):
        RendezvousClient(1, LOOPBACK, port, patience=PROMPT).join(joining(1), 60)


def test_a_rank_0_that_hangs_is_given_up_after_the_time_to_join() -> None:
    with socket.create_server((LOOPBACK, 0)) as listening:  # accepts by the kernel, and answers nothing
        port = listening.getsockname()[1]
        with pytest.raises(HardwareError, match="no answer") as failed:
            RendezvousClient(1, LOOPBACK, port, patience=replace(PROMPT, request_s=0.1)).join(
                joining(1), 0.05
            )
    assert "firewall" in failed.value.hint


def test_a_host_ends_by_itself_when_rank_0_is_gone() -> None:
    with meeting("n1", patience=replace(PROMPT, end_s=0.0)) as one:
        (its,) = started(one, 1)
        one._server.shutdown()
        one._server.server_close()
        with Reporting(its) as telling:
            telling.put(Noticed(time_s=0.0, says="is lost"))
            telling._thread.join(5)
        assert telling.end is not None
        assert telling.end.exit_code == 3
        assert "has not answered for 0.3 s: connection refused" in str(telling.end.cause)


def test_one_request_without_an_answer_is_no_end_and_its_events_come_with_the_next() -> None:
    with meeting("n1") as one:
        (its,) = started(one, 1)
        its._port = free_port()
        assert its.tell([Noticed(time_s=0.0, says="a")]) is None
        its._port = one.port
        assert its.tell([Noticed(time_s=0.0, says="b")]) is None
        assert [event.says for event in one.events.take() if isinstance(event, Noticed)] == ["a", "b"]
        assert its.tell() is None
        assert list(one.events.take()) == []


def test_a_rank_0_that_was_started_again_does_not_know_the_host() -> None:
    with meeting("n1") as one, pytest.raises(LeaderGoneError, match="does not know this host"):
        guest(one, 1).tell()


def test_a_host_that_ends_by_an_error_lets_rank_0_end_first() -> None:
    with meeting("n1") as one:
        (its,) = started(one, 1)
        outlasting = Later(its.outlast)
        one.end(RunEnd(exit_code=3))
        with pytest.raises(AssertionError):
            outlasting.result(0.1)
    outlasting.result()


def test_many_events_go_in_requests_of_a_limited_size() -> None:
    with meeting("n1") as one:
        (its,) = started(one, 1)
        its.tell([Noticed(time_s=0.0, says=f"{number} {'x' * 400_000}") for number in range(5)])
        its.tell()
        its.tell()
        says = [event.says.split()[0] for event in one.events.take() if isinstance(event, Noticed)]
        assert says == list("01234")
