"""What measures between hosts, by which commands and when, and what the programs of others print."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gputopo.launch.jobs import EndedCommand, NetworkHost, measure_between_hosts, network_programs
from gputopo.values.bandwidth import ALL_HOSTS_AT_ONCE, Bandwidth, NetworkToolChoice, TransferRate
from gputopo.values.errors import HardwareError
from gputopo.values.machine import NicPort
from tests.kit.dialects.nccl_tests import one_size
from tests.kit.dialects.network import Iperf3, Perftest, iperf3_json, perftest

# What messages of nccl-tests have, between two hosts and in an all-reduce.
PAIR_BYTES, ALL_BYTES = 64 * 2**20, 256 * 2**20
PORT = NicPort(index=0, rdma_device="mlx5_0", rdma_port=1, state="ACTIVE", rate_gbit_per_s=200.0)
PROGRAMS = ("iperf3", "ib_write_bw", "mpirun", "sendrecv_perf", "all_reduce_perf")
# Two ranks' part of NCCL_DEBUG=INFO.
NCCL_LOG = """\
node0:71:71 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0
node0:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node0:71:90 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""
SSH = "ssh: connect to host 10.0.0.9 port 22: No route to host"
Words = tuple[str, ...]
Program = Callable[[Words], EndedCommand]


def host(number: int = 0, *, without: tuple[str, ...] = (), **facts: object) -> NetworkHost:
    programs = {program: f"/usr/bin/{program}" for program in PROGRAMS if program not in without}
    own = {"address": f"10.0.0.{number}", "programs": programs, "gpus": 1, "rdma": PORT}
    return NetworkHost(name=f"n{number}", **{**own, **facts})  # type: ignore[arg-type]


def hosts(count: int, **facts: Any) -> list[NetworkHost]:
    return [host(number, **facts) for number in range(count)]


def iperf3_prints(words: Words) -> EndedCommand:
    return EndedCommand(iperf3_json(Random(" ".join(words)), Iperf3(streams=4))[0], 0)


def rdma_prints(_: Words) -> EndedCommand:
    return EndedCommand(perftest(Random(0), Perftest(duration=True, streams=4), (65536,))[0], 0)


def nccl_prints(
    *, pair: str | float = 12.0, reduction: str | float = 10.0, hosts: int, gpus: int = 1
) -> Program:
    def program(words: Words) -> EndedCommand:
        is_all = any(word.endswith("all_reduce_perf") for word in words)
        result = reduction if is_all else pair
        if isinstance(result, str):
            return EndedCommand(result, 1)
        of_all = one_size("all_reduce", result, ALL_BYTES, hosts=hosts, gpus=gpus)
        return EndedCommand(NCCL_LOG + (of_all if is_all else one_size("sendrecv", result, PAIR_BYTES)), 0)

    return program


class Runner:
    """Runs commands as programs that print; stores the commands that ran at the same time."""

    def __init__(self, program: Program) -> None:
        self.rounds: list[Sequence[tuple[int, Words]]] = []
        self._program = program

    def __call__(self, commands: Sequence[tuple[int, Words]], limit_s: float) -> list[EndedCommand]:
        assert limit_s > 0
        self.rounds.append(commands)
        return [self._program(words) for _, words in commands]

    def ends(self) -> list[list[tuple[int, ...]]]:
        """Return the hosts of each transfer by rounds; client and server of a transfer come together."""
        return [
            [(client, server) for (client, _), (server, _) in zip(one[::2], one[1::2], strict=True)]
            for one in self.rounds
        ]


def measured(
    tool: NetworkToolChoice,
    of: Sequence[NetworkHost],
    program: Program | Runner,
    environ: Mapping[str, str] = {},
) -> Bandwidth:
    run = program if isinstance(program, Runner) else Runner(program)
    return measure_between_hosts(of, "quick", tool, run, environ, lambda _: None)


def refused(tool: NetworkToolChoice, of: Sequence[NetworkHost]) -> HardwareError:
    with pytest.raises(HardwareError) as error:
        measured(tool, of, iperf3_prints)
    return error.value


