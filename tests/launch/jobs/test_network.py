"""What hosts measure: by TCP on loopback, by stand-ins for mpirun, sendrecv_perf and ib_write_bw."""

import contextlib
import os
from collections.abc import Mapping
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from gputopo.copies.network import (
    AT_ONCE,
    QUICK,
    Done,
    NcclPrograms,
    NetworkHost,
    Order,
    RdmaPort,
    Timing,
    Tools,
    schedule,
)
from gputopo.launch.hosts.messages import Joining, Resources
from gputopo.launch.jobs.network import by_nccl, by_rdma, by_tcp, measure, perform
from gputopo.probes.tcp import Listener
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import GputopoError, HardwareError
from tests.launch.hosts.meetings import LOOPBACK, Later, joining
from tests.probes.stand_ins import UNREACHABLE, MpiFault, NcclTests, install_perftest


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    return NcclTests(tmp_path, monkeypatch)


@pytest.fixture
def perftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install_perftest(tmp_path, monkeypatch)


def do(orders: Mapping[int, Order]) -> dict[int, Done | GputopoError]:
    """Let each host do in a thread what it is ordered, as JSON."""
    running = {
        rank: Later(partial(perform, schema.encode(order), os.environ)) for rank, order in orders.items()
    }
    return {rank: one.result(30) for rank, one in running.items()}


def nccl_hosts(
    nccl: NcclTests, hosts: int, all_reduce: str | None = None, *, gpus: int = 3
) -> list[NetworkHost]:
    own = NcclPrograms(
        mpirun=str(nccl.folder / "mpirun"),
        program=str(nccl.folder / "sendrecv_perf"),
        gpus=gpus,
        all_reduce=all_reduce,
    )
    return [
        NetworkHost(name=f"n{n}", address=f"10.0.0.{n}", port=1, tools=Tools(nccl=own)) for n in range(hosts)
    ]


def measured(hosts: list[NetworkHost]) -> Bandwidth:
    found = by_nccl(hosts, QUICK, do)
    assert isinstance(found, Bandwidth)
    return found


def test_each_pair_has_its_rate_in_both_directions_and_states_how(nccl: NcclTests) -> None:
    nccl.plan({"": 12.0, "10.0.0.2": 6.0})
    found = measured(nccl_hosts(nccl, 4))
    rates = {(one.source, one.destination): one.median_gb_per_s for one in found.samples}
    assert len(rates) == 12
    for (source, destination), rate in rates.items():
        assert rate == (6.0 if "host:n2" in (source, destination) else 12.0)
    assert {(one.kind, one.tool, one.transport, one.with_reverse) for one in found.samples} == {
        ("network", "nccl-tests", "NCCL", True)
    }
    assert (found.failures, found.complete) == ((), True)
    (note,) = found.notes
    assert note.startswith("nccl-tests: sendrecv_perf between GPU 0 of each two hosts, messages of 64 MiB")
    assert "NCCL's log has card mlx5_0, NET/IB, GDRDMA" in note
    assert nccl.all_ended()


def test_all_gpus_reduce_together_where_all_pairs_were_measured(nccl: NcclTests) -> None:
    found = measured(nccl_hosts(nccl, 2, nccl.install_all_reduce(20.0, hosts=2, gpus=3)))
    out, within = (one for one in found.samples if one.kind == "allreduce")
    assert (out.ranks, out.hosts, out.bytes, out.in_place) == (6, 2, 256 * 2**20, False)
    assert (out.median_gb_per_s, within.in_place) == (20.0, True)
    assert out.bus_gb_per_s == pytest.approx(20 * 2 * 5 / 6, abs=0.01)
    words, _ = nccl.calls[-1]
    places, ranks = words[words.index("--host") + 1], words[words.index("-np") + 1]
    assert (places, ranks) == ("10.0.0.0:3,10.0.0.1:3", "6")
    assert any("over 2 hosts with 3 GPUs each" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit", "out of memory"),
        ("single", "ran as 4 single processes"),
    ],
)
def test_an_all_reduce_that_fails_leaves_the_pairs_and_is_stated(
    nccl: NcclTests, fault: MpiFault, says: str
) -> None:
    nccl.plan({"all": fault})
    found = measured(nccl_hosts(nccl, 2, nccl.install_all_reduce(20.0, hosts=2, gpus=2), gpus=2))
    assert (len(found.samples), found.failures) == (2, ())
    *_, why = found.not_measured
    assert why.what == "all-reduce over all 4 GPUs"
    assert says in why.reason


