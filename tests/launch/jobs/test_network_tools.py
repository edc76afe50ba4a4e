"""What measures the network, when each pair is measured, by which commands, and what is expected."""

from itertools import combinations, permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs.network_tools import (
    NetworkHost,
    choose,
    expected,
    matchings,
    nccl_command,
    network_programs,
    rounds,
    transfer,
)
from gputopo.values.bandwidth import Expectation
from gputopo.values.errors import HardwareError
from gputopo.values.machine import NicPort
from tests import there

IB = NicPort(index=0, rdma_device="mlx5_0", rdma_port=1, state="ACTIVE", rate_gbit_per_s=400.0)
ALL = ("iperf3", "ib_write_bw", "mpirun", "sendrecv_perf")


def host(name: str = "n0", *, without: tuple[str, ...] = (), **facts: object) -> NetworkHost:
    programs = {program: f"/usr/bin/{program}" for program in ALL if program not in without}
    own = {"name": name, "address": "10.0.0.1", "programs": programs, "gpus": 8, "rdma": IB}
    return NetworkHost(**{**own, **facts})  # type: ignore[arg-type]


def test_the_first_tool_of_all_hosts_measures_and_why_none_before_it() -> None:
    hosts = [host("n0"), host("n1")]
    assert choose("auto", hosts) == choose("ib_write_bw", hosts) == ("ib_write_bw", None)
    assert choose("iperf3", hosts) == ("iperf3", None)
    hosts[1] = host("n1", rdma=None)
    assert choose("auto", hosts) == ("nccl-tests", "no ib_write_bw: no active RDMA port (n1)")
    with pytest.raises(HardwareError, match="no active RDMA port") as refused:
        choose("ib_write_bw", hosts)
    assert "perftest" in refused.value.hint


def test_what_each_host_lacks_and_what_to_install_is_one_error() -> None:
    hosts = [
        host("n0", without=("iperf3",), gpus=0, rdma=None),
        *(host(f"n{number}", without=("iperf3", "mpirun"), rdma=None) for number in (1, 2, 3)),
    ]
    with pytest.raises(HardwareError) as refused:
        choose("auto", hosts)
    assert refused.value.what == (
        "no tool can measure between these hosts: no ib_write_bw: no active RDMA port (all hosts); no "
        "nccl-tests: no GPU (n0), mpirun is not installed (n[1-3]); no iperf3: iperf3 is not installed "
        "(all hosts)"
    )
    assert "apt install iperf3" in refused.value.hint


@pytest.mark.parametrize("address", ["10.0.0.1:9,localhost", "-x", "n1"])
def test_programs_are_given_ip_addresses_only(address: str) -> None:
    with pytest.raises(HardwareError, match=r"no IP address \(n1\)"):
        choose("iperf3", [host(), host("n1", address=address)])
    assert choose("auto", [host(address="fd00::1"), host()])[0] == "iperf3"


@given(st.integers(2, 64))
def test_rounds_have_each_pair_once_and_leave_nobody_out(members: int) -> None:
    found = matchings(range(members))
    assert len(found) == (members - 1 if members % 2 == 0 else members)
    for pairs in found:
        busy = [one for pair in pairs for one in pair]
        assert len(busy) == len(set(busy)) == members - members % 2
    assert sorted(tuple(sorted(pair)) for pairs in found for pair in pairs) == [
        *combinations(range(members), 2)
    ]


@given(st.integers(2, 32))
def test_each_direction_is_measured_and_a_host_is_in_one_transfer(hosts: int) -> None:
    found = rounds("iperf3", hosts)
    at_once = found.pop() if hosts > 2 else [(0, 1)]
    assert {end for ends in at_once for end in ends} == set(range(hosts))
    assert sorted(ends for one in found for ends in one) == [*permutations(range(hosts), 2)]
    for one in found:
        busy = [rank for ends in one for rank in ends]
        assert len(busy) == len(set(busy))
    assert len(rounds("nccl-tests", hosts)) == len(found) // 2


