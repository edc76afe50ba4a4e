"""`gputopo bandwidth --network`: what is refused, and two hosts on loopback, the other one a thread."""

import json
import platform
import socket

import pytest

from gputopo.copies.network.schedule import Timing
from gputopo.launch.hosts.gathering.guest import Guest
from gputopo.launch.hosts.gathering.messages import End, Refused
from gputopo.launch.jobs.hosts.network import take_part
from gputopo.launch.jobs.hosts.serving import free_port
from gputopo.probes.network.tcp import Listener
from gputopo.runs.history import history_file, latest_network
from tests.cli.conftest import Call
from tests.launch.hosts.environs import slurm_step
from tests.launch.hosts.meetings import LOOPBACK, Later, joining

SHORT = Timing(warm_s=0.01, window_s=0.01, windows=3, latency_s=0.01, gap_s=0.02, lead_s=0.05)


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (["--network"], "--network is between hosts, and no others are named", "srun"),
        (["--network", "--num-hosts", "1"], "--network is between hosts", "--hosts LIST"),
        (["--network-tool", "iperf3"], "--network-tool is for measuring between hosts", "--network"),
        (["--network", "--network-tool", "iperf"], "--network-tool cannot be 'iperf'", "iperf3"),
        (["--network", "--gpus", "0"], "--gpus is for one host", "leave it out"),
        (["--hosts", "a,b", "--soak", "1"], "--soak is for one host", "leave it out"),
        (["--hosts", "a,b", "--from", "x"], "--from is for one host", "leave it out"),
        (["--network", "--num-hosts", "2"], "rank of this one is not given", "--node-rank N"),
        (["--hosts", "a,b", "--node-rank", "2"], "rank 2 is outside", "0 to 1"),
        (["--hosts", "8.8.8.8,b", "--node-rank", "0"], "8.8.8.8 is public", "private"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_two_lines(
    call: Call, options: list[str], what: str, hint: str
) -> None:
    done = call("bandwidth", *options)
    assert (done.code, done.out) == (2, "")
    first, second = done.err.strip().splitlines()
    assert what in first
    assert hint in second


def test_a_slurm_step_alone_measures_each_host_for_itself(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step(node=1).items():
        monkeypatch.setenv(name, text)
    done = call("bandwidth", "--from", "7gforce")
    assert (done.code, done.err) == (0, "")  # no other host was waited for


def test_rank_0_shows_what_two_hosts_measured(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputopo.cli.hosts.network.QUICK", SHORT)
    port = free_port()

    def other() -> End:
        with Listener(socket.AF_INET, LOOPBACK) as listener:
            asked = {"network": True, "full": False, "network_tool": "auto"}
            own = joining(1, "n1", address=LOOPBACK, port=listener.port, asked=asked)
            return take_part(Guest(1, LOOPBACK, port), own, listener, 10)

    later = Later(other)
    done = call("bandwidth", "--hosts", f"{LOOPBACK}:{port},n1", "--node-rank", "0", "--json", "--save")
    assert later.result() == End(exit_code=done.code)
    assert done.code == 0
    document = json.loads(done.out)
    assert document["schema"] == "gputopo.bandwidth/1"
    kinds = [one["kind"] for one in document["samples"]]
    assert (kinds.count("network"), kinds.count("network_latency")) == (4, 1)
    assert "measuring between 2 hosts" in done.err
    assert "TCP probe" in document["notes"][0]
    saved = latest_network(history_file(), {"n1", platform.node()})
    assert saved is not None
    assert len(saved.bandwidth.samples) == len(document["samples"])


def test_a_tool_that_another_host_lacks_is_refused_on_both(call: Call) -> None:
    port = free_port()
    asked = {"network": True, "full": False, "network_tool": "iperf3"}
    lacks = {"tools": {"lacks": {"iperf3": "iperf3 is not installed"}}}

    def other() -> str:
        own = joining(1, "n1", address=LOOPBACK, port=1, asked=asked, resources=lacks)
        reply = Guest(1, LOOPBACK, port).join(own, 10)
        assert isinstance(reply, Refused)
        return reply.what

    later = Later(other)
    options = ("--hosts", f"{LOOPBACK}:{port},n1", "--node-rank", "0", "--network-tool", "iperf3")
    done = call("bandwidth", *options)
    assert (done.code, done.out) == (3, "")
    assert "iperf3 cannot measure between these hosts: iperf3 is not installed (" in done.err
    assert "n1" in done.err
    assert "install iperf3 on all hosts" in done.err.splitlines()[-1]
    assert later.result() in done.err


def test_another_host_shows_nothing_and_ends_with_rank_0(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from gputopo.copies.network.schedule import Host
    from gputopo.launch.hosts.gathering.meeting import Meeting
    from gputopo.launch.jobs.hosts.network import lead, order_of

    asked = {"network": True, "full": False, "network_tool": "auto"}

    with Meeting([LOOPBACK, "n1"], 0, asked=asked) as meeting:

        def first() -> bool:
            with Listener(socket.AF_INET, LOOPBACK) as listener:
                own = Host(name="n0", address=LOOPBACK, port=listener.port)
                found = lead(meeting, order_of(own, meeting.wait(10), SHORT, "auto"), listener)
                meeting.end(End(exit_code=1))
                return found.complete

        later = Later(first)
        done = call("bandwidth", "--hosts", f"{LOOPBACK}:{meeting.port},n1", "--node-rank", "1")
        assert later.result()
    assert (done.code, done.out) == (1, "")
    assert "its result is on rank 0" in done.err
