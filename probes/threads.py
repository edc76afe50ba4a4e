"""Threads that use memory which is freed afterwards: all have ended when the call returns."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class NoThreadsError(OSError):
    """The system starts no more threads (a limit of processes, as containers have)."""


class _Crew:
    """The running threads. Not Thread.join: after an interruption it reports a running thread as ended.

    (CPython 3.11, `Thread._wait_for_tstate_lock`: it releases the lock that the thread itself still holds.)
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._running = self._ended = 0
        self._closed = False

    def enter(self) -> bool:
        """Register a thread; False: closed, it must not start."""
        with self._news:
            self._running += not self._closed
            return not self._closed

    def leave(self) -> None:
        """Unregister a thread."""
        with self._news:
            self._running -= 1
            self._ended += 1
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until so many have ended."""
        with self._news:
            self._news.wait_for(lambda: self._ended >= count)

    def close(self) -> None:
        """Let no thread start, and wait for the running ones; an interruption is raised only then."""
        interruption: KeyboardInterrupt | None = None
        while True:
            try:
                with self._news:
                    self._closed = True
                    self._news.wait_for(lambda: not self._running)
                break
            except KeyboardInterrupt as error:
                interruption = error
        if interruption is not None:
            raise interruption


def at_once(tasks: Sequence[Callable[[], T]], abort: Callable[[], None] = lambda: None) -> list[T]:
    """Run tasks, each in its own thread, and return their results in order.

    All have ended when it returns, also where it is interrupted. `abort` is called before that is waited
    for: tasks that wait for one another must then go on. Raises NoThreadsError, and what the first of the
    tasks in order raised.
    """
    crew = _Crew()
    results: dict[int, T] = {}
    raised: dict[int, Exception] = {}

    def run(number: int, task: Callable[[], T]) -> None:
        if not crew.enter():
            return
        try:
            results[number] = task()
        except Exception as error:  # noqa: BLE001 (raised again, below)
            raised[number] = error
        finally:
            crew.leave()

    try:
        for number, task in enumerate(tasks):
            threading.Thread(target=run, args=(number, task), daemon=True).start()
        crew.wait_for(len(tasks))
    except RuntimeError as error:  # "can't start new thread"
        raise NoThreadsError(None, f"the system allows no more threads: {error}") from error
    finally:
        abort()
        crew.close()
    if raised:
        raise raised[min(raised)]
    return [results[number] for number in range(len(tasks))]
