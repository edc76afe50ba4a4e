"""Pairs of hosts by nccl-tests from rank 0, with stand-ins for mpirun and sendrecv_perf."""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gputopo.copies.network import (
    NCCL_TESTS,
    QUICK,
    NcclPrograms,
    NetworkHost,
    Order,
    Timing,
    Tools,
    bandwidth_of,
    schedule,
)
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.jobs.network import measure, measure_by_nccl, measure_order, order_of
from gputopo.probes.tcp import Listener
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from tests.launch.hosts.meetings import LOOPBACK, Later, joining
from tests.probes.stand_ins import UNREACHABLE, MpiFault, NcclTests


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    return NcclTests(tmp_path, monkeypatch)


def nccl_order(nccl: NcclTests, hosts: int, all_reduce: str | None = None, *, gpus: int = 3) -> Order:
    own = NcclPrograms(
        mpirun=str(nccl.folder / "mpirun"),
        program=str(nccl.folder / "sendrecv_perf"),
        gpus=gpus,
        all_reduce=all_reduce,
    )
    return Order(
        hosts=tuple(
            NetworkHost(name=f"n{n}", address=f"10.0.0.{n}", port=1, tools=Tools(nccl=own))
            for n in range(hosts)
        ),
        token="t",
        timing=QUICK,
        tool=NCCL_TESTS,
        passed_over=None,
    )


def test_each_pair_has_its_rate_in_both_directions_and_states_how(nccl: NcclTests) -> None:
    nccl.plan({"": 12.0, "10.0.0.2": 6.0})
    found = measure_by_nccl(nccl_order(nccl, 4), os.environ)
    assert isinstance(found, Bandwidth)
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
    order = nccl_order(nccl, 2, nccl.install_all_reduce(20.0, hosts=2, gpus=3))
    found = measure_by_nccl(order, os.environ)
    assert isinstance(found, Bandwidth)
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
        ("garbage", "all_reduce_perf printed no result"),
        ("single", "ran as 4 single processes"),
        ("unreachable", "No route to host"),
    ],
)
def test_an_all_reduce_that_fails_leaves_the_pairs_and_is_stated(
    nccl: NcclTests, fault: MpiFault, says: str
) -> None:
    nccl.plan({"all": fault})
    order = nccl_order(nccl, 2, nccl.install_all_reduce(20.0, hosts=2, gpus=2), gpus=2)
    found = measure_by_nccl(order, os.environ)
    assert isinstance(found, Bandwidth)
    assert (len(found.samples), found.failures) == (2, ())
    *_, why = found.not_measured
    assert why.what == "all-reduce over all 4 GPUs"
    assert says in why.reason


def test_an_all_reduce_over_fewer_gpus_than_there_are_does_not_count(nccl: NcclTests) -> None:
    order = nccl_order(nccl, 2, nccl.install_all_reduce(20.0, hosts=2, gpus=1), gpus=2)
    found = measure_by_nccl(order, os.environ)
    assert isinstance(found, Bandwidth)
    assert found.not_measured[-1].reason == "all_reduce_perf ran 2 ranks on 2 hosts, not 4 on 2"


def test_a_host_that_fails_costs_its_own_pairs_and_is_not_tried_for_ever(nccl: NcclTests) -> None:
    nccl.plan({"": 12.0, "10.0.0.2": "unreachable", "10.0.0.2,10.0.0.3": "exit"})
    found = measure_by_nccl(nccl_order(nccl, 5), os.environ)
    assert isinstance(found, Bandwidth)
    assert len(found.samples) == 12
    assert {end for one in found.failures for end in (one.source, one.destination)} >= {"host:n2"}
    assert all("host:n2" in (one.source, one.destination) for one in found.failures)
    tried = [words[words.index("--host") + 1] for words, _ in nccl.calls]
    assert sum("10.0.0.2:" in one for one in tried) == 2
    assert sum("left out" in one.says for one in found.failures) == 2


