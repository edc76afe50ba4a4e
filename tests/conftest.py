"""Temporary folders in memory where there is room: the kit's /sys trees are thousands of small files."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the machine is noisy, and a slow moment is no fault. What is slow is measured in benchmarks.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2**30


def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None and not hasattr(config, "workerinput") and _has_room():
        config.option.basetemp = tempfile.mkdtemp(prefix="gputopo-tests-", dir=_MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker has one left at the end."""
    items.sort(key=lambda item: item.get_closest_marker("sessions") is None)  # stable: else in their order


def _has_room() -> bool:
    return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