def test_a_transfer_is_a_client_that_prints_and_a_server() -> None:
    hosts = [host("n0"), host("n1", address="10.0.0.2")]
    client, server = transfer("iperf3", hosts, (0, 1), 2, 20_001, {})
    assert (client[0], server[0]) == (0, 1)
    options = "-p 20001 -P 4 -t 2 -O 1 -i 0.5 -J"
    assert " ".join(client[1][4:]) == f"/usr/bin/iperf3 -c 10.0.0.2 {options}"
    assert " ".join(server[1]) == "/usr/bin/iperf3 -s -1 -B 10.0.0.2 -p 20001"
    client, server = transfer("ib_write_bw", hosts, (1, 0), 2, 20_001, {})
    options = "-d mlx5_0 -i 1 -F -p 20001 --report_gbits -s 65536 -q 4 -D 2 -f 0"
    assert (client[0], " ".join(client[1][4:])) == (1, f"/usr/bin/ib_write_bw {options} 10.0.0.1")
    assert " ".join(server[1]) == f"/usr/bin/ib_write_bw {options}"


def test_nccl_tests_get_nccl_s_variables_by_name_and_none_of_another_starter() -> None:
    environ = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_ess_base_jobid": "1",
        "PMIX_NAMESPACE": "1",
        "SLURM_JOB_ID": "7",
        "NCCL_TESTS_SPLIT": "%2",
        "NCCL_DEBUG_FILE": "/tmp/log",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "HOME": "/root",
        "NCCL_NET_PLUGIN_TOKEN": "secret",
    }
    rank, words = nccl_command([("10.0.0.1", 1), ("10.0.0.2", 1)], host(), 2, environ)
    assert rank == 0
    unset = [word.removeprefix("--unset=") for word in words if word.startswith("--unset=")]
    assert unset == [
        *("NCCL_DEBUG_FILE", "NCCL_TESTS_SPLIT", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess_base_jobid"),
        *("PMIX_NAMESPACE", "SLURM_JOB_ID"),
    ]
    assert " ".join(words).count("NCCL_NET_PLUGIN_TOKEN") == 1
    assert "secret" not in " ".join(words)
    assert "OMPI_MCA_plm_rsh_args=-o BatchMode=yes -o ConnectTimeout=10" in words
    assert "--host 10.0.0.1:1,10.0.0.2:1 -np 2 -x NCCL_NET_PLUGIN_TOKEN -x NCCL_DEBUG=INFO" in " ".join(words)
    assert not [
        word
        for word in nccl_command([("10.0.0.1", 1)], host(), 2, {"OMPI_MCA_plm_rsh_args": "-p 22"})[1]
        if word.startswith("OMPI_MCA")
    ]


def test_the_payload_of_the_slower_card_is_expected() -> None:
    fast = host(rate_gbit_per_s=25.0, mtu_bytes=1500)
    found = there(expected("iperf3", [host(rate_gbit_per_s=10.0, mtu_bytes=1500), fast]))
    assert found.gb_per_s == pytest.approx(10 / 8 * 1448 / 1538, abs=1e-3)  # the known 941 Mbit/s of 1 Gbit/s
    jumbo = host(rate_gbit_per_s=25.0, mtu_bytes=9000)
    assert there(expected("iperf3", [jumbo, jumbo])).gb_per_s == pytest.approx(25 / 8 * 8948 / 9038, abs=1e-3)
    assert there(expected("ib_write_bw", [host(), host()])).gb_per_s == 50.0


@pytest.mark.parametrize("rate", [None, 100.0, 0.0])
def test_nothing_is_expected_of_an_unknown_card_or_one_that_tcp_may_not_fill(rate: float | None) -> None:
    assert expected("iperf3", [host(rate_gbit_per_s=rate), host(rate_gbit_per_s=rate)]) == Expectation()


def test_the_programs_in_path_are_found_and_nccl_tests_made_with_mpi_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert network_programs() == {}
    for name in ("iperf3", "sendrecv_perf", "sendrecv_perf_mpi"):
        (tmp_path / name).touch(0o755)
    assert network_programs() == {
        "iperf3": str(tmp_path / "iperf3"),
        "sendrecv_perf": str(tmp_path / "sendrecv_perf_mpi"),
    }
