"""The network between hosts that are threads of this process, on loopback."""

import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gputopo.copies.network import Host, Order, Timing, Tools, schedule
from gputopo.launch.hosts.gathering.guest import Guest, Telling
from gputopo.launch.hosts.gathering.meeting import Meeting
from gputopo.launch.hosts.gathering.messages import End, Joining, Start
from gputopo.launch.hosts.gathering.patience import Patience
from gputopo.launch.jobs.hosts.network import lead, measure, order_of, take_part
from gputopo.probes.programs import ProgramError, Programs
from gputopo.probes.tcp import Listener
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from tests.launch.hosts.meetings import LOOPBACK, PROMPT, Later, joining
from tests.probes.stand_ins import StandIns

SHORT = Timing(warm_s=0.01, window_s=0.01, windows=3, latency_s=0.01, gap_s=0.02, lead_s=0.05)
PATIENCE: Patience = msgspec.convert(
    {name: getattr(PROMPT, name) for name in PROMPT.__dataclass_fields__} | {"silent_s": 1.0}, Patience
)
OVER = End(exit_code=0)


def come(port: int, rank: int, name: str, listener: Listener) -> Joining:
    return joining(rank, name, address=LOOPBACK, port=listener.port, resources={"mtu_bytes": 1500})


def served(port: int, rank: int, name: str) -> End:
    with Listener(socket.AF_INET, LOOPBACK) as listener:
        guest = Guest(rank, LOOPBACK, port, patience=PATIENCE)
        return take_part(guest, come(port, rank, name, listener), listener, 5)


@contextlib.contextmanager
def rank_0(others: int) -> Iterator[tuple[Meeting, Listener]]:
    names = [LOOPBACK, *[None] * others]
    with Meeting(names, 0, patience=PATIENCE) as meeting, Listener(socket.AF_INET, LOOPBACK) as listener:
        yield meeting, listener


def measured(meeting: Meeting, listener: Listener) -> Bandwidth:
    own = Host(name="n0", address=LOOPBACK, port=listener.port)
    return lead(meeting, order_of(own, meeting.wait(5), SHORT, "auto"), listener)


def test_all_pairs_of_three_hosts_are_measured_and_each_learns_the_end() -> None:
    with rank_0(2) as (meeting, listener):
        ends = [Later(partial(served, meeting.port, rank, f"n{rank}")) for rank in (1, 2)]
        found = measured(meeting, listener)
        meeting.end(End(exit_code=1))
        assert [one.result().exit_code for one in ends] == [1, 1]
    assert (found.failures, found.not_measured, found.complete) == ((), (), True)
    transfers = [transfer for slot in schedule(3, SHORT) for transfer in slot.transfers]
    ends_of = [(f"host:n{a}", f"host:n{b}") for a, b in transfers]
    assert sorted((one.source, one.destination) for one in found.samples) == sorted(ends_of)
    assert all(one.median_us or one.median_gb_per_s is not None for one in found.samples)


def test_hosts_of_one_name_are_told_apart_by_their_ranks() -> None:
    with rank_0(1) as (meeting, listener):
        end = Later(partial(served, meeting.port, 1, "n0"))
        found = measured(meeting, listener)
        meeting.end(OVER)
        end.result()
    assert {one.source for one in found.samples} == {"host:n0#0", "host:n0#1"}


def test_a_host_that_dies_is_reported_and_the_others_are_measured() -> None:
    def dies(port: int) -> None:
        guest = Guest(1, LOOPBACK, port, patience=PATIENCE)
        with Listener(socket.AF_INET, LOOPBACK) as listener:
            assert isinstance(guest.join(come(port, 1, "n1", listener), 5), Start)

    with rank_0(2) as (meeting, listener):
        dead, end = Later(partial(dies, meeting.port)), Later(partial(served, meeting.port, 2, "n2"))
        found = measured(meeting, listener)
        meeting.end(OVER)
        end.result()
        assert dead is not None
    assert not found.complete
    assert [one.what for one in found.not_measured] == ["transfers of n1"]
    assert {one.destination for one in found.failures} == {"host:n1"}
    assert {"host:n0", "host:n2"} == {one.source for one in found.samples}


@pytest.mark.parametrize(
    "result", [b"\xff", b"[]", b"{}", b'{"schema":"gputopo.network_result/1","measured":[1]}']
)
def test_a_result_that_cannot_be_read_is_none(result: bytes) -> None:
    def strange(port: int) -> None:
        guest = Guest(1, LOOPBACK, port, patience=PATIENCE)
        with Listener(socket.AF_INET, LOOPBACK) as listener, Telling(guest):
            guest.join(come(port, 1, "n1", listener), 5)
            guest.report(result)

    with rank_0(1) as (meeting, listener):
        later = Later(partial(strange, meeting.port))
        found = measured(meeting, listener)
        later.result()
        meeting.end(OVER)
    assert not found.complete


