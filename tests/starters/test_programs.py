"""A program of the user on several hosts, by each starter: it knows the others, and the starter ends it."""

from pathlib import Path

import pytest

from tests.starters.cluster import Cluster
from tests.starters.runs import GPUTOPO, WAYS, environ

pytestmark = pytest.mark.starters

SHOWS = 'echo "rank $RANK of $WORLD_SIZE, rank 0 is $MASTER_ADDR"'
FAILS = 'if test "$RANK" = 1; then exit 7; fi; exec sleep 600'


def program(way: str, script: str, *before: str) -> list[str]:
    """Return the command of a script on hosts n1 and n2."""
    given = {"n": 2, "hosts": "n1,n2"}
    first, after = ([word.format(**given) for word in words] for words in WAYS[way])
    return [*first, *before, *GPUTOPO, "run", "--cpu", *after, "--", "sh", "-c", script]


@pytest.mark.parametrize("way", WAYS)
def test_a_program_runs_once_on_each_host_and_knows_the_others(
    hosts: Cluster, way: str, tmp_path: Path
) -> None:
    code, out, err = hosts.start(program(way, SHOWS), environ(tmp_path)).ended()
    assert code == 0, err
    for rank in (0, 1):
        assert f"rank {rank} of 2, rank 0 is n1" in out + err


@pytest.mark.parametrize(("way", "before"), [("srun", ["--kill-on-bad-exit"]), ("mpirun", []), ("ssh", [])])
def test_what_started_a_program_ends_it_on_the_other_hosts_if_it_fails_on_one(
    hosts: Cluster, way: str, before: list[str], tmp_path: Path
) -> None:
    code, _, err = hosts.start(program(way, FAILS, *before), environ(tmp_path)).ended()
    assert code != 0, err
    assert "gputopo: sh ended with exit code 7" in err
