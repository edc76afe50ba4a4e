"""perftest and iperf3: each form is read back; several runs; errors; damage."""

import json
from math import isfinite
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.captures import reading
from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.kit.dialects import network
from tests.kit.dialects.network import Iperf3, Perftest

seeds = st.integers(0, 2**32)
FORMS = {
    "Gb/s": Perftest(),
    "MiB/s": Perftest(unit="MiB"),
    "old MB/s, send": Perftest("Send", unit="MB"),
    "read": Perftest("RDMA_Read", streams=4),
    "atomic": Perftest("Atomic", unit="MiB"),
    "both directions": Perftest(bidirectional=True),
    "quality of service": Perftest(qos=True),
    "two ports": Perftest(per_port=True, duration=True),
    "with the CPU": Perftest("Send", cpu=True, duration=True),
    "latency": Perftest("Send", unit=None),
    "latency of reads": Perftest("RDMA_Read", unit=None),
    "latency by duration": Perftest(unit=None, duration=True),
}


def read(text: str) -> tuple[Machine, Bandwidth]:
    machine = reading.read_text(text, origin="log")
    assert machine.bandwidth is not None
    return machine, machine.bandwidth


def check(text: str, expected: tuple[Sample, ...], source: str) -> Bandwidth:
    machine, bandwidth = read(text)
    assert machine.source == source
    assert machine.gpus == ()
    assert machine.unread == ()
    assert bandwidth.complete
    assert without_rates(bandwidth.samples) == without_rates(expected)
    assert rates(bandwidth.samples) == pytest.approx(rates(expected), rel=1e-9)
    return bandwidth


def without_rates(samples: tuple[Sample, ...]) -> list[tuple[object, ...]]:
    return [
        (s.kind, s.source, s.destination, s.bytes, s.with_reverse, s.transport, s.streams, s.median_us)
        for s in samples
    ]


def rates(samples: tuple[Sample, ...]) -> list[float]:
    return [sample.median_gb_per_s or 0.0 for sample in samples]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_perftest_is_read_back(form: str) -> None:
    @settings(max_examples=3)
    @given(seeds)
    def run(seed: int) -> None:
        random = Random(seed)
        sizes = [2**power for power in range(1, 24)] if random.random() < 0.5 else [65536]
        check(*network.perftest(random, FORMS[form], sizes), "perftest")

    run()


@pytest.mark.parametrize("form", [name for name in FORMS if name not in ("quality of service", "two ports")])
def test_the_json_of_perftest_is_read_back_in_either_unit(form: str) -> None:
    @settings(max_examples=3)
    @given(seeds)
    def run(seed: int) -> None:
        check(*network.perftest_json(Random(seed), FORMS[form]), "perftest")

    run()


def test_a_rate_of_perftest_without_a_message_rate_has_no_unit() -> None:
    document = json.loads(network.perftest_json(Random(1), Perftest())[0])
    for rate in (0, 1e-6, None):
        document["results"]["MsgRate"] = rate
        _, bandwidth = read(json.dumps(document))
        assert bandwidth.samples == ()
        assert "no unit" in bandwidth.not_measured[0].reason


def test_objects_of_perftest_in_one_file_are_runs() -> None:
    parts = [network.perftest_json(Random(seed), Perftest()) for seed in (1, 2)]
    _, bandwidth = read("\n".join(text for text, _ in parts))
    assert rates(bandwidth.samples) == pytest.approx([rates(samples)[0] for _, samples in parts])
    with pytest.raises(InputError, match="not complete JSON"):
        read(parts[0][0][:-3])


def test_both_directions_alone_below_their_sum_are_not_taken_for_sums() -> None:
    text, samples = network.perftest(Random(1), Perftest(bidirectional=True), [65536])
    head, row = text.splitlines()[-3], " 65536      5000       99.00            98.00\t\t     0.187000"
    each = "\n".join(f" {which} results: \n{head}\n{row}" for which in ("Local", "Remote"))
    assert "BW average" in head
    machine, bandwidth = read(f"{text}{each}\n")
    assert rates(bandwidth.samples) == rates(samples)
    assert len(machine.unread) == 2


def test_the_memory_of_a_gpu_is_noted() -> None:
    text, samples = network.perftest(Random(1), Perftest(), [65536])
    cuda = "initializing CUDA\nPicking device No. 0\ncuMemAlloc() of a 131072 bytes GPU buffer\n"
    bandwidth = check(cuda + text, samples, "perftest")
    assert any("memory of a GPU" in note for note in bandwidth.notes)


