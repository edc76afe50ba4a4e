import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gputopo.probes import streaming
from gputopo.probes.streaming import Feed, Limits, StreamingChild
from tests.probes.test_child import gone

# Of what returns: never reached, however busy the machine is.
PATIENT = Limits(start_s=60.0, call_s=60.0, nvml_s=60.0, quiet_s=60.0, end_s=60.0, reap_s=60.0)
HANGS_S = {"start_s": 0.6, "call_s": 0.3, "nvml_s": 0.2}


@contextmanager
def child(work: Callable[[Feed], None], limits: Limits = PATIENT) -> Iterator[tuple[StreamingChild, int]]:
    with StreamingChild(work, limits) as one:
        pid = one._pid
        assert pid is not None
        yield one, pid
    assert gone(pid)


def lines(work: Callable[[Feed], None], **limits_s: float) -> tuple[list[bytes], str]:
    with child(work, PATIENT._replace(**limits_s)) as (one, _):
        found = [line for line in one.lines() if line]
        assert one.stop is not None
        return found, one.stop.text


def test_lines_come_as_they_are_written_and_outlive_the_child() -> None:
    def work(feed: Feed) -> None:
        feed.put({"a": "b\nc"})
        feed.put("x" * 200_000)
        os.kill(os.getpid(), signal.SIGKILL)

    found, stop = lines(work)
    assert found == [b'{"a":"b\\nc"}', b'"' + b"x" * 200_000 + b'"']
    assert stop == "the measuring process ended with SIGKILL"


@pytest.mark.parametrize(
    ("library", "function", "limit_s"),
    [("cuda", "cuMemAlloc", 0.3), ("nvml", "nvmlInit", 0.2), ("cuda", "cuInit", 0.6)],
)
def test_a_call_has_its_own_limit(library: str, function: str, limit_s: float) -> None:
    def work(feed: Feed) -> None:
        feed.put(1)
        getattr(feed, library).begin(function, "3")
        time.sleep(60)

    assert lines(work, **HANGS_S) == ([b"1"], f"{function} of GPU 3 did not return within {limit_s:g} s")


def test_calls_that_return_are_news_however_long_they_take_together() -> None:
    def work(feed: Feed) -> None:
        for _ in range(24):
            feed.cuda.begin("cuEventQuery", "0")
            time.sleep(0.05)
            feed.cuda.end()
        feed.put("done")
        os._exit(0)

    assert lines(work, call_s=1.0) == ([b'"done"'], "the measuring process ended with exit code 0")


def test_a_child_that_makes_no_call_and_writes_nothing_is_given_up() -> None:
    stop = "the measuring process made no progress for 0.2 s"
    assert lines(lambda feed: time.sleep(60), quiet_s=0.2) == ([], stop)


def test_an_interrupt_ends_the_work_and_no_line_is_halved() -> None:
    def work(feed: Feed) -> None:
        try:
            while True:
                feed.put("y" * 50_000)
        except KeyboardInterrupt:
            feed.put("interrupted")

    with child(work) as (one, _):
        found: list[bytes] = []
        for line in one.lines():
            found.append(line)
            if len(found) == 3:
                one.interrupt()
    assert found[-1] == b'"interrupted"'
    assert set(found[:-1]) <= {b"", b'"' + b"y" * 50_000 + b'"'}


def test_a_child_that_cannot_be_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "reaped", lambda pid, wait_s: None)
    with StreamingChild(lambda feed: time.sleep(60), PATIENT) as one:
        pid = one._pid
        one.finish()
        assert one.abandoned == pid
        assert list(one.lines()) == []
    assert pid is not None
    os.waitpid(pid, 0)


def test_the_end_is_waited_for_a_little() -> None:
    with child(lambda feed: time.sleep(0.05)) as (one, _):
        one.finish()
        assert one.abandoned is None