def test_the_first_tool_of_all_hosts_measures_and_why_none_before_it() -> None:
    found = measured("auto", hosts(2), rdma_prints)
    assert {sample.tool for sample in found.samples.of(TransferRate)} == {"ib_write_bw"}
    without_port = [host(0), host(1, rdma=None)]
    found = measured("auto", without_port, nccl_prints(hosts=2))
    assert {sample.tool for sample in found.samples if sample.kind == "network"} == {"nccl-tests"}
    assert found.notes[0].endswith("; no ib_write_bw: no active RDMA port (n1)")
    why = refused("ib_write_bw", without_port)
    assert "no active RDMA port" in why.what
    assert "perftest" in why.hint


def test_what_each_host_lacks_and_what_to_install_is_one_error() -> None:
    first = host(0, without=("iperf3",), gpus=0, rdma=None)
    others = [host(number, without=("iperf3", "mpirun"), rdma=None) for number in (1, 2, 3)]
    why = refused("auto", [first, *others])
    assert why.what == (
        "no tool can measure between these hosts: no ib_write_bw: no active RDMA port (all hosts); no "
        "nccl-tests: no GPU (n0), mpirun is not installed (n[1-3]); no iperf3: iperf3 is not installed "
        "(all hosts)"
    )
    assert "apt install iperf3" in why.hint


def test_programs_are_given_ip_addresses_only() -> None:
    assert "no IP address (n1)" in refused("iperf3", [host(0), host(1, address="-x")]).what
    found = measured("auto", [host(0, address="fd00::1"), host(1)], iperf3_prints)
    assert {sample.tool for sample in found.samples.of(TransferRate)} == {"iperf3"}


def is_apart(transfers: Iterable[tuple[int, ...]]) -> bool:
    """Return whether each host is in one transfer."""
    busy = [rank for ends in transfers for rank in ends]
    return len(busy) == len(set(busy))


@pytest.mark.parametrize("count", [2, 4, 5])
def test_each_direction_is_measured_in_rounds_and_a_host_is_in_one_transfer(count: int) -> None:
    run = Runner(iperf3_prints)
    measured("iperf3", hosts(count), run)
    *rounds, last = run.ends()
    if count == 2:
        rounds = [*rounds, last]
    else:
        assert {end for ends in last for end in ends} == set(range(count)), "all hosts at once"
    assert sorted(ends for one in rounds for ends in one) == [*permutations(range(count), 2)]
    assert all(is_apart(one) and len(one) == count // 2 for one in rounds)
    assert len(rounds) == 2 * (count - 1 + count % 2), "nobody is left out"


def test_a_transfer_is_a_client_that_prints_and_a_server() -> None:
    run = Runner(iperf3_prints)
    measured("iperf3", hosts(2), run)
    (client, words), (server, server_words) = run.rounds[0]
    (port,) = re.findall(r"-p (\d+)", " ".join(server_words))
    assert " ".join(words[4:]) == (f"/usr/bin/iperf3 -c 10.0.0.{server} -p {port} -P 4 -t 2 -O 1 -i 0.5 -J")
    assert " ".join(server_words) == f"/usr/bin/iperf3 -s -1 -B 10.0.0.{server} -p {port}"
    run = Runner(rdma_prints)
    measured("ib_write_bw", hosts(2), run)
    (client, words), (server, server_words) = run.rounds[0]
    (port,) = re.findall(r"-p (\d+)", " ".join(server_words))
    options = f"-d mlx5_0 -i 1 -F -p {port} --report_gbits -s 65536 -q 4 -D 2 -f 0"
    assert {client, server} == {0, 1}
    assert " ".join(words[4:]) == f"/usr/bin/ib_write_bw {options} 10.0.0.{server}"
    assert " ".join(server_words) == f"/usr/bin/ib_write_bw {options}"


def test_nccl_tests_get_nccl_s_variables_by_name_and_none_of_another_starter() -> None:
    environ = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_ess_base_jobid": "1",
        "SLURM_JOB_ID": "7",
        "NCCL_DEBUG_FILE": "/tmp/log",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "HOME": "/root",
        "NCCL_NET_PLUGIN_TOKEN": "secret",
    }

    def command(environ: Mapping[str, str]) -> Words:
        run = Runner(nccl_prints(hosts=2))
        measured("nccl-tests", hosts(2), run, environ)
        ((rank, words),) = run.rounds[0]
        assert rank == 0
        return words

    words = command(environ)
    unset = [word.removeprefix("--unset=") for word in words if word.startswith("--unset=")]
    assert unset == ["NCCL_DEBUG_FILE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"]
    assert " ".join(words).count("NCCL_NET_PLUGIN_TOKEN") == 1
    assert "secret" not in " ".join(words)
    assert "OMPI_MCA_plm_rsh_args=-o BatchMode=yes -o ConnectTimeout=10" in words
    assert "--host 10.0.0.0:1,10.0.0.1:1 -np 2 -x NCCL_NET_PLUGIN_TOKEN -x NCCL_DEBUG=INFO" in " ".join(words)
    own = command({"OMPI_MCA_plm_rsh_args": "-p 22"})
    assert not [word for word in own if word.startswith("OMPI_MCA")]


