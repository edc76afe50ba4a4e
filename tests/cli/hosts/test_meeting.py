"""`gputopo inspect` on several hosts at once, as their starters start it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.cli.hosts.meeting import address_of
from gputopo.launch.hosts import addresses, messages
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.hosts.allocation import Allocation, HostOptions
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.values.errors import HardwareError
from tests.cli.conftest import Call
from tests.launch.hosts.environs import slurm_step


def test_rank_0_compares_the_hosts_that_come_and_names_those_that_do_not(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()},n3"
    guest = subprocess.Popen(
        [sys.executable, "-m", "gputopo", "inspect", "--hosts", hosts, "--node-rank", "1"],
        env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("inspect", "--json", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "2.5")
    out, err = guest.communicate(timeout=60)
    assert (guest.returncode, out) == (0, ""), err
    assert "rank 0 has what was read of this host" in err
    assert done.code == 0
    found = json.loads(done.out)
    assert [host for kind in found["kinds"] for host in kind["hosts"]] == ["localhost", "localhost (2)"]
    assert found["unread"] == ["n3"]
    assert "n3 (rank 2)" in next(one["says"] for one in found["findings"] if one["id"] == "fleet.no_answer")


def test_a_host_of_another_command_does_not_take_part(call: Call, without_gpu: None) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        (*f"{sys.executable} -m gputopo run --cpu --model trivial --node-rank 1".split(), "--hosts", hosts),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("inspect", "--json", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "20")
    assert guest.communicate(timeout=60)
    assert guest.returncode == 2
    assert json.loads(done.out)["unread"] == ["localhost (2)"]


def test_a_rank_0_whose_name_is_not_known_yet_is_found_once_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[str | OSError] = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")] * 3
    answers.append("10.0.0.6")

    def own_address(name: str, port: int) -> str:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(addresses, "own_address", own_address)
    monkeypatch.setattr(messages, "RETRY_S", 0.0)
    pods = Allocation(rank=1, hosts=(HostAddress("set-workers-0-0.set"), HostAddress(None)), source="JobSet")
    assert address_of(pods, HostOptions()) == "10.0.0.6"
    said = "cannot find yet: Name or service not known; it is tried for 60 s"
    assert capsys.readouterr().err.count(said) == 1
    answers.append(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    with pytest.raises(HardwareError, match=r"cannot find: Name or service not known$"):
        address_of(pods, HostOptions(join_timeout=1e-9))


def test_inspect_looks_for_other_hosts_only_where_it_is_asked_to(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    assert call("inspect").code == 0
    done = call("inspect", "--fleet", "--join-timeout", "0.1")
    assert (done.code, "rank 0 is 'n1'" in done.err) == (2, True)
    for name in slurm_step():
        monkeypatch.delenv(name)
    done = call("inspect", "--fleet")
    assert done.code == 2
    assert "srun gputopo inspect --fleet" in done.err


def test_options_of_hosts_are_not_ignored_beside_files(call: Call, without_gpu: None) -> None:
    done = call("inspect", "--from", "7gforce", "--node-rank", "0")
    assert (done.code, done.out) == (2, "")
    assert "mutually exclusive" in done.err
    assert call("inspect", "--num-hosts", "1").code == 0


def test_hosts_that_count_one_another_differently_are_no_job(call: Call, without_gpu: None) -> None:
    two = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        [sys.executable, "-m", "gputopo", "inspect", "--hosts", f"{two},n3", "--node-rank", "1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("inspect", "--json", "--hosts", two, "--node-rank", "0", "--join-timeout", "2.5")
    _, err = guest.communicate(timeout=60)
    assert guest.returncode == 2
    assert "--num-hosts is 3 on localhost (rank 1), 2 on rank 0" in err
    assert len(json.loads(done.out)["unread"]) == 1
