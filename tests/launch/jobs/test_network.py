"""What is measured between hosts, by what the programs of others print."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import permutations
from random import Random

import pytest

from gputopo.launch.jobs.network import Ended, measure, read
from gputopo.launch.jobs.network_tools import ALL_BYTES, BYTES, Command, NetworkHost
from gputopo.values.bandwidth import ALL_HOSTS_AT_ONCE, Bandwidth, NetworkToolChoice, TransferRate
from gputopo.values.errors import HardwareError
from gputopo.values.machine import NicPort
from tests.kit.dialects.nccl_tests import one_size
from tests.kit.dialects.network import Iperf3, Perftest, iperf3_json, perftest

PORT = NicPort(index=0, rdma_device="mlx5_0", rdma_port=1, state="ACTIVE", rate_gbit_per_s=200.0)
PROGRAMS = {name: name for name in ("iperf3", "ib_write_bw", "mpirun", "sendrecv_perf", "all_reduce_perf")}
# Two ranks' part of NCCL_DEBUG=INFO.
NCCL_LOG = """\
node0:71:71 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0
node0:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node0:71:90 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""
SSH = "ssh: connect to host 10.0.0.9 port 22: No route to host"
Program = Callable[[Sequence[str]], Ended]


def hosts(count: int, *, gpus: int = 1) -> list[NetworkHost]:
    return [
        NetworkHost(name=f"n{n}", address=f"10.0.0.{n}", programs=PROGRAMS, gpus=gpus, rdma=PORT)
        for n in range(count)
    ]


def measured(tool: NetworkToolChoice, of: Sequence[NetworkHost], program: Program) -> Bandwidth:
    def run(commands: Sequence[Command], limit_s: float) -> list[Ended]:
        assert limit_s > 0
        return [program(words) for _, words in commands]

    return measure(of, "quick", tool, run, {}, lambda _: None)


def of_nccl_tests(
    *, pair: str | float = 12.0, reduction: str | float = 10.0, hosts: int, gpus: int = 1
) -> Program:
    def program(words: Sequence[str]) -> Ended:
        is_all = "all_reduce_perf" in words
        result = reduction if is_all else pair
        if isinstance(result, str):
            return Ended(result, 1)
        of_all = one_size("all_reduce", result, ALL_BYTES, hosts=hosts, gpus=gpus)
        return Ended(NCCL_LOG + (of_all if is_all else one_size("sendrecv", result, BYTES)), 0)

    return program


def test_nccl_tests_measure_pairs_in_both_directions_and_then_all_gpus() -> None:
    found = measured("nccl-tests", hosts(4, gpus=3), of_nccl_tests(hosts=4, gpus=3))
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


@pytest.mark.parametrize(
    ("reduction", "says"),
    [
        ("node0: Test CUDA failure common.cu:894 'out of memory'\n", "out of memory"),
        (one_size("all_reduce", 9.0, ALL_BYTES, hosts=1), "ran as 4 single processes"),
    ],
)
def test_an_all_reduce_that_fails_leaves_the_pairs_and_is_stated(reduction: str, says: str) -> None:
    found = measured("nccl-tests", hosts(2, gpus=2), of_nccl_tests(reduction=reduction, hosts=2, gpus=2))
    assert (len(found.samples), found.failures) == (2, ())
    (why,) = found.not_measured
    assert why.what == "all-reduce over all 4 GPUs"
    assert says in why.reason


def test_wrong_data_of_an_all_reduce_is_a_failure_of_it() -> None:
    wrong = one_size("all_reduce", 10.0, ALL_BYTES).replace("    0  ", "   37  ")
    found = measured("nccl-tests", hosts(2), of_nccl_tests(reduction=wrong, hosts=2))
    assert {(one.kind, one.reason) for one in found.failures} == {("allreduce", "WRONG_DATA")}


def of_iperf3(words: Sequence[str]) -> Ended:
    return Ended(iperf3_json(Random(" ".join(words)), Iperf3(streams=4))[0], 0)


def test_iperf3_measures_each_direction_and_then_all_hosts_at_once() -> None:
    found = measured("iperf3", [one._replace(rate_gbit_per_s=10.0) for one in hosts(3)], of_iperf3)
    alone = [one for one in found.samples if one.group is None]
    assert sorted((one.source[-1], one.destination[-1]) for one in alone) == [*permutations("012", 2)]
    assert len([one for one in found.samples if one.group == ALL_HOSTS_AT_ONCE]) == 3
    assert {
        (one.tool, one.transport, one.streams, one.expectation.gb_per_s)
        for one in found.samples.of(TransferRate)
    } == {("iperf3", "TCP", 4, 1.177)}