def test_an_all_reduce_over_fewer_gpus_than_there_are_does_not_count(nccl: NcclTests) -> None:
    found = measured(nccl_hosts(nccl, 2, nccl.install_all_reduce(20.0, hosts=2, gpus=1), gpus=2))
    assert found.not_measured[-1].reason == "all_reduce_perf ran 2 ranks on 2 hosts, not 4 on 2"


def test_a_host_that_fails_costs_its_own_pairs_and_is_not_tried_for_ever(nccl: NcclTests) -> None:
    nccl.plan({"": 12.0, "10.0.0.2": "unreachable", "10.0.0.2,10.0.0.3": "exit"})
    found = measured(nccl_hosts(nccl, 5))
    assert len(found.samples) == 12
    assert {end for one in found.failures for end in (one.source, one.destination)} >= {"host:n2"}
    assert all("host:n2" in (one.source, one.destination) for one in found.failures)
    tried = [words[words.index("--host") + 1] for words, _ in nccl.calls]
    assert sum("10.0.0.2:" in one for one in tried) == 2
    assert sum("left out" in one.says for one in found.failures) == 2


def test_where_no_pair_has_a_rate_the_first_reason_is_stated_after_two_rounds(nccl: NcclTests) -> None:
    nccl.plan({"": "unreachable"})
    found = by_nccl(nccl_hosts(nccl, 5), QUICK, do)
    assert isinstance(found, str)
    assert found.startswith("n")
    assert UNREACHABLE.partition("{")[0] in found
    assert len(nccl.calls) <= 4


SHORT = Timing(warm_s=0.01, window_s=0.01, windows=3, latency_s=0.01)


def brought(rank: int, port: int = 1, **resources: Any) -> Joining:
    address = str(resources.pop("address", LOOPBACK))
    return joining(rank, address=address, port=port, resources=Resources(mtu_bytes=1500, **resources))


def test_programs_are_given_addresses_only(nccl: NcclTests) -> None:
    tools = nccl_hosts(nccl, 1)[0].tools
    hosts = [brought(0, tools=tools), brought(1, tools=tools, address="10.0.0.1:9,localhost")]
    with pytest.raises(HardwareError, match="n1 has no IPv4 address"):
        measure(hosts, SHORT, "nccl-tests", do, print)
    assert nccl.calls == []


def test_all_pairs_of_three_hosts_are_measured() -> None:
    said: list[str] = []
    with contextlib.ExitStack() as held:
        own = [held.enter_context(Listener(LOOPBACK)) for _ in range(3)]
        hosts = [brought(rank, one.port, token=one.token) for rank, one in enumerate(own)]
        found = measure(hosts, SHORT, "auto", do, said.append)
    assert (found.failures, found.not_measured, found.complete) == ((), (), True)
    ends_of = [(f"host:n{a}", f"host:n{b}") for slot in schedule(3) for a, b in slot.transfers]
    assert sorted((one.source, one.destination) for one in found.samples) == sorted(ends_of)
    assert all(one.median_us or one.median_gb_per_s is not None for one in found.samples)
    assert {(one.kind, one.group, one.with_reverse) for one in found.samples} == {
        ("network_latency", None, False),
        ("network", None, False),
        ("network", None, True),
        ("network", AT_ONCE, False),
    }
    assert said == ["measuring between 3 hosts by TCP probe: about 0 s"]
    assert found.notes[0].endswith(
        "no ib_write_bw: not known (all hosts); no nccl-tests: not known (all hosts)"
    )


