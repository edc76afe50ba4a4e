"""Tests with real starters: run by `.ci/starters` (-m starters), and skipped elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.starters.cluster import Cluster, cluster, lacking


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    why = "run by .ci/starters" if config.option.markexpr != "starters" else lacking()
    for item in items:
        if why is not None and item.get_closest_marker("starters"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as hosts:
        yield hosts


@pytest.fixture
def hosts(made: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """The hosts, on which nothing runs at the end of a test, 15 s after it."""
    yield made
    made.close()
    _, alive = psutil.wait_procs(made.left(), timeout=15)
    left = [one.cmdline() for one in alive]
    for one in alive:
        one.kill()
    made.slurm("scancel", "--user=root", "--signal=KILL")
    assert not left
