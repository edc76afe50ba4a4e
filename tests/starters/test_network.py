"""The network between three hosts by Open MPI's own mpirun, with stand-ins for nccl-tests."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.kit.dialects.nccl_tests import one_size
from tests.launch.jobs.test_network import ALL_BYTES, PAIR_BYTES
from tests.starters.cluster import Cluster
from tests.starters.runs import GPUTOPO, WAYS, environ

pytestmark = pytest.mark.starters

_PROGRAM = """\
#!{python} -IS
import os, platform, sys
here = {here!r}
with open(f"{{here}}/ranks", "a") as ranks:
    ranks.write(f"{{os.environ['OMPI_COMM_WORLD_RANK']}} of {{os.environ['OMPI_COMM_WORLD_SIZE']}} "
                f"on {{platform.node()}} {{os.environ.get('NCCL_IB_HCA')}}\\n")
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    print(open(f"{{sys.argv[0]}}.txt").read())
"""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """The variables of who types it: a GPU on each host, and nccl-tests in PATH."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)
    printed = {
        "sendrecv_perf": one_size("sendrecv", 12.5, PAIR_BYTES),
        "all_reduce_perf": one_size("all_reduce", 10.0, ALL_BYTES, hosts=3),
    }
    for name, text in printed.items():
        program = tmp_path / name
        program.write_text(_PROGRAM.format(python=sys.executable, here=str(tmp_path)))
        program.chmod(0o755)
        (tmp_path / f"{name}.txt").write_text(text)
    own = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "GPUTOPO_ROOT": str(tmp_path)}
    return {**environ(tmp_path), **own, "NCCL_IB_HCA": "mlx5_0"}


def measure(size: int) -> list[str]:
    before, _ = WAYS["srun"]
    own = ("bandwidth", "--network", "--network-tool", "nccl-tests", "--json", "--join-timeout", "10")
    return [word.format(n=size) for word in (*before, *GPUTOPO, *own)]


def test_each_pair_is_two_ranks_of_open_mpi_on_two_hosts(
    hosts: Cluster, given: dict[str, str], tmp_path: Path
) -> None:
    code, out, err = hosts.start(measure(3), given).ended()
    assert code == 0, err
    found = json.loads(out)
    kinds = [one["kind"] for one in found["samples"]]
    assert (kinds.count("network"), kinds.count("allreduce")) == (6, 2)
    assert found["failures"] == []
    ranks = (tmp_path / "ranks").read_text().splitlines()
    of_pairs, of_all = (sorted(one for one in ranks if f"of {size} on" in one) for size in (2, 3))
    assert len(of_pairs) + len(of_all) == len(ranks) == 9
    places = [line.split()[4] for line in of_pairs]
    assert all(places.count(host) == 2 for host in ("n1", "n2", "n3"))
    assert of_all == [f"{rank} of 3 on n{rank + 1} mlx5_0" for rank in range(3)]
