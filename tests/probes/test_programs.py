"""Programs that measure: what they print is read, and one that misbehaves costs its transfer alone."""

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from gputopo.captures.bandwidth.network import read_perftest
from gputopo.copies.nccl_hosts import ALL_BYTES, BYTES, Rate, environment, pair_command
from gputopo.copies.network import QUICK, Nccl, Program, Rdma, Timing
from gputopo.probes.processes import tethered
from gputopo.probes.programs import Ended, ProgramError, Programs, all_reduce_of, rate_of, run_all
from gputopo.probes.tcp import Listener, connected, latency
from gputopo.values.bandwidth import Bandwidth
from tests.kit.dialects.nccl_tests import one_size
from tests.probes.stand_ins import TAKEN, Fault, MpiFault, NcclTests, StandIns

HERE = "127.0.0.1"
LONG = Timing(warm_s=0.1, window_s=0.1, windows=3, latency_s=20.0, start_s=20.0)
ROCE = Rdma(device="mlx5_3", port=2, link_layer="Ethernet", gid_index=5)
INFINIBAND = Rdma(device="mlx5_0", port=1, link_layer="InfiniBand")


def programs(timing: Timing = LONG, rdma: Rdma | None = INFINIBAND) -> Programs:
    return Programs(timing, 4, rdma, partial(tethered, signum=signal.SIGKILL))


@contextlib.contextmanager
def listening(own: Programs) -> Iterator[int]:
    with Listener(socket.AF_INET, HERE) as listener:
        listener.token, listener.serve = "secret", own.serve
        yield listener.port


def transfer(program: Program, own: Programs | None = None) -> tuple[float, ...]:
    own = own or programs()
    with listening(own) as port:
        return own.transfer(program, HERE, port, "secret")


def test_the_windows_of_iperf3_are_what_arrived_after_the_warm_up(stand_ins: StandIns) -> None:
    stand_ins.print_iperf3((0.1, 1.0, 1.5, 1.25))
    assert transfer("iperf3") == (1.0, 1.5, 1.25)
    server, client = stand_ins.calls
    assert server.startswith("iperf3 -J -p ")
    assert server.endswith("-i 0.1 -s -1 -B 127.0.0.1")
    assert client.endswith("-i 0.1 -c 127.0.0.1 -P 4 -t 1 --get-server-output")
    assert stand_ins.all_ended()


def test_without_its_servers_intervals_iperf3_has_one_number(stand_ins: StandIns) -> None:
    file = stand_ins.folder / "iperf3.txt"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({name: document[name] for name in ("start", "intervals", "end")}))
    (rate,) = transfer("iperf3")
    assert rate == pytest.approx(document["end"]["sum_received"]["bits_per_second"] / 8e9)


@pytest.mark.parametrize("program", ["ib_write_bw", "ib_write_lat"])
def test_perftest_is_read_and_asked_for_the_port_of_each_host(stand_ins: StandIns, program: Program) -> None:
    text = (stand_ins.folder / f"{program}.txt").read_text()
    bandwidth = read_perftest(text, origin="x").machine.bandwidth
    assert bandwidth is not None
    (sample,) = bandwidth.samples
    assert transfer(program, programs(rdma=ROCE)) == (sample.median_us or sample.median_gb_per_s,)
    server, client = stand_ins.calls
    assert client == f"{server} 127.0.0.1"
    assert " -d mlx5_3 -i 2 -x 5 " in server
    own = "-s 8 -n 1000" if program == "ib_write_lat" else "-s 65536 -q 4 --report_gbits -D 1 -f 0"
    assert server.endswith(own)


def test_infiniband_has_no_gid_index(stand_ins: StandIns) -> None:
    transfer("ib_write_bw")
    assert all(" -d mlx5_0 -i 1 -s " in call for call in stand_ins.calls)