@settings(max_examples=20)
@given(seeds)
def test_each_way_to_start_iperf3_is_read_back(seed: int) -> None:
    random = Random(seed)
    check(*network.iperf3(random, network.any_iperf3(random)), "iperf3")


@given(seeds)
def test_the_json_of_iperf3_is_read_back(seed: int) -> None:
    random = Random(seed)
    bandwidth = check(*network.iperf3_json(random, network.any_iperf3(random)), "iperf3")
    assert any("7 segments were sent again" in note for note in bandwidth.notes)
    assert "10.1.0" not in repr(bandwidth)


def test_the_output_of_the_server_below_that_of_the_client_counts_once() -> None:
    random = Random(6)
    text, samples = network.iperf3(random, Iperf3(streams=2))
    end = [line for line in text.splitlines() if line.endswith("receiver")]
    whole = text.replace("iperf Done.", "\n".join(["Server output:", *end, "iperf Done."]))
    check(whole, samples, "iperf3")


def test_each_test_of_one_log_is_a_result() -> None:
    for of_server in (False, True):
        forms = [Iperf3(of_server=of_server), Iperf3(4, reverse=True, of_server=of_server)]
        parts = [network.iperf3(Random(seed), form) for seed, form in enumerate(forms)]
        _, bandwidth = read("".join(text for text, _ in parts))
        expected = tuple(sample for _, samples in parts for sample in samples)
        assert without_rates(bandwidth.samples) == without_rates(expected)


def test_repeated_tests_of_one_log_are_runs() -> None:
    parts = [network.iperf3(Random(seed), Iperf3()) for seed in range(3)]
    _, bandwidth = read("".join(text for text, _ in parts))
    assert [one.run for one in bandwidth.samples] == ["run 1", "run 2", "run 3"]
    assert rates(bandwidth.samples) == pytest.approx([rates(samples)[0] for _, samples in parts])


def test_dates_before_lines_and_the_systems_name_are_no_results() -> None:
    text, samples = network.iperf3(Random(7), Iperf3(streams=2))
    lines = ["iperf 3.12", "Linux some-host 6.1.0 #1 SMP x86_64", *text.splitlines()]
    check("\n".join(f"Tue Nov 24 03:37:19 2026 {line}" for line in lines), samples, "iperf3")
    machine, _ = read("\n".join(lines))
    assert "some-host" not in repr(machine)


def test_the_events_of_a_json_stream_are_one_run() -> None:
    document = json.loads(network.iperf3_json(Random(1), Iperf3(streams=2))[0])
    events = [
        {"event": "start", "data": document["start"]},
        {"event": "interval", "data": {}},
        {"event": "end", "data": document["end"]},
    ]
    machine, bandwidth = read("\n".join(map(json.dumps, events)))
    assert [one.streams for one in bandwidth.samples] == [2]
    assert machine.unread == ()


def test_rates_of_a_single_direction_count_bytes_and_not_bits() -> None:
    line = "[  5]   0.00-10.04  sec  10.9 GBytes  9.37 Gbits/sec                  receiver"
    assert rates(read(line)[1].samples) == [pytest.approx(9.37 / 8)]
    line = line.replace("9.37 Gbits", "9.37 GBytes")
    assert rates(read(line)[1].samples) == [pytest.approx(9.37 * 2**30 / 1e9)]


_UDP = "  0.00-2.00   sec  1.16 GBytes  5.00 Gbits/sec  0.012 ms"
_SUMMARY = (
    "- - - - - - -\n[ ID] Interval           Transfer     Bandwidth       Jitter    Lost/Total Datagrams\n"
)


def test_the_end_of_udp_before_3_7_names_neither_end_and_counts_what_was_sent() -> None:
    head = "[ ID] Interval           Transfer     Bandwidth       Total Datagrams\n"
    text = f"{head}[  4]   0.00-1.00   sec  596 MBytes  5.00 Gbits/sec  76300\n{_SUMMARY}"
    machine, bandwidth = read(f"{text}[  4] {_UDP}  76350/152700 (50%)  \n[  4] Sent 152700 datagrams\n")
    assert [one.transport for one in bandwidth.samples] == ["UDP"]
    assert rates(bandwidth.samples) == [pytest.approx(2.5 / 8)]
    assert bandwidth.notes == ("iperf3: 76350 of 152700 datagrams were lost",)
    assert machine.unread == ()
    end = {"sum": {"bits_per_second": 5e9, "lost_packets": 76350, "lost_percent": 50}}
    start = {"version": "iperf 3.7", "test_start": {"protocol": "UDP", "num_streams": 1}}
    assert rates(read(json.dumps({"start": start, "end": end}))[1].samples) == [pytest.approx(2.5 / 8)]