def test_where_no_pair_has_a_rate_the_first_reason_is_stated_after_two_rounds(nccl: NcclTests) -> None:
    nccl.plan({"": "unreachable"})
    found = measure_by_nccl(nccl_order(nccl, 5), os.environ)
    assert isinstance(found, str)
    assert found.startswith("n")
    assert UNREACHABLE.partition("{")[0] in found
    assert len(nccl.calls) <= 4


def test_mpirun_is_given_addresses_only(nccl: NcclTests) -> None:
    order = nccl_order(nccl, 2)
    strange = NetworkHost(name="n1", address="10.0.0.1:9,localhost", port=1)
    found = measure_by_nccl(Order(hosts=(order.hosts[0], strange), token="t", timing=QUICK), os.environ)
    assert found == "n1 has no IPv4 address"
    assert nccl.calls == []


SHORT = Timing(warm_s=0.01, window_s=0.01, windows=3, latency_s=0.01, gap_s=0.02, lead_s=0.05)


@contextlib.contextmanager
def listening(number: int) -> Iterator[list[Listener]]:
    with contextlib.ExitStack() as held:
        yield [held.enter_context(Listener.at(LOOPBACK)) for _ in range(number)]


def brought(rank: int, listener: Listener, **resources: object) -> Joining:
    return joining(rank, address=LOOPBACK, port=listener.port, resources={"mtu_bytes": 1500, **resources})


def measured(order: Order, listeners: list[Listener]) -> Bandwidth:
    """Let each host measure in a thread, by its own order as JSON."""
    lines = [schema.encode(msgspec.structs.replace(order, rank=rank)) for rank in range(len(listeners))]
    hosts = [
        Later(partial(measure_order, line, listener, os.environ))
        for line, listener in zip(lines, listeners, strict=True)
    ]
    return bandwidth_of(order, {rank: one.result(30) for rank, one in enumerate(hosts)}, {})


def test_all_pairs_of_three_hosts_are_measured() -> None:
    with listening(3) as listeners:
        order = order_of([brought(rank, one) for rank, one in enumerate(listeners)], SHORT, "auto")
        found = measured(order, listeners)
    assert (found.failures, found.not_measured, found.complete) == ((), (), True)
    transfers = [transfer for slot in schedule(3, SHORT) for transfer in slot.transfers]
    ends_of = [(f"host:n{a}", f"host:n{b}") for a, b in transfers]
    assert sorted((one.source, one.destination) for one in found.samples) == sorted(ends_of)
    assert all(one.median_us or one.median_gb_per_s is not None for one in found.samples)


def test_a_host_that_cannot_be_reached_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def latency(address: str, port: int, *_: object) -> tuple[float, ...]:
        tried.append(port)
        raise TimeoutError("timed out")

    monkeypatch.setattr("gputopo.launch.jobs.network.latency", latency)
    monkeypatch.setattr("gputopo.launch.jobs.network.send", latency)
    hosts = tuple(NetworkHost(name=f"n{port}", address=LOOPBACK, port=port) for port in (1, 2, 3))
    result = measure(Order(hosts=hosts, token="t", timing=SHORT))
    assert sorted(tried) == [2, 3]
    assert {one.error for one in result.measured} == {"timed out"}
    own = [end for slot in schedule(3, SHORT) for source, end in slot.transfers if source == 0]
    assert [one.destination for one in result.measured] == own


def test_a_host_that_is_late_leaves_out_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def slow(*_: object) -> tuple[float, ...]:
        now_s[0] += 5.0
        return (1.0,)

    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda s: now_s.append(now_s.pop() + s))
    monkeypatch.setattr("gputopo.launch.jobs.network.time", clock)
    monkeypatch.setattr("gputopo.launch.jobs.network.latency", slow)
    monkeypatch.setattr("gputopo.launch.jobs.network.send", slow)
    hosts = tuple(NetworkHost(name=f"n{port}", address=LOOPBACK, port=port) for port in (1, 2))
    result = measure(Order(hosts=hosts, token="t", timing=SHORT))
    first, *others = result.measured
    assert first.error is None
    assert {one.error for one in others} == {"left out: a transfer before it took too long"}