def test_a_transfer_that_failed_is_not_tried_again_and_a_host_that_is_gone_is_not_asked_again() -> None:
    asked: list[int] = []

    def failing(orders: Mapping[int, Order]) -> dict[int, Done | GputopoError]:
        asked.extend(orders)
        done: dict[int, Done | GputopoError] = dict.fromkeys(orders, Done(values=(0.9, 1.0, 1.1)))
        for rank, order in orders.items():
            if order.port == 2:
                done[rank] = Done(error="timed out")
            if rank == 3:
                done[rank] = HardwareError("host n3 is gone", "")
        return done

    found = by_tcp([NetworkHost(name=f"n{n}", address=LOOPBACK, port=n) for n in range(4)], SHORT, failing)
    assert asked.count(3) == 1
    assert (found.complete, found.not_measured[0].what) == (False, "transfers of n3")
    failed = {(one.source, one.destination, one.says) for one in found.failures}
    assert ("host:n0", "host:n2", "timed out") in failed
    assert {one for one in failed if one[1] == "host:n2"} <= {
        (f"host:n{n}", "host:n2", "timed out") for n in (0, 1)
    }
    assert {one.says for one in found.failures if one.destination == "host:n3"} == {"host n3 is gone"}
    (sample, *_) = (one for one in found.samples if one.kind == "network")
    assert sample.median_gb_per_s == 1.0
    assert sample.spread_percent == pytest.approx(20.0)


def test_where_two_transfers_failed_and_none_was_measured_no_other_begins() -> None:
    begun: list[Mapping[int, Order]] = []

    def failing(orders: Mapping[int, Order]) -> dict[int, Done | GputopoError]:
        begun.append(orders)
        return dict.fromkeys(orders, Done(error="timed out"))

    hosts = [NetworkHost(name=f"n{n}", address=LOOPBACK, port=n) for n in range(8)]
    assert by_tcp(hosts, SHORT, failing).samples == ()
    assert len(begun) == 2


def perftest_hosts(number: int, *, rate: float = 200.0) -> list[NetworkHost]:
    port = RdmaPort(device="mlx5_0", port=1, link_layer="Ethernet", rate_gbit_per_s=rate, gid_index=3)
    return [
        NetworkHost(name=f"n{n}", address=LOOPBACK, port=1, tools=Tools(rdma=port)) for n in range(number)
    ]


def test_each_direction_is_measured_by_ib_write_bw(perftest: Path) -> None:
    found = by_rdma(perftest_hosts(3), SHORT, do)
    assert isinstance(found, Bandwidth)
    assert found.failures == ()
    assert sorted((one.source[-1], one.destination[-1]) for one in found.samples) == [
        *((a, b) for a, b in permutations("012", 2))
    ]
    (one, *_) = found.samples
    assert (one.tool, one.transport, one.streams, one.expected_gb_per_s) == (
        "ib_write_bw",
        "RDMA write",
        4,
        25.0,
    )
    assert one.median_gb_per_s == pytest.approx(24.5)
    calls = (perftest / "calls").read_text().splitlines()
    words = "-d mlx5_0 -i 1 -x 3 -s 65536 -q 4 --report_gbits -D 1 -f 0"
    assert {one.partition(" -d ")[2] for one in calls} == {words[3:], f"{words[3:]} {LOOPBACK}"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit", "ib_write_bw ended with exit code 1: for lack of memory"),
        ("garbage", "ib_write_bw printed no result: [2J{ what is this"),
        ("hang", "ib_write_bw did not end within"),
    ],
)
def test_an_ib_write_bw_that_measures_nothing_is_the_reason_for_the_next_tool(
    perftest: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    (perftest / "fault").write_text(fault)
    monkeypatch.setattr("gputopo.launch.jobs.network.RDMA_LIMIT_S", 0.3 if fault == "hang" else 15.0)
    found = by_rdma(perftest_hosts(2), SHORT, do)
    assert isinstance(found, str)
    assert found.startswith(f"n0 to n1: {says}")
    tools = perftest_hosts(1)[0].tools
    if fault == "exit":
        with pytest.raises(HardwareError, match="ib_write_bw cannot measure between these hosts: n0 to n1"):
            measure([brought(rank, tools=tools) for rank in (0, 1)], SHORT, "ib_write_bw", do, print)
