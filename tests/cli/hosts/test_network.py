"""`gputopo bandwidth --network`: what is refused, and two hosts on loopback by a stand-in for ssh."""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.cli.hosts import asking, network
from gputopo.copies.network import Done, Order, Timing
from gputopo.launch.hosts.messages import Joining
from gputopo.runs.history import history_file, latest_network
from gputopo.values.machine import Machine, Nic, NicPort
from tests.cli.conftest import Call, Called
from tests.launch.hosts.environs import slurm_step
from tests.probes.stand_ins import NcclTests

SHORT = Timing(warm_s=0.01, window_s=0.01, windows=3, latency_s=0.01)


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (["--network"], "--network is between hosts, and no others are named", "srun"),
        (["--network", "--num-hosts", "1"], "--network is between hosts", "--hosts LIST"),
        (["--network-tool", "tcp"], "--network-tool is for measuring between hosts", "--network"),
        (["--network", "--network-tool", "iperf"], "--network-tool cannot be 'iperf'", "nccl-tests"),
        (["--network", "--gpus", "0"], "--gpus is for one host", "leave it out"),
        (["--hosts", "a,b", "--soak", "1"], "--soak is for one host", "leave it out"),
        (["--hosts", "a,b", "--from", "x"], "--from is for one host", "leave it out"),
        (["--network", "--num-hosts", "2"], "rank of this one is not given", "--node-rank N"),
        (["--hosts", "a,b", "--node-rank", "2"], "rank 2 is outside", "0 to 1"),
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


HOSTS = ("--hosts", "127.0.0.2,127.0.0.3")


def test_what_two_hosts_measured_is_shown_and_saved(
    call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputopo.cli.hosts.network.QUICK", SHORT)
    done = call("bandwidth", *HOSTS, "--network-tool", "tcp", "--json", "--save")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["schema"] == "gputopo.bandwidth/1"
    kinds = [one["kind"] for one in document["samples"]]
    assert (kinds.count("network"), kinds.count("network_latency")) == (4, 1)
    assert "measuring between 2 hosts" in done.err
    assert "TCP probe" in document["notes"][0]
    own = platform.node()
    saved = latest_network(history_file(), {f"{own}#0", f"{own}#1"})
    assert saved is not None
    assert len(saved.bandwidth.samples) == len(document["samples"])


def test_the_others_are_measured_where_hosts_do_not_answer(
    call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputopo.cli.hosts.network.QUICK", SHORT)
    hosts = ("--hosts", "refused,127.0.0.2,127.0.0.3", "--network-tool", "tcp")
    done = call("bandwidth", *hosts, "--json", "--save")
    assert done.code == 3
    document = json.loads(done.out)
    assert (document["complete"], len(document["samples"])) == (False, 5)
    (lacking,) = document["not_measured"]
    assert lacking["what"] == "transfers of refused"
    assert "Connection refused" in lacking["reason"]
    assert "not saved" in done.err
    done = call("bandwidth", "--hosts", "refused,127.0.0.2")
    assert (done.code, done.out) == (3, "")
    assert "sshd runs on it" in done.err


def test_a_transfer_that_fails_between_hosts_that_are_all_there_is_a_finding(
    call: Call, ssh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(orders: Mapping[int, Order], **_: Any) -> dict[int, Done]:
        return {rank: Done(error="timed out") if rank else Done(values=(1.0, 1.0, 1.0)) for rank in orders}

    monkeypatch.setattr(network, "_done", done)
    found = call("bandwidth", *HOSTS, "--network-tool", "tcp", "--json", "--save")
    document = json.loads(found.out)
    assert (found.code, document["complete"]) == (1, True), found.err
    assert {one["source"] for one in document["failures"]} == {f"host:{platform.node()}#1"}
    assert "not saved: some transfers between hosts have no result" in found.err


def test_a_tool_that_a_host_lacks_is_refused(
    call: Call, ssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTOPO_ROOT", str(tmp_path))
    done = call("bandwidth", *HOSTS, "--network-tool", "nccl-tests")
    assert (done.code, done.out) == (3, "")
    assert "nccl-tests cannot measure between these hosts: no GPU (all hosts)" in done.err
    assert "it needs GPUs" in done.err.splitlines()[-1]


@pytest.fixture
def nccl(ssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    """GPUs, mpirun and sendrecv_perf on both hosts."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)
    monkeypatch.setenv("GPUTOPO_ROOT", str(tmp_path))
    monkeypatch.setattr("gputopo.cli.hosts.network.QUICK", SHORT)
    return NcclTests(tmp_path, monkeypatch)


def with_nccl(call: Call, tool: str, *options: str) -> Called:
    return call("bandwidth", *HOSTS, "--network-tool", tool, *options)


def test_nccl_tests_of_the_first_host_are_shown_and_saved(call: Call, nccl: NcclTests) -> None:
    nccl.plan({"": 12.5})
    done = with_nccl(call, "nccl-tests", "--save")
    assert done.code == 0, done.err
    assert "measuring between 2 hosts by nccl-tests: at most 60 s" in done.err
    assert "Between hosts, by nccl-tests" in done.out
    assert "while both send, GB/s, by nccl-tests" in done.out
    assert "latency: half" not in done.out
    assert "nccl-tests sends in both directions of a pair at once" in " ".join(done.out.split())
    saved = latest_network(history_file(), {f"{platform.node()}#0", f"{platform.node()}#1"})
    assert saved is not None
    assert {(one.tool, one.median_gb_per_s) for one in saved.bandwidth.samples} == {("nccl-tests", 12.5)}


def test_an_all_reduce_of_all_gpus_is_judged_by_the_ports_of_the_first_host(
    call: Call, nccl: NcclTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = NicPort(index=0, state="ACTIVE", rate_gbit_per_s=100.0, rdma_device="mlx5_0", rdma_port=1)
    own = Machine(source="live", nics=(Nic(index=0, ports=(port,)),))
    read = asking.read

    def with_port(*given: Any, **named: Any) -> Joining:
        return msgspec.structs.replace(read(*given, **named), machine=own)

    monkeypatch.setattr(network, "read", with_port)
    nccl.install_all_reduce(2.0, hosts=2)
    nccl.plan({"": 12.5})
    done = with_nccl(call, "nccl-tests")
    assert "Collective operations" in done.out
    words = " ".join(done.out.split())
    assert "all-reduce over 2 GPUs, 256 MiB: 2 GB/s of bus bandwidth, expected 12.5, at least 6.25" in words
    assert "a ring over 1 RDMA port of 100 Gbit/s of each host" in words


def test_nccl_tests_that_measure_nothing_are_an_error_where_they_were_asked_for(
    call: Call, nccl: NcclTests
) -> None:
    nccl.plan({"": "single"})
    done = with_nccl(call, "nccl-tests")
    assert (done.code, done.out) == (3, "")
    first, second = done.err.strip().splitlines()[-2:]
    assert "nccl-tests cannot measure between these hosts: " in first
    assert "ran as 2 single processes: it was built without MPI=1" in first
    assert "made with MPI=1" in second


def test_the_next_tool_measures_where_nccl_tests_were_not_asked_for(call: Call, nccl: NcclTests) -> None:
    nccl.plan({"": "unreachable"})
    done = with_nccl(call, "auto", "--json")
    document = json.loads(done.out)
    assert {one["tool"] for one in document["samples"]} == {"TCP probe"}
    assert "no nccl-tests: " in document["notes"][0]
    assert "ssh: connect to host 127.0.0.1 port 22: No route to host" in document["notes"][0]
