"""Variables cut on logical CPU devices as they are on GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from gputopo.workload import spreading


@contextmanager
def cut_as_on_gpus(min_chunk: int = spreading.MIN_CHUNK) -> Iterator[None]:
    """Cut variables into parts of at least `min_chunk` numbers, on CPU devices too."""
    from gputopo.launch.train.placement import algorithms, partitioning

    with (
        patch.object(partitioning, "share_memory", lambda devices: False),
        patch.object(spreading, "MIN_CHUNK", min_chunk),
        patch.object(algorithms, "MIN_CHUNK", min_chunk),
    ):
        yield