@pytest.mark.parametrize("udp", [True, False])
def test_a_receiver_without_bytes_leaves_udp_unmeasured_and_tcp_to_its_sender(udp: bool) -> None:
    columns = "Lost/Total Datagrams" if udp else "Retr"
    sent, none = ("  0.000 ms  0/9 (0%)", "  0.000 ms  0/0 (0%)") if udp else ("    0        ", "")
    text = (
        f"[ ID] Interval           Transfer     Bitrate         {columns}\n"
        f"[  5]   0.00-1.00   sec   119 MBytes  1.00 Gbits/sec{sent}  sender\n"
        f"[  5]   0.00-1.04   sec  0.00 Bytes  0.00 bits/sec{none}  receiver\n"
    )
    protocol = "UDP" if udp else "TCP"
    start = {"version": "iperf 3.14", "test_start": {"protocol": protocol, "num_streams": 1}}
    end = {
        "sum_sent": {"bits_per_second": 1e9},
        "sum_received": {"bits_per_second": 0},
        "sum": {"bits_per_second": 1e9, "lost_percent": 100},
    }
    for one in (text, json.dumps({"start": start, "end": end})):
        _, bandwidth = read(one)
        assert rates(bandwidth.samples) == ([] if udp else [0.125])
        words = bandwidth.not_measured[0].reason if udp else bandwidth.notes[0]
        assert "the receiver reports no bytes" in words


@pytest.mark.parametrize(
    "end",
    ["iperf3: interrupt - the client has terminated", "iperf3: the client has terminated"],
)
def test_an_interrupt_is_no_failure_of_the_network(end: str) -> None:
    text, samples = network.iperf3(Random(1), Iperf3())
    machine, bandwidth = read(f"{text}{end}\n")
    assert (rates(bandwidth.samples), bandwidth.complete, bandwidth.failures) == (rates(samples), False, ())
    assert machine.unread == ()
    start = {"version": "iperf 3.9", "connected": []}
    _, bandwidth = read(json.dumps({"start": start, "end": {}, "error": end.removeprefix("iperf3: ")}))
    assert not bandwidth.samples
    assert bandwidth.complete is bool(bandwidth.failures)  # in JSON only the first is an interrupt's


def test_rows_of_iperf_2_are_not_those_of_iperf3() -> None:
    iperf_2 = (
        "Client connecting to 10.0.0.2, TCP port 5001\n"
        "[ ID] Interval       Transfer     Bandwidth\n"
        "[  1] 0.00-10.01 sec  10.9 GBytes  9.38 Gbits/sec\n"
    )
    with pytest.raises(InputError, match="of iperf 2, which gputopo does not read"):
        read(iperf_2)
    text, samples = network.iperf3(Random(1), Iperf3())
    machine, bandwidth = read(iperf_2 + text)
    assert rates(bandwidth.samples) == rates(samples)
    assert bandwidth.not_measured == ()
    assert [one.line for one in machine.unread] == [1, 3]


@pytest.mark.parametrize(
    "mark",
    [
        "", "n1: ", "[1,0]<stdout>:", "0: ", "[n1] ", "[1,0][n1:123]<stdout>: ", "[job-n1-17@1,0]<stdout>: ",
        "[0]<stdout>:", "[default0]:", "bench-abc12 iperf ", "[pod/bench-abc12/iperf] ",
        "(Worker pid=17, ip=10.0.0.1) ",
    ],
)  # fmt: skip
def test_the_mark_of_a_launcher_is_taken_off(mark: str) -> None:
    for text, samples in (
        network.perftest(Random(2), Perftest(), [65536, 1048576]),
        network.iperf3(Random(2), Iperf3(streams=4)),
    ):
        _, bandwidth = read("\n".join(f"{mark}{line}" for line in text.splitlines()))
        assert without_rates(bandwidth.samples) == without_rates(samples)


