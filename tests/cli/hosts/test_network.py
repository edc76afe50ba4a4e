"""`gputopo bandwidth --network`: what is refused, and two hosts on loopback by a stand-in for ssh."""

import json
import os
import platform
import sys
from pathlib import Path
from random import Random

import pytest

import gputopo
from gputopo.launch.hosts import Joining, Resources
from gputopo.runs import BoxHistory
from gputopo.values import schema
from gputopo.values.machine import Machine, Nic, NicPort
from tests.cli.conftest import Call
from tests.kit.dialects.nccl_tests import one_size
from tests.kit.dialects.network import Iperf3, iperf3_json
from tests.launch.hosts.environs import slurm_step
from tests.launch.jobs.test_network import ALL_BYTES, PAIR_BYTES


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (["--network"], "--network needs other hosts", "srun"),
        (["--network", "--num-hosts", "1"], "--network needs other hosts", "--hosts LIST"),
        (["--network-tool", "iperf3"], "--network-tool is for measuring between hosts", "--network"),
        (["--network", "--network-tool", "tcp"], "--network-tool cannot be 'tcp'", "nccl-tests"),
        (["--network", "--gpus", "0"], "--gpus is for one host", "remove it"),
        (["--hosts", "a,b", "--soak", "1"], "--soak is for one host", "remove it"),
        (["--hosts", "a,b", "--from", "x"], "--from is for one host", "remove it"),
        (["--network", "--num-hosts", "2"], "rank of this host is not given", "--node-rank N"),
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


_IPERF3 = """\
#!{python} -IS
import socket, sys, time
words = sys.argv[1:]
port = int(words[words.index("-p") + 1])
if "-s" in words:
    socket.create_server((words[words.index("-B") + 1], port)).accept()[0].recv(1)
else:
    try:
        socket.create_connection((words[words.index("-c") + 1], port)).close()
    except OSError as error:
        sys.exit('{{"start": {{}}, "error": "error - unable to connect to server: %s"}}' % error)
    print({text!r})
"""
_MPIRUN = """\
#!/bin/sh
case "$*" in *all_reduce_perf*) cat {folder}/all.txt ;; *) cat {folder}/pair.txt ;; esac
"""


@pytest.fixture
def programs(ssh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that is first in PATH, with iperf3; and a GPU on both hosts."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:41:00.0").mkdir(parents=True)
    monkeypatch.setenv("GPUTOPO_ROOT", str(tmp_path))
    bin = tmp_path / "programs"
    bin.mkdir()
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    text, _ = iperf3_json(Random(1), Iperf3(streams=4))
    install(bin / "iperf3", _IPERF3.format(python=os.readlink("/proc/self/exe"), text=text))
    return bin


def install(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)


def test_two_hosts_are_measured_where_others_do_not_answer(call: Call, programs: Path) -> None:
    done = call("bandwidth", "--hosts", "refused,127.0.0.2,127.0.0.3", "--json", "--save")
    assert done.code == 3, done.err
    document = json.loads(done.out)
    assert (document["schema"], document["complete"]) == ("gputopo.bandwidth/1", False)
    own = platform.node()
    ends = {(one["source"], one["destination"], one["tool"]) for one in document["samples"]}
    assert ends == {(f"host:{own}#{a}", f"host:{own}#{b}", "iperf3") for a, b in ((0, 1), (1, 0))}
    assert "measuring between 2 hosts by iperf3: about 8 s" in done.err
    assert "no ib_write_bw: " in document["notes"][0]
    (lacking,) = document["not_measured"]
    assert lacking["what"] == "transfers of refused"
    assert "Connection refused" in lacking["reason"]
    assert "not saved" in done.err


_ANSWERS = """\
#!/bin/sh
case "$*" in *hosts.answer*) cat {folder}/answer ;; *) exec {python} "$@" ;; esac
"""


def test_nccl_tests_of_all_hosts_are_judged_by_the_ports_of_the_first(
    call: Call, programs: Path, tmp_path: Path
) -> None:
    port = NicPort(index=0, state="ACTIVE", rate_gbit_per_s=100.0, rdma_device="mlx5_0", rdma_port=1)
    own = Machine(source="live", nics=(Nic(index=0, ports=(port,)),))
    names = {name: str(programs / name) for name in ("mpirun", "sendrecv_perf", "all_reduce_perf")}
    answer = Joining(
        rank=0,
        name="n",
        version=gputopo.__version__,
        address="10.0.0.1",
        machine=own,
        resources=Resources(programs=names, gpus=1),
    )
    (tmp_path / "answer").write_bytes(schema.encode(answer) + b"\n")
    install(tmp_path / "python", _ANSWERS.format(folder=tmp_path, python=sys.executable))
    hosts = ("--hosts", "n1,n2", "--remote-python", str(tmp_path / "python"), "--network-tool", "nccl-tests")
    install(programs / "mpirun", _MPIRUN.format(folder=programs))
    (programs / "pair.txt").write_text(one_size("sendrecv", 12.5, PAIR_BYTES))
    (programs / "all.txt").write_text(one_size("all_reduce", 2.0, ALL_BYTES))
    done = call("bandwidth", *hosts, "--save")
    assert done.code == 0, done.err
    assert "measuring between 2 hosts by nccl-tests: at most 60 s" in done.err
    words = " ".join(done.out.split())
    assert "while both send, GB/s, by nccl-tests" in words
    assert "all-reduce over 2 GPUs, 256 MiB: 2 GB/s of bus bandwidth, expected 12.5, at least 6.25" in words
    assert "a ring over 1 RDMA port of 100 Gbit/s of each host" in words
    saved = BoxHistory().latest_network({"n1", "n2"})
    assert saved is not None
    (programs / "pair.txt").write_text("ssh: connect to host 127.0.0.3 port 22: No route to host\n")
    done = call("bandwidth", *hosts)
    assert (done.code, done.out) == (3, "")
    assert "nccl-tests measured nothing between these hosts: " in done.err
    assert "No route to host" in done.err
