"""Threads that use memory which is freed."""

import signal
import threading
from collections.abc import Callable

import pytest

from gputopo.probes.threads import NoThreadsError, at_once


def test_tasks_give_what_they_gave_in_order() -> None:
    assert at_once([lambda: 3, lambda: 1, lambda: 2]) == [3, 1, 2]
    assert at_once([]) == []


def test_the_first_error_in_order_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []

    def fails(number: int) -> Callable[[], None]:
        def task() -> None:
            ended.append(number)
            raise ValueError(number)

        return task

    with pytest.raises(ValueError, match="1"):
        at_once([lambda: ended.append(0), fails(1), fails(2)])
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("presses", [1, 3])
def test_an_interruption_is_raised_when_no_thread_runs_any_more(presses: int) -> None:
    for _ in range(20):
        going, go_on = threading.Event(), threading.Event()
        begun, ended = list[int](), list[int]()
        main = threading.main_thread().ident
        assert main is not None

        def work(
            going: threading.Event = going,
            go_on: threading.Event = go_on,
            begun: list[int] = begun,
            ended: list[int] = ended,
        ) -> None:
            begun.append(1)
            going.set()
            go_on.wait(10)
            ended.append(1)

        def press(going: threading.Event = going, go_on: threading.Event = go_on, main: int = main) -> None:
            going.wait(10)
            for _ in range(presses):
                signal.pthread_kill(main, signal.SIGINT)
            go_on.set()

        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            at_once([work, work, work])
        assert begun
        assert ended == begun


def test_a_system_without_threads_is_reported_when_those_that_began_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, begun = threading.Thread.start, list[threading.Thread]()
    barrier, running = threading.Barrier(2), list[int]()

    def refuse(thread: threading.Thread) -> None:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    def waits() -> None:
        running.append(1)
        try:
            barrier.wait()
        finally:
            running.pop()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThreadsError, match="no more threads"):
        at_once([waits, waits], barrier.abort)
    assert running == []
    assert len(begun) == 1
