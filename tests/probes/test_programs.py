"""nccl-tests by mpirun: what its runs print is read, and one that misbehaves gives its reason."""

import os
import signal
from functools import partial

import pytest

from gputopo.copies.nccl_hosts import ALL_BYTES, BYTES, Rate, command, environment, variables_of
from gputopo.copies.network import QUICK, Ended, NcclPrograms
from gputopo.probes.processes import tethered
from gputopo.probes.programs import all_reduce_of, rate_of, run_all
from gputopo.values.bandwidth import Bandwidth
from tests.kit.dialects.nccl_tests import one_size
from tests.probes.stand_ins import MpiFault, NcclTests

HOSTS = (("10.0.0.1", 1), ("10.0.0.2", 1))
LONG_S = 20.0


def run(nccl: NcclTests, limit_s: float = LONG_S, pairs: int = 1) -> list[Rate | str]:
    own = NcclPrograms(mpirun=str(nccl.folder / "mpirun"), program=str(nccl.folder / "sendrecv_perf"), gpus=1)
    commands = [command(HOSTS, own, QUICK)] * pairs
    wrap = partial(tethered, signum=signal.SIGTERM)
    ended = run_all(commands, environment(os.environ), limit_s, wrap)
    assert nccl.all_ended()
    return [rate_of(one) for one in ended]


def test_the_rate_of_a_pair_is_read_with_what_the_log_shows_of_its_path(nccl: NcclTests) -> None:
    nccl.plan({"": 12.5})
    assert run(nccl, pairs=2) == [Rate(12.5, ("card mlx5_0", "NET/IB", "GDRDMA"))] * 2
    (words, _), _ = nccl.calls
    assert words[words.index("--host") + 1] == "10.0.0.1:1,10.0.0.2:1"
    assert words[-10:] == ["-b", str(BYTES), "-e", str(BYTES), "-g", "1", "-w", "2", "-n", "10"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("single", "sendrecv_perf ran as 2 single processes: it was built without MPI=1"),
        (
            "unreachable",
            "mpirun ended with exit code 1: ssh: connect to host 10.0.0.2 port 22: No route to host",
        ),
        ("exit", "out of memory"),
        ("crash", "mpirun ended with exit code"),
        ("garbage", "sendrecv_perf printed no result: [2J{{ what is this"),
        ("nothing", "sendrecv_perf printed no result"),
        ("flood", "mpirun printed more than 4 MiB"),
    ],
)
def test_a_run_without_a_result_is_its_reason(nccl: NcclTests, fault: MpiFault, says: str) -> None:
    nccl.plan({"": fault})
    (found,) = run(nccl)
    assert isinstance(found, str)
    assert says in found


def test_a_run_that_hangs_is_ended_with_all_that_it_started(
    nccl: NcclTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputopo.probes.programs.GRACE_S", 0.1)
    nccl.plan({"": "stuck"})
    assert run(nccl, limit_s=1.0, pairs=2) == ["mpirun did not end within 1 s"] * 2
    assert len(nccl.calls) == 2


def test_what_was_started_is_ended_where_another_cannot_be(nccl: NcclTests) -> None:
    nccl.plan({"": "hang"})
    sleeping = ["sleep", "60"]
    with pytest.raises(FileNotFoundError):
        run_all([sleeping, ["/nowhere"]], os.environ, LONG_S, lambda one: one)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (one_size("sendrecv", 1.0, BYTES, hosts=3), "sendrecv_perf ran 3 ranks on 3 hosts, not 2 on 2"),
        (
            one_size("sendrecv", 1.0, BYTES).replace("node1", "node0"),
            "sendrecv_perf ran 2 ranks on 1 hosts, not 2 on 2",
        ),
        (
            one_size("sendrecv", 1.0, BYTES).replace("    0  ", "   37  "),
            "37 wrong elements at 67108864 bytes",
        ),
        ("\n".join(one_size("sendrecv", 1.0, BYTES).splitlines()[:9]), "sendrecv_perf printed no result"),
    ],
)
def test_only_an_exchange_of_two_hosts_with_right_data_counts(text: str, says: str) -> None:
    assert rate_of(Ended(text, 0)) == says


def test_a_result_of_a_run_that_failed_does_not_count() -> None:
    assert rate_of(Ended(one_size("sendrecv", 1.0, BYTES), 134)) == "mpirun ended with exit code 134"


def test_wrong_data_of_an_all_reduce_is_a_failure_of_it() -> None:
    text = one_size("all_reduce", 10.0, ALL_BYTES).replace("    0  ", "   37  ")
    found = all_reduce_of(Ended(text, 1), ranks=2, hosts=2)
    assert isinstance(found, Bandwidth)
    assert {(one.kind, one.reason) for one in found.failures} == {("allreduce", "WRONG_DATA")}


def test_the_variables_of_another_mpirun_do_not_reach_this_one() -> None:
    inner = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_ess_base_jobid": "1",
        "PMIX_NAMESPACE": "1",
        "SLURM_JOB_ID": "7",
        "NCCL_TESTS_SPLIT": "%2",
        "NCCL_DEBUG_FILE": "/tmp/log",
    }
    kept = {
        "PATH": "/bin",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    assert environment(inner | kept) == {
        **kept,
        "OMPI_MCA_plm_rsh_args": "-o BatchMode=yes -o ConnectTimeout=10",
    }
    own = {"OMPI_MCA_plm_rsh_args": "-p 2222"}
    assert environment(own) == own


def test_nccls_own_variables_are_set_on_both_hosts() -> None:
    environ = {"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "TRACE", "NCCL_TESTS_SPLIT": "1", "HOME": "/root"}
    own = NcclPrograms(
        mpirun="/usr/bin/mpirun", program="/opt/sendrecv_perf", gpus=8, variables=variables_of(environ)
    )
    words = command(HOSTS, own, QUICK)
    assert words[words.index("env") + 1 : words.index("/opt/sendrecv_perf")] == [
        "NCCL_IB_HCA=mlx5",
        "NCCL_DEBUG=INFO",
        "NCCL_DEBUG_SUBSYS=INIT,NET",
    ]
