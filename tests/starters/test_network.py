"""The network between three hosts by Open MPI's own mpirun, with a stand-in for sendrecv_perf."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gputopo.copies.network.by_nccl import BYTES
from tests.kit.dialects.nccl_tests import one_size
from tests.starters.cluster import Cluster
from tests.starters.runs import GPUTOPO, WAYS, environ

pytestmark = pytest.mark.starters

_PROGRAM = """\
#!{python} -IS
import os, platform, sys, time
here = {here!r}
with open(f"{{here}}/ranks", "a") as ranks:
    ranks.write(f"{{os.environ['OMPI_COMM_WORLD_RANK']}} of {{os.environ['OMPI_COMM_WORLD_SIZE']}} "
                f"on {{platform.node()}} {{os.environ.get('NCCL_IB_HCA')}}\\n")
if os.path.exists(f"{{here}}/hangs"):
    print("begun", flush=True)
    time.sleep(600)
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    print(open(f"{{here}}/printed").read())
"""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """The variables of who types it: a GPU on each host, and sendrecv_perf in PATH."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)
    program = tmp_path / "sendrecv_perf"
    program.write_text(_PROGRAM.format(python=sys.executable, here=str(tmp_path)))
    program.chmod(0o755)
    (tmp_path / "printed").write_text(one_size("sendrecv", 12.5, BYTES))
    own = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "GPUTOPO_ROOT": str(tmp_path)}
    return {**environ(tmp_path), **own, "NCCL_IB_HCA": "mlx5_0"}


def measure(way: str, size: int) -> list[str]:
    before, after = WAYS[way]
    if before[:1] == ("mpirun",):
        before = (*before[:1], "-x", "PATH", "-x", "GPUTOPO_ROOT", "-x", "NCCL_IB_HCA", *before[1:])
    hosts = {"n": size, "hosts": ",".join(f"n{number}" for number in range(1, size + 1))}
    own = (*GPUTOPO, "bandwidth", "--network", "--network-tool", "nccl-tests", "--json")
    return [word.format(**hosts) for word in (*before, *own, *after)]


@pytest.mark.parametrize("way", ["srun", "mpirun"])
def test_each_pair_is_two_ranks_of_open_mpi_on_two_hosts(
    hosts: Cluster, given: dict[str, str], tmp_path: Path, way: str
) -> None:
    code, out, err = hosts.start(measure(way, 3), given).ended()
    assert code == 0, err
    found = json.loads(out)
    assert {one["tool"] for one in found["samples"]} == {"nccl-tests"}
    assert len(found["samples"]) == 6
    ranks = sorted((tmp_path / "ranks").read_text().splitlines())
    assert len(ranks) == 6
    assert {line.partition(" on ")[0] for line in ranks} == {"0 of 2", "1 of 2"}
    places = [line.split()[4] for line in ranks]
    assert all(places.count(host) == 2 for host in ("n1", "n2", "n3"))
    assert all(line.endswith(" mlx5_0") for line in ranks)


def test_a_host_that_open_mpi_cannot_reach_is_an_error_with_the_words_of_ssh(
    hosts: Cluster, given: dict[str, str]
) -> None:
    elsewhere = {**given, "OMPI_MCA_plm_rsh_args": "-p 23"}
    code, out, err = hosts.start(measure("srun", 2), elsewhere).ended()
    assert (code, out) == (3, "")
    assert "n1 with n2: mpirun ended with exit code 255: ssh: connect to host 10.77.0.12 port 23:" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_runs_on_both_hosts_ends_with_gputopo(
    hosts: Cluster, given: dict[str, str], tmp_path: Path, number: int
) -> None:
    (tmp_path / "hangs").touch()
    started = hosts.start(measure("srun", 2), given)
    started.until("by nccl-tests")
    program = str(tmp_path / "sendrecv_perf")

    def running(host: str) -> list[psutil.Process]:
        return [*hosts.processes(host, program), *hosts.processes(host, "orted"), *mpiruns(host)]

    def mpiruns(host: str) -> list[psutil.Process]:
        return hosts.processes(host, "--bind-to", "none", "--host")

    until(lambda: (tmp_path / "ranks").exists() and len((tmp_path / "ranks").read_text().splitlines()) == 2)
    found = [*running("n1"), *running("n2")]
    (leads,) = (one for one in hosts.processes("n1", "-m", "gputopo") if one.cmdline()[0] == sys.executable)
    leads.send_signal(number)
    started.ended(30)
    _, alive = psutil.wait_procs(found, timeout=15)
    assert found
    assert not [one.cmdline() for one in alive]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
