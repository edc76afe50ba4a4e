"""A supervised run in a temporary folder, with a time limit."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.jobs.supervised import Run


@pytest.fixture
def ends_in_time() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError("a run did not end")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(600)  # of a busy machine
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path: Path, ends_in_time: None) -> Run:
    return Run(tmp_path)
