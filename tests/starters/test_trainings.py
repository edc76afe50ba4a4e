"""The same training by each starter."""

import json
from pathlib import Path

import pytest

from tests.starters.cluster import NODES, Cluster
from tests.starters.runs import WAYS, environ, run

pytestmark = pytest.mark.starters


@pytest.mark.parametrize("way", WAYS)
def test_one_training_runs_over_three_hosts_and_its_result_is_printed_once(
    hosts: Cluster, way: str, tmp_path: Path
) -> None:
    started = hosts.start(run(way, "--num-batches", "5", "--json", size=3), environ(tmp_path))
    code, out, err = started.ended()
    assert code == 0, err
    result = json.loads(out)
    assert result["steps"] == 5
    assert [row["device"]["host"] for row in result["devices"]] == list(NODES)
    assert [row["device"]["rank"] for row in result["devices"]] == [0, 1, 2]
    assert err.count("the run ended with exit code 0: its result is on rank 0") == 2
