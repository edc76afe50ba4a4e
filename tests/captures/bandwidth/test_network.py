"""perftest and iperf3: each form is read back; several runs; errors; damage."""

import json
from collections.abc import Iterable
from math import isfinite
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.captures import read_text
from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, Sample, TransferRate
from gputopo.values.errors import InputError
from tests.captures.samples import measured_of as read
from tests.kit.dialects import network
from tests.kit.dialects.network import Perftest

seeds = st.integers(0, 2**32)
FORMS = {
    "MiB/s, atomic": Perftest("Atomic", unit="MiB"),
    "old MB/s, send": Perftest("Send", unit="MB"),
    "both directions, read": Perftest("RDMA_Read", bidirectional=True, streams=4),
    "by duration": Perftest(duration=True),
    "latency": Perftest("Send", unit=None),
    "latency by duration": Perftest(unit=None, duration=True),
}


def check(text: str, expected: Iterable[Sample], source: str) -> Bandwidth:
    machine, bandwidth = read(text)
    assert machine.source == source
    assert machine.gpus == ()
    assert machine.unread == ()
    assert bandwidth.complete
    assert without_rates(bandwidth.samples) == without_rates(expected)
    assert rates(bandwidth.samples) == pytest.approx(rates(expected), rel=1e-9)
    return bandwidth


def without_rates(samples: Iterable[Sample]) -> list[Sample]:
    return [
        replace(one, median_gb_per_s=None, repeats_gb_per_s=(), spread_percent=None)
        if isinstance(one, TransferRate)
        else one
        for one in samples
    ]


def rates(samples: Iterable[Sample]) -> list[float]:
    return [one.rate for one in samples if isinstance(one, TransferRate)]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_perftest_is_read_back(form: str) -> None:
    @settings(max_examples=1)
    @given(seeds)
    def run(seed: int) -> None:
        random = Random(seed)
        sizes = [2**power for power in range(1, 24)] if random.random() < 0.5 else [65536]
        check(*network.perftest(random, FORMS[form], sizes), "perftest")

    run()


@given(seeds)
def test_the_json_of_iperf3_is_read_back(seed: int) -> None:
    random = Random(seed)
    bandwidth = check(*network.iperf3_json(random, network.any_iperf3(random)), "iperf3")
    assert any("7 segments were sent again" in note for note in bandwidth.notes)
    assert "10.1.0" not in repr(bandwidth)


def test_a_table_without_its_title_is_refused() -> None:
    text, _ = network.perftest(Random(4), Perftest(), [65536])
    with pytest.raises(InputError, match="no result") as error:
        read("\n".join(text.splitlines()[-4:]))
    assert "copy the whole output" in error.value.hint


def iperf3(end: dict[str, object], **more: object) -> str:
    start = {"version": "iperf 3.7", "test_start": {"protocol": "UDP", "num_streams": 1} | more}
    return json.dumps({"start": start, "end": end})


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_a_receiver_without_bytes_leaves_udp_unmeasured_and_tcp_to_its_sender(protocol: str) -> None:
    end: dict[str, object] = {
        "sum_sent": {"bits_per_second": 1e9},
        "sum_received": {"bits_per_second": 0},
        "sum": {"bits_per_second": 1e9, "lost_percent": 100},
    }
    _, bandwidth = read(iperf3(end, protocol=protocol))
    assert rates(bandwidth.samples) == ([] if protocol == "UDP" else [0.125])
    words = bandwidth.not_measured[0].reason if protocol == "UDP" else bandwidth.notes[0]
    assert "the receiver reports no bytes" in words


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"start": {"version": "iperf 3.9"}, "error": "error - unable to connect to server"}),
        f"{'-' * 80}\n RDMA_Write BW Test\n{'-' * 80}\nCouldn't connect to 10.0.0.2:18515\n",
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


@settings(max_examples=12)
@given(seeds)
def test_damage_yields_finite_numbers_or_a_refusal(seed: int) -> None:
    random = Random(seed)
    text, _ = random.choice(
        (
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
        machine = read_text(damaged, origin="damaged")
    except InputError:
        return
    for one in machine.bandwidth.samples if machine.bandwidth else ():
        assert one.value is not None
        assert isfinite(one.value)
        assert one.value > 0


def test_a_negative_average_of_perftest_is_named_and_no_rate() -> None:
    text, (sample,) = network.perftest(Random(1), Perftest(), [65536])
    (average,) = [line.split()[3] for line in text.splitlines() if line.startswith(" 65536")]
    _, bandwidth = read(text.replace(average, f"-{average}"))
    assert not bandwidth.samples
    (why,) = bandwidth.not_measured
    assert why.reason == f"the average that it prints is negative: -{average}"
    assert sample.value
