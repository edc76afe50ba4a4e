from dataclasses import replace

import pytest

from gputopo.launch.hosts import RendezvousClient, RendezvousServer, RunEnd
from gputopo.values.errors import HardwareError
from tests.kit.ports import free_port
from tests.launch.hosts.meetings import (
    LOOPBACK,
    PROMPT,
    SECRET,
    UNUSED,
    Hang,
    Later,
    guest,
    hang_rank_0,
    joining,
    meeting,
    started,
)

NO_DISK = RunEnd(exit_code=3, cause="no disk")


def test_a_host_that_comes_before_rank_0_waits_for_it() -> None:
    port = free_port()
    later = Later(lambda: guest(port).join(joining(1), 5))
    with RendezvousServer([LOOPBACK, "n1"], port, SECRET, patience=PROMPT) as one:
        one.wait(5)
        one.answer({1: UNUSED})
        assert later.result() == UNUSED


def test_a_name_that_cannot_be_resolved_is_an_error_of_the_name_and_not_waited_for_to_excuse() -> None:
    for of, timeout_s in ((joining(1), 0), (joining(1, unable=NO_DISK), 60)):
        with pytest.raises(HardwareError) as failed:
            RendezvousClient("no-such-host.invalid", 4000, SECRET, patience=PROMPT).join(of, timeout_s)
        assert "IP address" in failed.value.hint


def test_a_host_ends_by_itself_when_rank_0_is_silent() -> None:
    hang = Hang()
    with meeting("n1", patience=replace(PROMPT, end_s=0.0), note=hang) as one:
        (its,) = started(one, 1)
        hang_rank_0(one, hang)
        its.outlast()
        assert its.end is not None
        assert "has not answered for 0.3 s" in str(its.end.cause)


def test_a_host_that_ends_by_an_error_lets_rank_0_end_first() -> None:
    with meeting("n1") as one:
        (its,) = started(one, 1)
        outlasting = Later(its.outlast)
        one.end(RunEnd(exit_code=3))
        with pytest.raises(AssertionError):
            outlasting.result(0.4)  # longer than a silence: rank 0 still shows that it is there
    outlasting.result()
