import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from gputopo.launch.hosts.messages import RunEnd
from gputopo.launch.hosts.rendezvous_client import LeaderGoneError, RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.values.errors import HardwareError
from tests.launch.hosts.meetings import (
    LOOPBACK,
    PROMPT,
    SECRET,
    UNUSED,
    Later,
    guest,
    joining,
    meeting,
    started,
)

NO_DISK = RunEnd(exit_code=3, cause="no disk")


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as bound:
        return int(bound.getsockname()[1])


def test_a_host_that_comes_before_rank_0_waits_for_it() -> None:
    port = free_port()
    later = Later(lambda: guest(port).join(joining(1), 5))
    with RendezvousServer([LOOPBACK, "n1"], port, SECRET, patience=PROMPT) as one:
        one.wait(5)
        one.answer({1: UNUSED})
        assert later.result() == UNUSED


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 300])
def test_a_name_that_cannot_be_resolved_is_an_error_of_the_name_and_not_waited_for_to_excuse(
    name: str,
) -> None:
    for of, timeout_s in ((joining(1), 0), (joining(1, unable=NO_DISK), 60)):
        with pytest.raises(HardwareError) as failed:
            RendezvousClient(name, 4000, SECRET, patience=PROMPT).join(of, timeout_s)
        assert "IP address" in failed.value.hint


def die(one: RendezvousServer, held: ExitStack) -> None:
    """Have rank 0 end without a word."""
    one._end = RunEnd(exit_code=0)
    held.close()


def test_a_host_ends_by_itself_when_rank_0_is_gone() -> None:
    with ExitStack() as held:
        one = held.enter_context(meeting("n1"))
        (its,) = started(one, 1)
        die(one, held)
        its.outlast()
        assert its.end is not None
        assert its.end.exit_code == 3
        assert its.end.cause == f"rank 0 at 127.0.0.1 port {one.port} has ended"


def error_of(its: RendezvousClient) -> str:
    with pytest.raises(LeaderGoneError) as failed:
        its.join(joining(1))
    return failed.value.what


def test_a_rank_0_that_ends_while_hosts_wait_is_named() -> None:
    with ExitStack() as held:
        one = held.enter_context(meeting("n1"))
        later = Later(partial(error_of, guest(one)))
        one.wait(5)
        die(one, held)
        assert "has ended" in later.result()


def test_a_host_ends_by_itself_when_rank_0_is_silent() -> None:
    with meeting("n1", patience=replace(PROMPT, end_s=0.0)) as one:
        (its,) = started(one, 1)
        one._loop.call_soon_threadsafe(time.sleep, 1.0)
        its.outlast()
        assert its.end is not None
        assert "has not answered for 0.3 s" in str(its.end.cause)


def test_a_host_that_ends_by_an_error_lets_rank_0_end_first() -> None:
    with meeting("n1") as one:
        (its,) = started(one, 1)
        outlasting = Later(its.outlast)
        one.end(RunEnd(exit_code=3))
        with pytest.raises(AssertionError):
            outlasting.result(0.5)  # longer than a silence: rank 0 still shows that it is there
    outlasting.result()
