"""Reads all that NVML reports, in a child process: a call that hangs or crashes costs itself and no more.

Where one does, another child goes on without it. About the GPU of that call it asks again what was answered
before, and nothing else.
"""

import time
from typing import Self

from gputopo.probes import child
from gputopo.probes.child import Child, Desk
from gputopo.probes.gpus.received import NvmlAnswers, Received


class Reading:
    """A reading of NVML that begins at once, in a child; `answers` waits for its end. Close it (`with`)."""

    def __init__(self) -> None:
        self._received = Received()
        self._until_s = time.monotonic() + child.WHOLE_S
        self._child = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.close()

    def answers(self) -> NvmlAnswers:
        """Wait for the answers and return them. Never raises for what a driver does."""
        while self._child is not None:
            answer = self._child.answer(max(self._until_s - time.monotonic(), 0.1))
            self._child.close()
            self._received.add(answer)
            again = answer.stop is not None and time.monotonic() < self._until_s
            self._child = self._start() if again else None
        return self._received.answers()

    def _start(self) -> Child | None:
        try:
            return Child(self._work)
        except OSError:  # a limit of processes
            self._received.error = "NO_CHILD_PROCESS"
            return None

    def _work(self, desk: Desk) -> None:
        from gputopo.probes.gpus.asking import ask_in_child  # with pynvml: only the child needs it

        ask_in_child(self._received, desk)
