"""What measures the network, when each pair is measured, and what becomes of the results."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.copies.jobs import matchings
from gputopo.copies.network import NcclPrograms, NetworkHost, RdmaPort, Tools, choose, expected, schedule
from gputopo.values.errors import HardwareError
from tests import there

NCCL = NcclPrograms(mpirun="/usr/bin/mpirun", program="/usr/bin/sendrecv_perf", gpus=8)
IB = RdmaPort(device="mlx5_0", port=1, link_layer="InfiniBand", rate_gbit_per_s=400.0)
NO_RDMA = {"ib_write_bw": "no active RDMA port"}
NO_GPU, WITH_NCCL = Tools(lacks={**NO_RDMA, "nccl-tests": "no GPU"}), Tools(nccl=NCCL, lacks=NO_RDMA)
WITH_BOTH = Tools(nccl=NCCL, rdma=IB)


def test_the_best_tool_of_all_hosts_measures_until_it_has_failed() -> None:
    hosts: dict[str, Tools | None] = {"n0": WITH_BOTH, "n1": WITH_BOTH}
    assert choose("auto", hosts) == choose("ib_write_bw", hosts) == ("ib_write_bw", None)
    assert choose("nccl-tests", hosts) == ("nccl-tests", None)
    assert choose("tcp", hosts) == ("tcp", None)
    failed = {"ib_write_bw": "n0 to n1: no route"}
    assert choose("auto", hosts, failed) == ("nccl-tests", "no ib_write_bw: n0 to n1: no route")
    failed["nccl-tests"] = "n0 with n1: no ssh"
    why = "no ib_write_bw: n0 to n1: no route; no nccl-tests: n0 with n1: no ssh"
    assert choose("auto", hosts, failed) == ("tcp", why)
    for tool, says, hint in (("nccl-tests", "no ssh", "MPI=1"), ("ib_write_bw", "no route", "perftest")):
        with pytest.raises(HardwareError, match=rf"{tool} cannot measure .*: {says}") as refused:
            choose(tool, hosts, failed)  # type: ignore[arg-type]
        assert hint in refused.value.hint


def test_what_keeps_a_tool_from_being_used_is_one_line() -> None:
    other = Tools(lacks={**NO_RDMA, "nccl-tests": "mpirun is not installed"})
    assert choose("auto", {"n0": NO_GPU, "n1": other, "n2": NO_GPU, "n3": WITH_NCCL, "n4": None}) == (
        "tcp",
        "no ib_write_bw: no active RDMA port (n[0-3]), not known (n4); "
        "no nccl-tests: no GPU (n[0,2]), mpirun is not installed (n1), not known (n4)",
    )
    many: dict[str, Tools | None] = {f"n{n}": NO_GPU if n else WITH_NCCL for n in range(9)}
    assert "no GPU (n[1-8])" in str(choose("auto", many)[1])
    elsewhere = replace(WITH_NCCL, nccl=replace(NCCL, program="/opt/sendrecv_perf"))
    with pytest.raises(HardwareError, match="not at the same path on all hosts: /opt/sendrecv_perf, /usr/b"):
        choose("nccl-tests", {"n0": WITH_NCCL, "n1": elsewhere})
    roce = replace(WITH_BOTH, rdma=replace(IB, link_layer="Ethernet"))
    mixed = choose("auto", {"n0": WITH_BOTH, "n1": roce})
    assert mixed == ("nccl-tests", "no ib_write_bw: the ports are of Ethernet and of InfiniBand")


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
    slots = schedule(hosts)
    one_way = [pair for slot in slots if slot.kind == "one way" for pair in slot.transfers]
    assert sorted(one_way) == [*permutations(range(hosts), 2)]
    for slot in slots:
        for end in (0, 1):
            busy = [pair[end] for pair in slot.transfers]
            assert len(busy) == len(set(busy))
    assert [slot.kind for slot in slots].count("at once") == (hosts > 2)


def host(name: str = "n", rate: float | None = 25.0, mtu: int | None = 1500) -> NetworkHost:
    return NetworkHost(name=name, address="10.0.0.1", port=1, rate_gbit_per_s=rate, mtu_bytes=mtu)


def test_the_payload_of_the_slower_card_is_expected() -> None:
    found = there(expected(host(rate=10.0), host(rate=25.0)))
    assert found[0] == pytest.approx(10 / 8 * 1448 / 1538)  # the known 941 Mbit/s of 1 Gbit/s
    jumbo = there(expected(host(mtu=9000), host(mtu=9000)))
    assert jumbo[0] == pytest.approx(25 / 8 * 8948 / 9038)


@pytest.mark.parametrize("other", [host(rate=None), host(rate=100.0), host(rate=0.0)])
def test_nothing_is_expected_of_an_unknown_card_or_one_that_tcp_may_not_fill(other: NetworkHost) -> None:
    assert expected(other, other) is None