def test_ib_write_bw_measures_each_direction_and_its_port_is_expected() -> None:
    text, (sample,) = perftest(Random(0), Perftest(duration=True, streams=4), (65536,))
    found = measured("ib_write_bw", hosts(2), lambda _: Ended(text, 0))
    assert [(one.source, one.destination) for one in found.samples] == [
        ("host:n0", "host:n1"),
        ("host:n1", "host:n0"),
    ]
    one = found.samples.of(TransferRate)[0]
    assert (one.tool, one.transport, one.expectation.gb_per_s) == ("ib_write_bw", "RDMA write", 25.0)
    assert one.value == sample.value


def test_a_host_that_fails_costs_its_own_pairs_and_is_not_tried_for_ever() -> None:
    tried: list[Sequence[str]] = []

    def program(words: Sequence[str]) -> Ended:
        tried.append(words)
        fails = any("10.0.0.2" in word for word in words)
        return Ended("iperf3: error", 1) if fails and "-c" in words else of_iperf3(words)

    found = measured("iperf3", hosts(5), program)
    assert {end for one in found.failures for end in (one.source, one.destination)} >= {"host:n2"}
    assert sum(one.says.startswith("skipped") for one in found.failures) >= 4
    assert sum("-c" in words and any("10.0.0.2" in word for word in words) for words in tried) == 2
    assert not [one for one in found.samples if one.group == ALL_HOSTS_AT_ONCE]


def test_what_measures_nothing_is_an_error_with_the_first_reason_and_ends_soon() -> None:
    calls: list[Sequence[str]] = []

    def program(words: Sequence[str]) -> Ended:
        calls.append(words)
        return Ended(f"{SSH}\n", 255)

    why = f"nccl-tests measured nothing between these hosts: n0 to n5: mpirun ended with exit code 255: {SSH}"
    with pytest.raises(HardwareError, match=re.escape(why)) as refused:
        measured("nccl-tests", hosts(6), program)
    assert "--network-tool" in refused.value.hint
    assert len(calls) == 2 * 3


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (Ended(one_size("sendrecv", 900.0, BYTES, hosts=1), 0), "sendrecv_perf ran as 2 single processes"),
        (
            Ended(one_size("sendrecv", 1.0, BYTES, hosts=3), 0),
            "sendrecv_perf ran 3 ranks on 3 hosts, not 2 on 2",
        ),
        (Ended(one_size("sendrecv", 1.0, BYTES), 134), "mpirun ended with exit code 134"),
        (Ended(one_size("sendrecv", 1.0, BYTES).replace("    0  ", "   37  "), 0), "37 wrong elements"),
        (Ended("\x1b[2J\0{{ what is this", 0), "sendrecv_perf printed no result: [2J{{ what is this"),
        (Ended("", None, "did not end within 60 s"), "mpirun did not end within 60 s"),
    ],
)
def test_a_run_of_nccl_tests_counts_only_between_two_hosts_with_right_data(ended: Ended, says: str) -> None:
    assert says in str(read("nccl-tests", ended))


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (Ended("cannot do it\nfor lack of memory\n", 1), "iperf3 ended with exit code 1: for lack of memory"),
        (Ended('{"start": {"version": "iperf 3.9"}, "error": "error - no route"}', 1), "iperf3: no route"),
        (Ended("\x1b[2J\0{ what", 0), "iperf3 printed no result: [2J{ what"),
        (Ended("", None, "did not end within 17 s"), "iperf3 did not end within 17 s"),
    ],
)
def test_a_run_without_a_result_is_its_reason(ended: Ended, says: str) -> None:
    assert read("iperf3", ended) == says


def test_the_intervals_of_iperf3_are_the_repeats_of_a_transfer() -> None:
    document = {
        "start": {"version": "iperf 3.9"},
        "intervals": [
            {"sum": {"bits_per_second": 8e9 * rate, "omitted": rate > 8}} for rate in (9.0, 1.0, 2.0, 1.5)
        ],
        "end": {"sum_received": {"bits_per_second": 12e9}},
    }
    found = read("iperf3", Ended(json.dumps(document), 0))
    assert not isinstance(found, str)
    assert found.repeats_gb_per_s == (1.0, 2.0, 1.5)
    assert found.spread_percent == pytest.approx(100 / 1.5)
    assert found.median_gb_per_s == 1.5