def test_a_host_that_cannot_be_reached_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def latency(address: str, port: int, *_: object) -> tuple[float, ...]:
        tried.append(port)
        raise TimeoutError("timed out")

    monkeypatch.setattr("gputopo.launch.jobs.hosts.network.latency", latency)
    monkeypatch.setattr("gputopo.launch.jobs.hosts.network.send", latency)
    hosts = tuple(Host(name=f"n{port}", address=LOOPBACK, port=port) for port in (1, 2, 3))
    result = measure(Order(hosts=hosts, token="t", timing=SHORT), 0, lambda: False)
    assert sorted(tried) == [2, 3]
    assert {one.error for one in result.measured} == {"timed out"}
    own = [end for slot in schedule(3, SHORT) for source, end in slot.transfers if source == 0]
    assert [one.destination for one in result.measured] == own


def test_a_program_that_fails_costs_its_own_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fails(self: Programs, program: str, *_: object) -> tuple[float, ...]:
        tried.append(program)
        raise ProgramError(f"{program} was ended by signal 9")

    monkeypatch.setattr(Programs, "transfer", fails)
    hosts = tuple(Host(name=f"n{port}", address=LOOPBACK, port=port) for port in (1, 2))
    result = measure(Order(hosts=hosts, token="t", timing=SHORT, tool="ib_write_bw"), 0, lambda: False)
    assert tried == ["ib_write_lat", "ib_write_bw", "ib_write_bw"]
    assert {one.error for one in result.measured} == {
        "ib_write_lat was ended by signal 9",
        "ib_write_bw was ended by signal 9",
    }


def test_hosts_that_all_have_iperf3_are_measured_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns(tmp_path, monkeypatch)
    stand_ins.print_iperf3((0.5, 1.0, 2.0, 3.0))
    tools = Tools(lacks={"ib_write_bw": "no RDMA port"})

    def host(port: int) -> End:
        with Listener(socket.AF_INET, LOOPBACK) as listener:
            own = joining(1, "n1", address=LOOPBACK, port=listener.port, resources={"tools": tools})
            return take_part(Guest(1, LOOPBACK, port, patience=PATIENCE), own, listener, 5)

    with rank_0(1) as (meeting, listener):
        end = Later(partial(host, meeting.port))
        own = Host(name="n0", address=LOOPBACK, port=listener.port, tools=tools)
        order = order_of(own, meeting.wait(5), SHORT, "auto")
        timing = msgspec.structs.replace(order.timing, warm_s=0.1, windows=1, start_s=1.5)
        found = lead(meeting, msgspec.structs.replace(order, timing=timing), listener)
        meeting.end(OVER)
        end.result()
    assert found.failures == ()
    rates = [one for one in found.samples if one.kind == "network"]
    assert [(one.tool, one.transport, one.median_gb_per_s) for one in rates] == [("iperf3", "TCP", 2.0)] * 4
    assert [one.tool for one in found.samples if one.kind == "network_latency"] == ["TCP probe"]
    assert "no ib_write_bw: no RDMA port (all hosts)" in found.notes[0]
    assert stand_ins.all_ended()


def test_a_host_that_is_late_leaves_out_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def slow(*_: object) -> tuple[float, ...]:
        now_s[0] += 5.0
        return (1.0,)

    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda s: now_s.append(now_s.pop() + s))
    monkeypatch.setattr("gputopo.launch.jobs.hosts.network.time", clock)
    monkeypatch.setattr("gputopo.launch.jobs.hosts.network.latency", slow)
    monkeypatch.setattr("gputopo.launch.jobs.hosts.network.send", slow)
    hosts = tuple(Host(name=f"n{port}", address=LOOPBACK, port=port) for port in (1, 2))
    result = measure(Order(hosts=hosts, token="t", timing=SHORT), 0, lambda: False)
    first, *others = result.measured
    assert first.error is None
    assert {one.error for one in others} == {"left out: a transfer before it took too long"}


def test_rank_0_that_ends_early_ends_the_measurement_of_the_others() -> None:
    with rank_0(1) as (meeting, listener):
        end = Later(partial(served, meeting.port, 1, "n1"))
        meeting.wait(5)
        own = Host(name="n0", address=LOOPBACK, port=listener.port)
        order = Order(hosts=(own, own), token="t", timing=Timing(lead_s=60.0))
        meeting.answer({1: Start(spec=msgspec.Raw(schema.encode(order)))})
        gone = End(exit_code=130, cause="rank 0 has ended", hint="see its output")
        meeting.end(gone)
        assert end.result() == gone