def test_two_runs_in_one_text_are_kept_apart_by_their_headings() -> None:
    texts = [network.perftest(Random(seed), Perftest(), [65536]) for seed in (1, 2)]
    machine, bandwidth = read("".join(f"== n{at} ==\n{text}" for at, (text, _) in enumerate(texts, 1)))
    assert [(one.run, one.median_gb_per_s) for one in bandwidth.samples] == [
        (f"n{at}", samples[0].median_gb_per_s) for at, (_, samples) in enumerate(texts, 1)
    ]
    assert machine.unread == ()


def test_outputs_of_both_programs_in_one_text_are_all_read() -> None:
    parts = network.perftest(Random(3), Perftest(), [65536]), network.iperf3(Random(3), Iperf3())
    machine, bandwidth = read("\n".join(text for text, _ in parts))
    assert set(without_rates(bandwidth.samples)) == set(without_rates(parts[0][1] + parts[1][1]))
    assert machine.unread == ()


def test_a_table_without_its_title_is_taken_as_one_direction_and_says_so() -> None:
    text, samples = network.perftest(Random(4), Perftest(), [65536])
    _, bandwidth = read("\n".join(text.splitlines()[-4:]))
    assert rates(bandwidth.samples) == rates(samples)
    assert [(one.kind, one.transport) for one in bandwidth.samples] == [("network", None)]
    assert any("nothing names the test" in note for note in bandwidth.notes)


def test_a_command_above_a_table_names_the_test_and_its_direction() -> None:
    text, _ = network.perftest(Random(4), Perftest("RDMA_Read"), [65536])
    _, bandwidth = read("\n".join(["$ ib_read_bw -b -d mlx5_1 10.0.0.2", *text.splitlines()[-4:]]))
    (sample,) = bandwidth.samples
    assert (sample.kind, sample.transport, sample.source) == (
        "network_bidirectional",
        "RDMA read",
        "host:server",
    )


def test_an_output_that_ends_before_its_summary_is_not_complete() -> None:
    text, _ = network.iperf3(Random(5), Iperf3(intervals=3))
    _, bandwidth = read(text[: text.index("- - -")])
    assert not bandwidth.complete
    assert "3 intervals" in bandwidth.not_measured[0].what
    head, _ = network.perftest(Random(5), Perftest(), [])
    with pytest.raises(InputError, match="no result"):
        read(head)


@pytest.mark.parametrize(
    "text",
    [
        "iperf3: error - unable to connect to server: Connection refused",
        json.dumps({"start": {"version": "iperf 3.9"}, "error": "error - unable to connect to server"}),
        f"{'-' * 80}\n RDMA_Write BW Test\n{'-' * 80}\nCouldn't connect to 10.0.0.2:18515\n",
        "Couldn't connect to 10.0.0.2:18515\n",
        " Completion with error at client\n",
        " Port number 1 state is Down\n",
        "Unexpected CM event bl blka 6\n",
    ],
)
def test_a_connection_that_was_refused_is_a_finding(text: str) -> None:
    machine, _ = read(text)
    (finding,) = find_bandwidth(machine)
    assert (finding.id, finding.severity) == ("network.failed", "error")
    assert "client to server: " in finding.says
    assert "10.0.0.2" not in finding.says


@settings(max_examples=40)
@given(seeds)
def test_damage_yields_finite_numbers_or_a_refusal(seed: int) -> None:
    random = Random(seed)
    text, _ = random.choice(
        (
            lambda: network.iperf3(random, network.any_iperf3(random)),
            lambda: network.iperf3_json(random, network.any_iperf3(random)),
            lambda: network.perftest(random, random.choice(list(FORMS.values())), [2, 65536]),
        )
    )()
    letters = list(text)
    for _ in range(random.randint(1, 30)):
        at = random.randrange(len(letters))
        letters[at : at + random.randint(0, 3)] = random.choice(
            ["", "9" * 20, "nan", "-", "\n", "1e999", "["]
        )
        letters = letters or [" "]
    damaged = "".join(letters)[: random.randint(1, len(letters))]
    try:
        machine = reading.read_text(damaged, origin="damaged")
    except InputError:
        return
    for one in machine.bandwidth.samples if machine.bandwidth else ():
        numbers = (one.median_gb_per_s, one.median_us)
        assert all(isfinite(number) and number > 0 for number in numbers if number is not None)
        assert any(number is not None for number in numbers)
