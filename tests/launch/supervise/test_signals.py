"""Signals to the launcher outside of a worker's life: between two runs, and while a result is written."""

import os
import signal

import pytest

from gputopo.launch.supervise import EndedError, caught, deferred, raised


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_between_runs_they_raise_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(EndedError, match=number.name) as ended, raised():
        os.kill(os.getpid(), number)
    assert ended.value.number == number
    assert signal.getsignal(number) is before


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raised():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)  # and nothing is raised
    finally:
        signal.signal(signal.SIGHUP, before)


def test_while_a_worker_is_watched_they_are_noted_instead() -> None:
    with raised(), caught() as pipe:
        os.kill(os.getpid(), signal.SIGTERM)
        assert os.read(pipe, 9) == bytes((signal.SIGTERM,))


def test_what_is_being_written_is_written_to_its_end_and_the_first_signal_counts() -> None:
    done = []

    def write() -> None:
        with deferred():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGINT)
            done.append("written")

    with raised(), pytest.raises(EndedError, match="SIGHUP"):
        write()
    assert done == ["written"]
