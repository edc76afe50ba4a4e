"""`gputopo bandwidth --network`: what is refused, and two hosts on loopback, the other one a thread."""

import json
import platform
import socket
from pathlib import Path

import pytest

from gputopo.copies.network import Timing
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.hosts.messages import Refused, RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.jobs.network import take_part
from gputopo.probes.equipment import nccl_at
from gputopo.probes.tcp import Listener
from gputopo.runs.history import history_file, latest_network
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine, Nic, NicPort
from tests.cli.conftest import Call, Called
from tests.launch.hosts.environs import slurm_step
from tests.launch.hosts.meetings import LOOPBACK, Later, joining
from tests.probes.stand_ins import NcclTests

SHORT = Timing(warm_s=0.01, window_s=0.01, windows=3, latency_s=0.01, gap_s=0.02, lead_s=0.05)


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (["--network"], "--network is between hosts, and no others are named", "srun"),
        (["--network", "--num-hosts", "1"], "--network is between hosts", "--hosts LIST"),
        (["--network-tool", "iperf3"], "--network-tool is for measuring between hosts", "--network"),
        (["--network", "--network-tool", "iperf"], "--network-tool cannot be 'iperf'", "iperf3"),
        (["--network", "--gpus", "0"], "--gpus is for one host", "leave it out"),
        (["--hosts", "a,b", "--soak", "1"], "--soak is for one host", "leave it out"),
        (["--hosts", "a,b", "--from", "x"], "--from is for one host", "leave it out"),
        (["--network", "--num-hosts", "2"], "rank of this one is not given", "--node-rank N"),
        (["--hosts", "a,b", "--node-rank", "2"], "rank 2 is outside", "0 to 1"),
        (["--hosts", "8.8.8.8,b", "--node-rank", "0"], "8.8.8.8 is public", "private"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_two_lines(
    call: Call, options: list[str], what: str, hint: str
) -> None:
    done = call("bandwidth", *options)
    assert (done.code, done.out) == (2, "")
    first, second = done.err.strip().splitlines()
    assert what in first
    assert hint in second


def test_a_slurm_step_alone_measures_each_host_for_itself(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step(node=1).items():
        monkeypatch.setenv(name, text)
    done = call("bandwidth", "--from", "7gforce")
    assert (done.code, done.err) == (0, "")  # no other host was waited for


def test_rank_0_shows_what_two_hosts_measured(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputopo.cli.hosts.network.QUICK", SHORT)
    port = free_port()

    def other() -> RunEnd:
        with Listener(socket.AF_INET, LOOPBACK) as listener:
            asked = {"network": True, "full": False, "network_tool": "auto", "num_hosts": 2}
            own = joining(1, "n1", address=LOOPBACK, port=listener.port, asked=asked)
            return take_part(RendezvousClient(1, LOOPBACK, port), own, listener, 10)

    later = Later(other)
    done = call("bandwidth", "--hosts", f"{LOOPBACK}:{port},n1", "--node-rank", "0", "--json", "--save")
    assert later.result() == RunEnd(exit_code=done.code)
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schema"] == "gputopo.bandwidth/1"
    kinds = [one["kind"] for one in document["samples"]]
    assert (kinds.count("network"), kinds.count("network_latency")) == (4, 1)
    assert "measuring between 2 hosts" in done.err
    assert "TCP probe" in document["notes"][0]
    saved = latest_network(history_file(), {"n1", platform.node()})
    assert saved is not None
    assert len(saved.bandwidth.samples) == len(document["samples"])


def test_a_tool_that_another_host_lacks_is_refused_on_both(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "iperf3").symlink_to("/bin/true")  # this host has it
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    port = free_port()
    asked = {"network": True, "full": False, "network_tool": "iperf3"}
    lacks = {"tools": {"lacks": {"iperf3": "iperf3 is not installed"}}}

    def other() -> str:
        own = joining(1, "n1", address=LOOPBACK, port=1, asked=asked, resources=lacks)
        reply = RendezvousClient(1, LOOPBACK, port).join(own, 10)
        assert isinstance(reply, Refused)
        return reply.what

    later = Later(other)
    options = ("--hosts", f"{LOOPBACK}:{port},n1", "--node-rank", "0", "--network-tool", "iperf3")
    done = call("bandwidth", *options)
    assert (done.code, done.out) == (3, "")
    assert "iperf3 cannot measure between these hosts: iperf3 is not installed (" in done.err
    assert "n1" in done.err
    assert "install iperf3 on all hosts" in done.err.splitlines()[-1]
    assert later.result() in done.err


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    """GPUs, mpirun and sendrecv_perf on this host."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)
    monkeypatch.setenv("GPUTOPO_ROOT", str(tmp_path))
    monkeypatch.setattr("gputopo.cli.hosts.network.QUICK", SHORT)
    return NcclTests(tmp_path, monkeypatch)


def with_nccl(call: Call, nccl: NcclTests, tool: str, *options: str) -> tuple[Called, RunEnd | Refused]:
    """Return how rank 0 ends, and what the other host, which has the same tools, learns of it."""
    port = free_port()
    asked = {"network": True, "full": False, "network_tool": tool}

    def other() -> RunEnd | Refused:
        tools = {"nccl": nccl_at(LOOPBACK, nccl.folder), "lacks": {"ib_write_bw": "-", "iperf3": "-"}}
        with Listener(socket.AF_INET, LOOPBACK) as listener:
            own = joining(
                1, "n1", address=LOOPBACK, port=listener.port, asked=asked, resources={"tools": tools}
            )
            try:
                return take_part(RendezvousClient(1, LOOPBACK, port), own, listener, 10)
            except HardwareError as error:
                return Refused(what=error.what, hint=error.hint, exit_code=int(error.exit_code))

    later = Later(other)
    hosts = ("--hosts", f"{LOOPBACK}:{port},n1", "--node-rank", "0", "--network-tool", tool)
    return call("bandwidth", *hosts, *options), later.result(30)


def test_nccl_tests_are_shown_saved_and_their_end_is_learnt_by_the_other_host(
    call: Call, nccl: NcclTests
) -> None:
    nccl.plan({"": 12.5})
    done, end = with_nccl(call, nccl, "nccl-tests", "--save")
    assert end == RunEnd(exit_code=done.code)
    assert done.code == 0, done.err
    assert "measuring between 2 hosts by nccl-tests: at most 60 s for each round" in done.err
    assert "Between hosts, by nccl-tests" in done.out
    assert "while both send, GB/s, by nccl-tests" in done.out
    assert "latency: half" not in done.out
    assert "nccl-tests sends in both directions of a pair at once" in " ".join(done.out.split())
    saved = latest_network(history_file(), {"n1", platform.node()})
    assert saved is not None
    assert {(one.tool, one.median_gb_per_s) for one in saved.bandwidth.samples} == {("nccl-tests", 12.5)}


def test_an_all_reduce_of_all_gpus_is_judged_by_the_ports_of_this_host(
    call: Call, nccl: NcclTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = NicPort(index=0, state="ACTIVE", rate_gbit_per_s=100.0, rdma_device="mlx5_0", rdma_port=1)
    own = Machine(source="live", nics=(Nic(index=0, ports=(port,)),))
    monkeypatch.setattr("gputopo.cli.bandwidth.machine_from", lambda _: own)
    nccl.install_all_reduce(2.0, hosts=2)
    nccl.plan({"": 12.5})
    done, end = with_nccl(call, nccl, "nccl-tests")
    assert end == RunEnd(exit_code=done.code)
    assert "Collective operations" in done.out
    words = " ".join(done.out.split())
    assert "all-reduce over 2 GPUs, 256 MiB: 2 GB/s of bus bandwidth, expected 12.5, at least 6.25" in words
    assert "a ring over 1 RDMA port of 100 Gbit/s of each host" in words


def test_nccl_tests_that_measure_nothing_are_an_error_where_they_were_asked_for(
    call: Call, nccl: NcclTests
) -> None:
    nccl.plan({"": "single"})
    done, end = with_nccl(call, nccl, "nccl-tests")
    assert (done.code, done.out) == (3, "")
    first, second = done.err.strip().splitlines()[-2:]
    assert "nccl-tests cannot measure between these hosts: " in first
    assert "ran as 2 single processes: it was built without MPI=1" in first
    assert "made with MPI=1" in second
    assert isinstance(end, Refused)
    assert (end.what, end.exit_code) == (first.removeprefix("gputopo: "), 3)


def test_the_next_tool_measures_where_nccl_tests_were_not_asked_for(call: Call, nccl: NcclTests) -> None:
    nccl.plan({"": "unreachable"})
    done, end = with_nccl(call, nccl, "auto", "--json")
    assert end == RunEnd(exit_code=0)
    document = json.loads(done.out)
    assert {one["tool"] for one in document["samples"]} == {"TCP probe"}
    assert "no nccl-tests: " in document["notes"][0]
    assert "ssh: connect to host 127.0.0.1 port 22: No route to host" in document["notes"][0]


def test_another_host_shows_nothing_and_ends_with_rank_0(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from gputopo.copies.network import NetworkHost
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer
    from gputopo.launch.jobs.network import lead, order_of

    asked = {"network": True, "full": False, "network_tool": "auto", "num_hosts": 2}

    with RendezvousServer([LOOPBACK, "n1"], 0, asked=asked) as meeting:

        def first() -> bool:
            with Listener(socket.AF_INET, LOOPBACK) as listener:
                own = NetworkHost(name="n0", address=LOOPBACK, port=listener.port)
                found = lead(meeting, order_of(own, meeting.wait(10), SHORT, "auto"), listener)
                meeting.end(RunEnd(exit_code=1))
                return found.complete

        later = Later(first)
        done = call("bandwidth", "--hosts", f"{LOOPBACK}:{meeting.port},n1", "--node-rank", "1")
        assert later.result()
    assert (done.code, done.out) == (1, "")
    assert "its result is on rank 0" in done.err
