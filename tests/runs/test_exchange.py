"""Whose network is slow, by what each host sends and receives in every step."""

import random
from collections.abc import Mapping

import msgspec
import pytest

from gputopo.report.document import document_lines
from gputopo.report.runs.report import run_document
from gputopo.runs.summary import summarise
from gputopo.values.run.events import Device, HostExchange, HostLoad, RunStarted, Sample, Step
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import EVEN, SLOW, Known
from tests.invented_runs import BEGAN_S, InventedRun, Noise, gpu_devices, on_hosts, stream

QUIET = Noise(common=0.02, own=0.005, stalls=0.0)


def exchanged(
    step: Step, hosts: int, rng: random.Random, sends: Mapping[int, float], receives: Mapping[int, float]
) -> Step:
    """A step in which every host takes about 5 ms each way, and some so many milliseconds more."""

    def took_s(rank: int, more: Mapping[int, float]) -> float:
        return (5 * rng.lognormvariate(0, 0.3) + more.get(rank, 0.0)) / 1000

    of_hosts = tuple(
        HostExchange(rank=rank, sends_s=took_s(rank, sends), receives_s=took_s(rank, receives), sums_s=0.02)
        for rank in range(hosts)
    )
    return msgspec.structs.replace(step, exchange=of_hosts, seconds=step.seconds + 0.02)


def run(
    hosts: int,
    *,
    each: int = 2,
    steps: int = 120,
    seed: int = 0,
    sends: Mapping[int, float] = {},
    receives: Mapping[int, float] = {},
    slow: Mapping[int, float] = {},
) -> Result:
    rng = random.Random(seed)
    devices = on_hosts(*[gpu_devices(each)] * hosts)
    made = InventedRun(hosts * each, noise=QUIET, seed=seed, slow=slow).steps(steps)
    return summarise(stream(devices, [exchanged(one, hosts, rng, sends, receives) for one in made]))


def report(result: Result) -> str:
    return "\n".join("".join(text for text, _ in line) for line in document_lines(run_document(result), 200))


def slow_of(result: Result) -> dict[int, str | None]:
    return {
        row.device.rank: row.verdict.part
        for row in result.devices
        if row.verdict is not None and row.verdict.word == SLOW
    }


@pytest.mark.parametrize("way", ["sends", "receives"])
def test_a_host_whose_network_is_slow_is_named_and_none_else(way: str) -> None:
    late = {2: 15.0}
    result = run(4, sends=late if way == "sends" else {}, receives=late if way == "receives" else {})
    assert slow_of(result) == {2: "network"}
    verdicts = [row.verdict for row in result.devices if row.device.rank == 2]
    (says,) = {one.says for one in verdicts if one is not None}
    assert says.startswith("host n3: ")
    assert "ms later" in says
    assert "look at its network card" in says
    assert ("its gradients arrive at the other hosts" in says) == (way == "sends")
    first = verdicts[0]
    assert first is not None
    assert first.percent_under == pytest.approx(100 * 15 / 130, rel=0.1), "of a step of about 130 ms"
    assert first.cost is not None
    assert first.cost.without > first.cost.images_per_sec
    text = report(result)
    assert text.count("look at its network card") == 1, "once for both GPUs of the host"
    assert "host n3 costs" in text


def test_the_report_has_what_the_exchange_takes() -> None:
    result = run(3)
    assert result.exchange is not None
    assert result.exchange.ms == pytest.approx(20.0)
    assert result.exchange.percent == pytest.approx(100 * 20 / 130, rel=0.1)
    assert [one.host for one in result.exchange.hosts] == ["n1", "n2", "n3"]
    text = report(result)
    assert "exchange" in text
    assert "20.0 ms (15" in text


@pytest.mark.parametrize("seed", range(6))
def test_hosts_that_exchange_alike_are_not_named(seed: int) -> None:
    result = run(2 + seed % 4, seed=seed)
    assert slow_of(result) == {}
    assert {row.verdict.word for row in result.devices if row.verdict is not None} == {EVEN}


def test_what_is_known_of_the_ports_of_a_slow_host_is_its_cause() -> None:
    devices = on_hosts(*[gpu_devices(1)] * 3)
    rng = random.Random(0)
    made = [exchanged(one, 3, rng, {2: 15.0}, {}) for one in InventedRun(3, noise=QUIET, seed=1).steps(120)]
    first, *rest = stream(devices, made)
    assert isinstance(first, RunStarted)
    known = Known(networks={1: "mlx5_0 is down", 2: "mlx5_0: 25 of 100 Gbit/s"})
    result = summarise([msgspec.structs.replace(first, known=known), *rest])
    assert [one.says.endswith("confidence): mlx5_0: 25 of 100 Gbit/s") for one in result.anomalies] == [True]


def test_of_two_hosts_none_is_named_as_there_is_one_path() -> None:
    result = run(2, sends={1: 30.0}, receives={0: 30.0})
    assert slow_of(result) == {}
    assert result.exchange is not None
    assert result.exchange.hosts[1].sends_ms == pytest.approx(35, rel=0.2)


def test_a_gpu_that_computes_slowly_keeps_its_own_verdict() -> None:
    result = run(4, sends={2: 15.0}, slow={4: 0.2})
    by_tower = {row.device.tower: row.verdict for row in result.devices}
    slow = {tower: one.part for tower, one in by_tower.items() if one is not None and one.word == SLOW}
    assert slow == {4: "compute", 5: "network"}


def test_a_difference_that_clocks_of_hosts_may_have_names_nobody() -> None:
    assert slow_of(run(4, sends={2: 0.5})) == {}


def test_beside_a_busy_host_its_network_is_not_judged() -> None:
    devices: tuple[Device, ...] = on_hosts(*[gpu_devices(2)] * 4)
    rng = random.Random(1)
    made = [exchanged(one, 4, rng, {2: 15.0}, {}) for one in InventedRun(8, noise=QUIET, seed=1).steps(120)]
    events = list(stream(devices, made))
    busy = [
        Sample(
            time_s=BEGAN_S + number,
            rank=2,
            gpus=(),
            host=HostLoad(time_s=BEGAN_S + number, seconds=5.0, other_cpu_share=0.95, cores=8),
        )
        for number in range(10, 120, 5)
    ]
    merged = sorted([*events, *busy], key=lambda event: event.time_s)
    assert slow_of(summarise(merged)) == {}