def expected(tool: NetworkToolChoice, *rates: float | None, mtu_bytes: int = 1500) -> float | None:
    """Return what is expected of two hosts whose cards have these rates in Gbit/s."""
    of = [host(number, rate_gbit_per_s=rate, mtu_bytes=mtu_bytes) for number, rate in enumerate(rates)]
    samples = measured(tool, of, iperf3_prints if tool == "iperf3" else rdma_prints).samples.of(TransferRate)
    return samples[0].expectation.gb_per_s


def test_the_payload_of_the_slower_card_is_expected() -> None:
    # The known 941 Mbit/s of 1 Gbit/s.
    assert expected("iperf3", 10.0, 25.0) == pytest.approx(10 / 8 * 1448 / 1538, abs=1e-3)
    jumbo = expected("iperf3", 25.0, 25.0, mtu_bytes=9000)
    assert jumbo == pytest.approx(25 / 8 * 8948 / 9038, abs=1e-3)
    assert expected("ib_write_bw", 10.0, 10.0) == 25.0, "of the RDMA port"


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


def test_nccl_tests_measure_pairs_in_both_directions_and_then_all_gpus() -> None:
    found = measured("nccl-tests", hosts(4, gpus=3), nccl_prints(hosts=4, gpus=3))
    pairs = [one for one in found.samples if one.kind == "network"]
    assert sorted((one.source[-1], one.destination[-1]) for one in pairs) == [*permutations("0123", 2)]
    assert {(one.median_gb_per_s, one.tool, one.transport, one.with_reverse) for one in pairs} == {
        (12.0, "nccl-tests", "NCCL", True)
    }
    out, within = (one for one in found.samples if one.kind == "allreduce")
    assert (out.ranks, out.hosts, out.bytes, out.in_place, within.in_place) == (12, 4, ALL_BYTES, False, True)
    assert (found.failures, found.complete) == ((), True)
    assert found.notes[0].startswith("nccl-tests: sendrecv_perf between GPU 0 of each two hosts")
    assert "NCCL's log has card mlx5_0, NET/IB, GDRDMA" in found.notes[0]


def test_an_all_reduce_that_fails_leaves_the_pairs_and_is_stated() -> None:
    reduction = one_size("all_reduce", 9.0, ALL_BYTES, hosts=1)
    found = measured("nccl-tests", hosts(2, gpus=2), nccl_prints(reduction=reduction, hosts=2, gpus=2))
    assert (len(found.samples), found.failures) == (2, ())
    (why,) = found.not_measured
    assert why.what == "all-reduce over all 4 GPUs"
    assert "ran as 4 single processes" in why.reason


def test_wrong_data_of_an_all_reduce_is_a_failure_of_it() -> None:
    wrong = one_size("all_reduce", 10.0, ALL_BYTES).replace("    0  ", "   37  ")
    found = measured("nccl-tests", hosts(2), nccl_prints(reduction=wrong, hosts=2))
    assert {(one.kind, one.reason) for one in found.failures} == {("allreduce", "WRONG_DATA")}


