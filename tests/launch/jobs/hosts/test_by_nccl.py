"""Pairs of hosts by nccl-tests from rank 0, with stand-ins for mpirun and sendrecv_perf."""

import os
from pathlib import Path

import pytest

from gputopo.copies.network import NCCL_TESTS, QUICK, Host, Nccl, Order, Tools
from gputopo.launch.jobs.hosts.by_nccl import measure_by_nccl
from gputopo.values.bandwidth import Bandwidth
from tests.probes.stand_ins import UNREACHABLE, MpiFault, NcclTests


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    return NcclTests(tmp_path, monkeypatch)


def order_of(nccl: NcclTests, hosts: int, all_reduce: str | None = None) -> Order:
    own = Nccl(
        mpirun=str(nccl.folder / "mpirun"),
        program=str(nccl.folder / "sendrecv_perf"),
        gpus=4,
        all_reduce=all_reduce,
    )
    return Order(
        hosts=tuple(
            Host(name=f"n{n}", address=f"10.0.0.{n}", port=1, tools=Tools(nccl=own)) for n in range(hosts)
        ),
        token="t",
        timing=QUICK,
        tool=NCCL_TESTS,
        passed_over="no ib_write_bw: no RDMA port (all hosts)",
    )


def test_each_pair_has_its_rate_in_both_directions_and_states_how(nccl: NcclTests) -> None:
    nccl.plan({"": 12.0, "10.0.0.2": 6.0})
    found = measure_by_nccl(order_of(nccl, 4), os.environ)
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
    assert note.endswith("no ib_write_bw: no RDMA port (all hosts)")
    assert nccl.all_ended()


def test_all_gpus_reduce_together_where_all_pairs_were_measured(nccl: NcclTests) -> None:
    order = order_of(nccl, 3, nccl.install_all_reduce(20.0, hosts=3, gpus=4))
    found = measure_by_nccl(order, os.environ)
    assert isinstance(found, Bandwidth)
    out, within = (one for one in found.samples if one.kind == "allreduce")
    assert (out.ranks, out.hosts, out.bytes, out.in_place) == (12, 3, 256 * 2**20, False)
    assert (out.median_gb_per_s, within.in_place) == (20.0, True)
    assert out.bus_gb_per_s == pytest.approx(20 * 2 * 11 / 12, abs=0.01)
    words, _ = nccl.calls[-1]
    places, ranks = words[words.index("--host") + 1], words[words.index("-np") + 1]
    assert (places, ranks) == ("10.0.0.0:4,10.0.0.1:4,10.0.0.2:4", "12")
    assert any("over 3 hosts with 4 GPUs each" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit", "out of memory"),
        ("garbage", "all_reduce_perf printed no result"),
        ("single", "ran as 12 single processes"),
        ("unreachable", "No route to host"),
    ],
)
def test_an_all_reduce_that_fails_leaves_the_pairs_and_is_stated(
    nccl: NcclTests, fault: MpiFault, says: str
) -> None:
    nccl.plan({"all": fault})
    order = order_of(nccl, 3, nccl.install_all_reduce(20.0, hosts=3, gpus=4))
    found = measure_by_nccl(order, os.environ)
    assert isinstance(found, Bandwidth)
    assert (len(found.samples), found.failures) == (6, ())
    *_, why = found.not_measured
    assert why.what == "all-reduce over all 12 GPUs"
    assert says in why.reason


def test_an_all_reduce_over_fewer_gpus_than_there_are_does_not_count(nccl: NcclTests) -> None:
    order = order_of(nccl, 3, nccl.install_all_reduce(20.0, hosts=3, gpus=2))
    found = measure_by_nccl(order, os.environ)
    assert isinstance(found, Bandwidth)
    assert found.not_measured[-1].reason == "all_reduce_perf ran 6 ranks on 3 hosts, not 12 on 3"


def test_a_host_that_fails_costs_its_own_pairs_and_is_not_tried_for_ever(nccl: NcclTests) -> None:
    nccl.plan({"": 12.0, "10.0.0.2": "unreachable", "10.0.0.2,10.0.0.3": "exit"})
    found = measure_by_nccl(order_of(nccl, 6), os.environ)
    assert isinstance(found, Bandwidth)
    assert len(found.samples) == 20
    assert {end for one in found.failures for end in (one.source, one.destination)} >= {"host:n2"}
    assert all("host:n2" in (one.source, one.destination) for one in found.failures)
    tried = [words[words.index("--host") + 1] for words, _ in nccl.calls]
    assert sum("10.0.0.2:" in one for one in tried) == 2
    assert sum("left out" in one.says for one in found.failures) == 3


def test_where_no_pair_has_a_rate_the_first_reason_is_stated_after_two_rounds(nccl: NcclTests) -> None:
    nccl.plan({"": "unreachable"})
    found = measure_by_nccl(order_of(nccl, 5), os.environ)
    assert isinstance(found, str)
    assert found.startswith("n")
    assert UNREACHABLE.partition("{")[0] in found
    assert len(nccl.calls) <= 4


def test_mpirun_is_given_addresses_only(nccl: NcclTests) -> None:
    order = order_of(nccl, 2)
    strange = Host(name="n1", address="10.0.0.1:9,localhost", port=1)
    found = measure_by_nccl(Order(hosts=(order.hosts[0], strange), token="t", timing=QUICK), os.environ)
    assert found == "n1 has no IPv4 address"
    assert nccl.calls == []


def test_an_mpirun_that_cannot_be_started_is_a_reason(
    nccl: NcclTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nccl.folder / "mpirun").unlink()
    found = measure_by_nccl(order_of(nccl, 2), os.environ)
    assert isinstance(found, str)
    assert "cannot run" in found