@pytest.mark.parametrize(
    ("program", "server", "client", "words"),
    [
        ("iperf3", None, "exit", "iperf3 ended with exit code 1: for lack of memory"),
        ("iperf3", None, "garbage", "iperf3 printed no result: [2J{{ what is this"),
        ("iperf3", None, "nothing", "iperf3 printed no result"),
        ("iperf3", None, "killed", "iperf3 was ended by signal 9"),
        ("iperf3", None, "flood", "iperf3 printed more than 4 MiB"),
        ("iperf3", "exit", None, "its server: iperf3 ended with exit code 1: for lack of memory"),
        ("iperf3", "taken", None, f"its server: iperf3: {TAKEN}"),
        ("iperf3", "killed", None, "its server: iperf3 was ended by signal 9"),
        ("ib_write_bw", None, "exit", "ib_write_bw ended with exit code 1: for lack of memory"),
        ("ib_write_bw", None, "garbage", "ib_write_bw printed no result: [2J{{ what is this"),
        ("ib_write_lat", "garbage", None, "its server: ib_write_lat printed no result"),
    ],
)
def test_a_program_that_misbehaves_costs_its_transfer(
    stand_ins: StandIns, program: Program, server: Fault | None, client: Fault | None, words: str
) -> None:
    with listening(programs()) as port:
        stand_ins.misbehave(server=server, client=client)
        with pytest.raises(ProgramError) as failed:
            programs().transfer(program, HERE, port, "secret")
        assert words in str(failed.value)
        assert stand_ins.all_ended()
        stand_ins.misbehave()
        assert programs().transfer(program, HERE, port, "secret")


@pytest.mark.parametrize(
    ("server", "client", "start_s", "words"),
    [(None, "hang", 1.7, "iperf3 did not end within 3.0 s"), ("hang", None, 0.4, "in time")],
)
def test_a_program_that_hangs_is_ended_after_its_time(
    stand_ins: StandIns, server: Fault | None, client: Fault | None, start_s: float, words: str
) -> None:
    stand_ins.misbehave(server=server, client=client)
    with pytest.raises(ProgramError, match=words):
        transfer("iperf3", programs(msgspec.structs.replace(LONG, start_s=start_s)))
    assert stand_ins.all_ended()


def test_a_server_that_starts_slowly_is_waited_for(stand_ins: StandIns) -> None:
    stand_ins.misbehave(server="slow")
    assert transfer("iperf3")


def test_a_server_ends_with_the_connection_of_who_asked_for_it(stand_ins: StandIns) -> None:
    with listening(programs()) as port:
        with connected(HERE, port, "secret", "iperf3", LONG) as connection:
            assert json.loads(connection.recv(100))["port"] > 0
            assert len(stand_ins.calls) == 1
        assert stand_ins.all_ended()


@pytest.mark.parametrize("name", ["sh", "iperf3;true", "ib_read_bw"])
def test_no_other_program_is_started(stand_ins: StandIns, name: str) -> None:
    with listening(programs()) as port:
        with connected(HERE, port, "secret", name, LONG) as connection:
            assert connection.recv(100) == b""
        assert latency(HERE, port, "secret", QUICK)
    assert stand_ins.calls == []


def test_a_host_that_cannot_be_reached_is_no_fault_of_the_program(stand_ins: StandIns) -> None:
    with listening(programs()) as port, pytest.raises(ConnectionError, match="refused"):
        programs().transfer("iperf3", HERE, port, "guess")
    with pytest.raises(ConnectionRefusedError):
        programs().transfer("iperf3", HERE, port, "secret")
    assert stand_ins.calls == []


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_the_real_iperf3_measures_loopback() -> None:
    rates = transfer("iperf3", programs(msgspec.structs.replace(QUICK.of("iperf3"), start_s=20.0)))
    assert 4 <= len(rates) <= 12
    assert all(0 < rate < 1000 for rate in rates)


HOSTS = ("10.0.0.1", "10.0.0.2")
LONG_S = 20.0


def run(nccl: NcclTests, limit_s: float = LONG_S, pairs: int = 1) -> list[Rate | str]:
    own = Nccl(mpirun=str(nccl.folder / "mpirun"), program=str(nccl.folder / "sendrecv_perf"), gpus=1)
    commands = [pair_command(HOSTS, own, QUICK, os.environ)] * pairs
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


@pytest.mark.parametrize("fault", ["hang", "stuck"])
def test_a_run_that_hangs_is_ended_with_all_that_it_started(
    nccl: NcclTests, monkeypatch: pytest.MonkeyPatch, fault: MpiFault
) -> None:
    monkeypatch.setattr("gputopo.probes.programs.GRACE_S", 0.5)
    nccl.plan({"": fault})
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
    own = Nccl(mpirun="/usr/bin/mpirun", program="/opt/sendrecv_perf", gpus=8)
    variables = {"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "TRACE", "NCCL_TESTS_SPLIT": "1", "HOME": "/root"}
    words = pair_command(HOSTS, own, QUICK, variables)
    assert words[words.index("env") + 1 : words.index("/opt/sendrecv_perf")] == [
        "NCCL_IB_HCA=mlx5",
        "NCCL_DEBUG=INFO",
        "NCCL_DEBUG_SUBSYS=INIT,NET",
    ]