def test_iperf3_measures_pairs_and_then_all_hosts_at_once() -> None:
    found = measured("iperf3", hosts(3, rate_gbit_per_s=10.0), iperf3_prints)
    assert len([one for one in found.samples if one.group is None]) == 6
    assert len([one for one in found.samples if one.group == ALL_HOSTS_AT_ONCE]) == 3
    assert {(one.tool, one.transport, one.streams) for one in found.samples.of(TransferRate)} == {
        ("iperf3", "TCP", 4)
    }


def test_a_host_that_fails_costs_its_own_pairs_and_is_not_tried_for_ever() -> None:
    tried: list[Words] = []

    def program(words: Words) -> EndedCommand:
        tried.append(words)
        fails = any("10.0.0.2" in word for word in words)
        return EndedCommand("iperf3: error", 1) if fails and "-c" in words else iperf3_prints(words)

    found = measured("iperf3", hosts(5), program)
    assert {end for one in found.failures for end in (one.source, one.destination)} >= {"host:n2"}
    assert sum(one.says.startswith("skipped") for one in found.failures) >= 4
    assert sum("-c" in words and any("10.0.0.2" in word for word in words) for words in tried) == 2
    assert not [one for one in found.samples if one.group == ALL_HOSTS_AT_ONCE]


def test_what_measures_nothing_is_an_error_with_the_first_reason_and_ends_soon() -> None:
    run = Runner(lambda words: EndedCommand(f"{SSH}\n", 255))
    why = f"nccl-tests measured nothing between these hosts: n0 to n5: mpirun ended with exit code 255: {SSH}"
    with pytest.raises(HardwareError, match=re.escape(why)) as error:
        measured("nccl-tests", hosts(6), run)
    assert "--network-tool" in error.value.hint
    assert sum(map(len, run.rounds)) == 2 * 3


def sendrecv(gb_per_s: float, **facts: int) -> str:
    return one_size("sendrecv", gb_per_s, PAIR_BYTES, **facts)


@pytest.mark.parametrize(
    ("tool", "ended", "says"),
    [
        (
            "nccl-tests",
            EndedCommand(sendrecv(1.0, hosts=3), 0),
            "sendrecv_perf ran 3 ranks on 3 hosts, not 2 on 2",
        ),
        ("nccl-tests", EndedCommand(sendrecv(1.0), 134), "mpirun ended with exit code 134"),
        (
            "nccl-tests",
            EndedCommand(sendrecv(1.0).replace("    0  ", "   37  "), 0),
            "37 wrong elements",
        ),
        ("nccl-tests", EndedCommand("", None, "did not end within 60 s"), "mpirun did not end within 60 s"),
        (
            "iperf3",
            EndedCommand("cannot do it\nfor lack of memory\n", 1),
            "iperf3 ended with exit code 1: for lack of memory",
        ),
        (
            "iperf3",
            EndedCommand('{"start": {"version": "iperf 3.9"}, "error": "error - no route"}', 1),
            "iperf3: no route",
        ),
        ("iperf3", EndedCommand("\x1b[2J\0{ what", 0), "iperf3 printed no result: [2J{ what"),
    ],
)
def test_a_run_counts_only_between_two_hosts_with_right_data_and_else_has_its_reason(
    tool: NetworkToolChoice, ended: EndedCommand, says: str
) -> None:
    with pytest.raises(HardwareError, match=re.escape(says)):
        measured(tool, hosts(2), lambda words: ended)


def test_the_intervals_of_iperf3_are_the_repeats_of_a_transfer() -> None:
    document = {
        "start": {"version": "iperf 3.9"},
        "intervals": [
            {"sum": {"bits_per_second": 8e9 * rate, "omitted": rate > 8}} for rate in (9.0, 1.0, 2.0, 1.5)
        ],
        "end": {"sum_received": {"bits_per_second": 12e9}},
    }
    ended = EndedCommand(json.dumps(document), 0)
    found = measured("iperf3", hosts(2), lambda words: ended).samples.of(TransferRate)[0]
    assert found.repeats_gb_per_s == (1.0, 2.0, 1.5)
    assert found.spread_percent == pytest.approx(100 / 1.5)
    assert found.median_gb_per_s == 1.5
