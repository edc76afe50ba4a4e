"""Threads of an input pipeline."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train.inputs.threads import private_threads


@pytest.mark.parametrize(
    ("cores", "backend", "running", "threads"),
    [(2, "cpu", 2, 1), (8, "cpu", 2, 6), (40, "gpu", 8, 8), (16, "gpu", 8, 1), (16, "gpu", 1, 12)],
)
def test_the_pipeline_gets_the_cores_that_the_towers_leave(
    cores: int, backend: Literal["cpu", "gpu"], running: int, threads: int
) -> None:
    given_ = private_threads(None, cores=cores, backend=backend, running=running, per_gpu_threads=2)
    assert given_ == threads


@given(st.integers(1, 512), st.sampled_from(["cpu", "gpu"]), st.integers(1, 16), st.integers(0, 8))
def test_there_is_one_thread_at_least_and_no_more_than_cores(
    cores: int, backend: Literal["cpu", "gpu"], running: int, each: int
) -> None:
    threads = private_threads(None, cores=cores, backend=backend, running=running, per_gpu_threads=each)
    assert 1 <= threads <= cores


def test_what_was_asked_for_is_given() -> None:
    assert private_threads(3, cores=1, backend="gpu", running=8, per_gpu_threads=2) == 3
