"""Which program measures the network: the best that all hosts have, or the one that was asked for."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.copies.jobs import matchings
from gputopo.copies.network import (
    AT_ONCE,
    QUICK,
    Nccl,
    NetworkHost,
    NetworkResult,
    Order,
    Rdma,
    Timing,
    Tool,
    Tools,
    TransferResult,
    bandwidth_of,
    choose,
    expected,
    schedule,
    seconds_of,
    whole_seconds,
)
from gputopo.values.errors import HardwareError


def port(device: str = "mlx5_0", *, on_path: bool = True, layer: str = "InfiniBand") -> Rdma:
    return Rdma(device=device, port=1, link_layer=layer, rate_gbit_per_s=200.0, on_path=on_path)


NCCL = Nccl(mpirun="/usr/bin/mpirun", program="/usr/bin/sendrecv_perf", gpus=8)
NO_GPU = {"nccl-tests": "no GPU"}
WHOLE = Tools(rdma=port(), lacks=NO_GPU)
NO_RDMA = Tools(lacks={"ib_write_bw": "no RDMA port", **NO_GPU})
NOTHING = Tools(
    lacks={"iperf3": "iperf3 is not installed", "ib_write_bw": "ib_write_bw is not installed", **NO_GPU}
)
WITH_NCCL = Tools(nccl=NCCL, lacks={"ib_write_bw": "no RDMA port"})


def test_what_kept_a_better_tool_from_being_used_is_one_line() -> None:
    assert choose("auto", {"n0": WHOLE, "n1": NO_RDMA}) == (
        "iperf3",
        "no ib_write_bw: no RDMA port (n1); no nccl-tests: no GPU (all hosts)",
    )
    assert choose("auto", {"n0": NO_RDMA, "n1": NOTHING, "n2": NO_RDMA}) == (
        "tcp",
        "no ib_write_bw: no RDMA port (n0, n2), ib_write_bw is not installed (n1); "
        "no nccl-tests: no GPU (all hosts); no iperf3: iperf3 is not installed (n1)",
    )
    many = {f"n{number}": NOTHING if number else WHOLE for number in range(9)}
    assert "not installed (n1, n2, n3, n4 and 4 more)" in str(choose("auto", many).passed_over)
    assert choose("auto", {"n0": None, "n1": None}).passed_over is not None


def test_a_port_that_is_not_on_the_path_is_measured_only_when_asked_for() -> None:
    hosts: dict[str, Tools | None] = {
        "n0": WHOLE,
        "n1": Tools(rdma=port("mlx5_1", on_path=False), lacks=NO_GPU),
    }
    tool, why = choose("auto", hosts)
    assert tool == "iperf3"
    assert why is not None
    assert "no ib_write_bw: mlx5_1 is not of the interface at which the hosts meet (n1);" in why
    assert choose("ib_write_bw", hosts) == ("ib_write_bw", None)


def test_infiniband_and_roce_do_not_meet() -> None:
    hosts: dict[str, Tools | None] = {"n0": WHOLE, "n1": Tools(rdma=port(layer="Ethernet"), lacks=NO_GPU)}
    why = str(choose("auto", hosts).passed_over)
    assert "no ib_write_bw: the ports are of Ethernet and of InfiniBand;" in why


def test_nccl_tests_come_after_perftest_and_before_tcp_until_they_have_failed() -> None:
    hosts: dict[str, Tools | None] = {"n0": WITH_NCCL, "n1": WITH_NCCL}
    assert choose("auto", hosts) == ("nccl-tests", "no ib_write_bw: no RDMA port (all hosts)")
    assert choose("nccl-tests", hosts) == ("nccl-tests", None)
    failed: dict[Tool, str] = {"nccl-tests": "n0 with n1: no ssh"}
    tool, why = choose("auto", hosts, failed)
    assert tool == "iperf3"
    assert str(why).endswith("; no nccl-tests: n0 with n1: no ssh")
    with pytest.raises(HardwareError, match=r"nccl-tests cannot measure .*: n0 with n1: no ssh") as refused:
        choose("nccl-tests", hosts, failed)
    assert "made with MPI=1" in refused.value.hint


def test_nccl_tests_need_the_same_paths_on_all_hosts_since_rank_0_names_them() -> None:
    other = replace(WITH_NCCL, nccl=replace(NCCL, program="/opt/sendrecv_perf"))
    tool, why = choose("auto", {"n0": WITH_NCCL, "n1": other})
    assert tool == "iperf3"
    assert "not at the same path on all hosts: /opt/sendrecv_perf, /usr/bin/sendrecv_perf" in str(why)


def test_a_tool_that_was_asked_for_is_used_or_refused_with_the_hosts_that_lack_it() -> None:
    assert choose("tcp", {"n0": WHOLE, "n1": WHOLE}) == ("tcp", None)
    assert choose("iperf3", {"n0": WHOLE, "n1": WHOLE}) == ("iperf3", None)
    with pytest.raises(HardwareError, match=r"iperf3 cannot .*: iperf3 is not installed \(n1\)") as refused:
        choose("iperf3", {"n0": WHOLE, "n1": NOTHING})
    assert "install iperf3" in refused.value.hint
    with pytest.raises(HardwareError, match=r"ib_write_bw cannot .*: no RDMA port \(all hosts\)"):
        choose("ib_write_bw", {"n0": NO_RDMA, "n1": NO_RDMA})


@given(
    st.sampled_from(["iperf3", "ib_write_bw"]),
    st.floats(0.0, 2.0),
    st.floats(0.01, 1.0),
    st.integers(1, 20),
)
def test_programs_transfer_for_whole_seconds_that_fit_their_slots(
    tool: Tool, warm_s: float, window_s: float, windows: int
) -> None:
    asked = Timing(warm_s=warm_s, window_s=window_s, windows=windows)
    timing = asked.of(tool)
    assert whole_seconds(timing.transfer_s) >= asked.transfer_s - 1e-3
    assert timing.transfer_s <= whole_seconds(timing.transfer_s) + 1e-3 + timing.window_s
    first, second, *_ = [slot for slot in schedule(2, timing) if slot.kind == "one way"]
    assert second.start_s - first.start_s >= whole_seconds(timing.transfer_s)
    assert asked.of("tcp") == asked


def test_rdma_is_expected_at_the_rate_of_the_slower_port() -> None:
    def host(tools: Tools | None) -> NetworkHost:
        return NetworkHost(name="n", address="10.0.0.1", port=1, rate_gbit_per_s=10.0, tools=tools)

    slow = Tools(rdma=Rdma(device="mlx5_0", port=1, link_layer="InfiniBand", rate_gbit_per_s=100.0))
    found = expected(host(WHOLE), host(slow), "ib_write_bw")
    assert found is not None
    assert found.gb_per_s == 12.5
    assert expected(host(WHOLE), host(Tools()), "ib_write_bw") is None
    assert expected(host(WHOLE), host(WHOLE), "iperf3") == expected(host(None), host(None))


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
    assert found.gb_per_s == pytest.approx(10 / 8 * 1448 / 1538)  # the known 941 Mbit/s of 1 Gbit/s
    jumbo = expected(host(mtu=9000), host(mtu=9000))
    assert jumbo is not None
    assert jumbo.gb_per_s == pytest.approx(25 / 8 * 8948 / 9038)


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
