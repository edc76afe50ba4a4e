"""Programs that measure: what they print is read, and one that misbehaves costs its transfer alone."""

import contextlib
import json
import shutil
import signal
import socket
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from gputopo.captures.bandwidth.network import read_perftest
from gputopo.copies.network.schedule import QUICK, Timing
from gputopo.copies.network.tools import Program, Rdma
from gputopo.probes.network.programs import ProgramError, Programs
from gputopo.probes.network.tcp import Listener, connected, latency
from gputopo.probes.processes import tethered
from tests.probes.network.stand_ins import TAKEN, Fault, StandIns

HERE = "127.0.0.1"
LONG = Timing(warm_s=0.1, window_s=0.1, windows=3, latency_s=20.0, start_s=20.0)
ROCE = Rdma(device="mlx5_3", port=2, link_layer="Ethernet", gid_index=5)
INFINIBAND = Rdma(device="mlx5_0", port=1, link_layer="InfiniBand")


def programs(timing: Timing = LONG, rdma: Rdma | None = INFINIBAND) -> Programs:
    return Programs(timing, 4, rdma, partial(tethered, signum=signal.SIGKILL))


@contextlib.contextmanager
def listening(own: Programs) -> Iterator[int]:
    with Listener(socket.AF_INET, HERE) as listener:
        listener.token, listener.serve = "secret", own.serve
        yield listener.port


def transfer(program: Program, own: Programs | None = None) -> tuple[float, ...]:
    own = own or programs()
    with listening(own) as port:
        return own.transfer(program, HERE, port, "secret")


def test_the_windows_of_iperf3_are_what_arrived_after_the_warm_up(stand_ins: StandIns) -> None:
    stand_ins.print_iperf3((0.1, 1.0, 1.5, 1.25))
    assert transfer("iperf3") == (1.0, 1.5, 1.25)
    server, client = stand_ins.calls
    assert server.startswith("iperf3 -J -p ")
    assert server.endswith("-i 0.1 -s -1 -B 127.0.0.1")
    assert client.endswith("-i 0.1 -c 127.0.0.1 -P 4 -t 1 --get-server-output")
    assert stand_ins.all_ended()


def test_without_its_servers_intervals_iperf3_has_one_number(stand_ins: StandIns) -> None:
    file = stand_ins.folder / "iperf3.txt"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({name: document[name] for name in ("start", "intervals", "end")}))
    (rate,) = transfer("iperf3")
    assert rate == pytest.approx(document["end"]["sum_received"]["bits_per_second"] / 8e9)


@pytest.mark.parametrize("program", ["ib_write_bw", "ib_write_lat"])
def test_perftest_is_read_and_asked_for_the_port_of_each_host(stand_ins: StandIns, program: Program) -> None:
    text = (stand_ins.folder / f"{program}.txt").read_text()
    bandwidth = read_perftest(text, origin="x").machine.bandwidth
    assert bandwidth is not None
    (sample,) = bandwidth.samples
    assert transfer(program, programs(rdma=ROCE)) == (sample.median_us or sample.median_gb_per_s,)
    server, client = stand_ins.calls
    assert client == f"{server} 127.0.0.1"
    assert " -d mlx5_3 -i 2 -x 5 " in server
    own = "-s 8 -n 1000" if program == "ib_write_lat" else "-s 65536 -q 4 --report_gbits -D 1 -f 0"
    assert server.endswith(own)


def test_infiniband_has_no_gid_index(stand_ins: StandIns) -> None:
    transfer("ib_write_bw")
    assert all(" -d mlx5_0 -i 1 -s " in call for call in stand_ins.calls)


@pytest.mark.parametrize(
    ("program", "server", "client", "words"),
    [
        ("iperf3", None, "exit", "iperf3 ended with exit code 1: for lack of memory"),
        ("iperf3", None, "garbage", "iperf3 printed no result: [2J{{ what is this"),
        ("iperf3", None, "nothing", "iperf3 printed no result"),
        ("iperf3", None, "killed", "iperf3 was ended by signal 9"),
        ("iperf3", None, "flood", "iperf3 printed more than 4 MiB"),
        ("iperf3", "exit", None, "its server: iperf3 ended with exit code 1: for lack of memory"),
        ("iperf3", "taken", None, f"its server: iperf3: {TAKEN}"),
        ("iperf3", "killed", None, "its server: iperf3 was ended by signal 9"),
        ("ib_write_bw", None, "exit", "ib_write_bw ended with exit code 1: for lack of memory"),
        ("ib_write_bw", None, "garbage", "ib_write_bw printed no result: [2J{{ what is this"),
        ("ib_write_lat", "garbage", None, "its server: ib_write_lat printed no result"),
    ],
)
def test_a_program_that_misbehaves_costs_its_transfer(
    stand_ins: StandIns, program: Program, server: Fault | None, client: Fault | None, words: str
) -> None:
    with listening(programs()) as port:
        stand_ins.misbehave(server=server, client=client)
        with pytest.raises(ProgramError) as failed:
            programs().transfer(program, HERE, port, "secret")
        assert words in str(failed.value)
        assert stand_ins.all_ended()
        stand_ins.misbehave()
        assert programs().transfer(program, HERE, port, "secret")


@pytest.mark.parametrize(
    ("server", "client", "start_s", "words"),
    [(None, "hang", 1.7, "iperf3 did not end within 3.0 s"), ("hang", None, 0.4, "in time")],
)
def test_a_program_that_hangs_is_ended_after_its_time(
    stand_ins: StandIns, server: Fault | None, client: Fault | None, start_s: float, words: str
) -> None:
    stand_ins.misbehave(server=server, client=client)
    with pytest.raises(ProgramError, match=words):
        transfer("iperf3", programs(msgspec.structs.replace(LONG, start_s=start_s)))
    assert stand_ins.all_ended()


def test_a_server_that_starts_slowly_is_waited_for(stand_ins: StandIns) -> None:
    stand_ins.misbehave(server="slow")
    assert transfer("iperf3")


def test_a_server_ends_with_the_connection_of_who_asked_for_it(stand_ins: StandIns) -> None:
    with listening(programs()) as port:
        with connected(HERE, port, "secret", "iperf3", LONG) as connection:
            assert json.loads(connection.recv(100))["port"] > 0
            assert len(stand_ins.calls) == 1
        assert stand_ins.all_ended()


@pytest.mark.parametrize("name", ["sh", "iperf3;true", "ib_read_bw"])
def test_no_other_program_is_started(stand_ins: StandIns, name: str) -> None:
    with listening(programs()) as port:
        with connected(HERE, port, "secret", name, LONG) as connection:
            assert connection.recv(100) == b""
        assert latency(HERE, port, "secret", QUICK)
    assert stand_ins.calls == []


def test_a_host_that_cannot_be_reached_is_no_fault_of_the_program(stand_ins: StandIns) -> None:
    with listening(programs()) as port, pytest.raises(ConnectionError, match="refused"):
        programs().transfer("iperf3", HERE, port, "guess")
    with pytest.raises(ConnectionRefusedError):
        programs().transfer("iperf3", HERE, port, "secret")
    assert stand_ins.calls == []


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_the_real_iperf3_measures_loopback() -> None:
    rates = transfer("iperf3", programs(msgspec.structs.replace(QUICK.of("iperf3"), start_s=20.0)))
    assert 4 <= len(rates) <= 12
    assert all(0 < rate < 1000 for rate in rates)
