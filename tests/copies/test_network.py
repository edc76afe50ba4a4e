"""What measures the network, when each pair is measured, and what becomes of the results."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.copies.jobs import matchings
from gputopo.copies.network import (
    AT_ONCE,
    QUICK,
    NcclPrograms,
    NetworkHost,
    NetworkResult,
    Order,
    Tools,
    TransferResult,
    bandwidth_of,
    choose,
    expected,
    schedule,
    seconds_of,
)
from gputopo.values.errors import HardwareError

NCCL = NcclPrograms(mpirun="/usr/bin/mpirun", program="/usr/bin/sendrecv_perf", gpus=8)
NO_GPU, WITH_NCCL = Tools(lacks="no GPU"), Tools(nccl=NCCL)


def test_nccl_tests_measure_where_all_hosts_have_them_until_they_have_failed() -> None:
    hosts: dict[str, Tools | None] = {"n0": WITH_NCCL, "n1": WITH_NCCL}
    assert choose("auto", hosts) == choose("nccl-tests", hosts) == ("nccl-tests", None)
    assert choose("tcp", hosts) == ("tcp", None)
    assert choose("auto", hosts, "n0 with n1: no ssh") == ("tcp", "no nccl-tests: n0 with n1: no ssh")
    with pytest.raises(HardwareError, match=r"nccl-tests cannot measure .*: n0 with n1: no ssh") as refused:
        choose("nccl-tests", hosts, "n0 with n1: no ssh")
    assert "made with MPI=1" in refused.value.hint


def test_what_keeps_nccl_tests_from_being_used_is_one_line() -> None:
    other = Tools(lacks="mpirun is not installed")
    assert choose("auto", {"n0": NO_GPU, "n1": other, "n2": NO_GPU, "n3": WITH_NCCL, "n4": None}) == (
        "tcp",
        "no nccl-tests: no GPU (n0, n2), mpirun is not installed (n1), not known (n4)",
    )
    many: dict[str, Tools | None] = {f"n{n}": NO_GPU if n else WITH_NCCL for n in range(9)}
    assert "no GPU (n1, n2, n3, n4 and 4 more)" in str(choose("auto", many)[1])
    elsewhere = replace(WITH_NCCL, nccl=replace(NCCL, program="/opt/sendrecv_perf"))
    with pytest.raises(HardwareError, match="not at the same path on all hosts: /opt/sendrecv_perf, /usr/b"):
        choose("nccl-tests", {"n0": WITH_NCCL, "n1": elsewhere})


@given(st.integers(2, 64))
def test_rounds_have_each_pair_once_and_leave_nobody_out(members: int) -> None:
    rounds = matchings(range(members))
    assert len(rounds) == (members - 1 if members % 2 == 0 else members)
    for pairs in rounds:
        busy = [one for pair in pairs for one in pair]
        assert len(busy) == len(set(busy)) == members - members % 2
    assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == [
        *combinations(range(members), 2)
    ]


@given(st.integers(2, 32))
def test_a_schedule_measures_each_direction_and_never_two_of_one_at_a_host(hosts: int) -> None:
    slots = schedule(hosts, QUICK)
    one_way = [pair for slot in slots if slot.kind == "one way" for pair in slot.transfers]
    assert sorted(one_way) == [*permutations(range(hosts), 2)]
    for slot in slots:
        for end in (0, 1):
            busy = [pair[end] for pair in slot.transfers]
            assert len(busy) == len(set(busy))
    ends = [slot.start_s for slot in slots]
    assert ends == sorted(set(ends))
    assert seconds_of(hosts, QUICK) > ends[-1]
    assert [slot.kind for slot in slots].count("at once") == (hosts > 2)


def host(name: str = "n", rate: float | None = 25.0, mtu: int | None = 1500) -> NetworkHost:
    return NetworkHost(name=name, address="10.0.0.1", port=1, rate_gbit_per_s=rate, mtu_bytes=mtu)


def test_the_payload_of_the_slower_card_is_expected() -> None:
    found = expected(host(rate=10.0), host(rate=25.0))
    assert found is not None
    assert found[0] == pytest.approx(10 / 8 * 1448 / 1538)  # the known 941 Mbit/s of 1 Gbit/s
    jumbo = expected(host(mtu=9000), host(mtu=9000))
    assert jumbo is not None
    assert jumbo[0] == pytest.approx(25 / 8 * 8948 / 9038)


@pytest.mark.parametrize("other", [host(rate=None), host(rate=100.0), host(rate=0.0)])
def test_nothing_is_expected_of_an_unknown_card_or_one_that_tcp_may_not_fill(other: NetworkHost) -> None:
    assert expected(other, other) is None


def order(hosts: int, rate: float | None = 10.0) -> Order:
    return Order(hosts=tuple(host(f"n{n}", rate) for n in range(hosts)), token="t", timing=QUICK)


def test_results_become_samples_and_failures_of_their_hosts() -> None:
    slots = schedule(3, QUICK)
    found = bandwidth_of(order(3), {rank: result_of(rank, 3) for rank in (0, 1)}, {2: "host n2 is gone"})
    assert not found.complete
    assert found.not_measured[0].what == "transfers of n2"
    of_slots = [pair for slot in slots for pair in slot.transfers if pair[0] < 2]
    assert len(found.samples) == len(of_slots)
    kinds = {(one.kind, one.group, one.with_reverse) for one in found.samples}
    assert kinds == {
        ("network_latency", None, False),
        ("network", None, False),
        ("network", None, True),
        ("network", AT_ONCE, False),
    }
    (sample, *_) = (one for one in found.samples if one.kind == "network")
    assert sample.median_gb_per_s == 1.0
    assert sample.spread_percent == pytest.approx(20.0)
    assert sample.expected_gb_per_s == pytest.approx(1.177, abs=1e-3)


def result_of(rank: int, hosts: int) -> NetworkResult:
    own = [
        TransferResult(slot=number, destination=destination, values=(0.9, 1.0, 1.1))
        for number, slot in enumerate(schedule(hosts, QUICK))
        for source, destination in slot.transfers
        if source == rank
    ]
    return NetworkResult(measured=tuple(own))


def test_what_a_host_reports_of_others_is_not_taken() -> None:
    strange = (
        TransferResult(slot=0, destination=0, values=(1.0,)),
        TransferResult(slot=10**6, destination=1, values=(1.0,)),
        TransferResult(slot=-1, destination=1, values=(1.0,)),
    )
    assert bandwidth_of(order(2), {1: NetworkResult(measured=strange)}, {}).samples == ()


def test_a_transfer_that_failed_is_a_failure_with_its_reason() -> None:
    one = TransferResult(slot=1, destination=1, error="connection refused")
    (failure,) = bandwidth_of(order(2), {0: NetworkResult(measured=(one,))}, {}).failures
    assert (failure.source, failure.destination, failure.says) == ("host:n0", "host:n1", "connection refused")
