"""Whose network is slow, by what each host sends and receives in every step."""

import random
from collections.abc import Mapping

import msgspec
import pytest

from gputopo.report import document_lines, run_document
from gputopo.runs import summarise
from gputopo.values.run.events import Device, HostExchange, HostLoad, RunStarted, Sample, Step
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import EVEN, SLOW, Known
from tests import there
from tests.invented_runs import (
    BEGAN_S,
    InventedRun,
    Noise,
    gpu_devices,
    judged_events,
    on_hosts,
    stream,
)
from tests.kit.drills.box import Factor, Trainer, levels, slower

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
    assert "check its network card" in says
    assert ("its gradients arrive" in says) == (way == "sends")
    first = there(verdicts[0])
    assert first.percent_under == pytest.approx(100 * 15 / 130, rel=0.1), "of a step of about 130 ms"
    assert first.cost is not None
    assert first.cost.without > first.cost.images_per_sec
    text = report(result)
    assert text.count("check its network card") == 1, "once for both GPUs of the host"
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


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_that_exchange_alike_are_not_named(hosts: int) -> None:
    result = run(hosts)
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
    assert there(result.exchange).hosts[1].sends_ms == pytest.approx(35, rel=0.2)


def test_a_gpu_that_computes_slowly_keeps_its_own_verdict() -> None:
    result = run(4, sends={2: 15.0}, slow={4: 0.2})
    by_tower = {row.device.tower: row.verdict for row in result.devices}
    slow = {tower: one.part for tower, one in by_tower.items() if one is not None and one.word == SLOW}
    assert slow == {4: "compute", 5: "network"}


def test_a_difference_that_clocks_of_hosts_may_have_names_nobody() -> None:
    # 3.7% of a step of 130 ms, of which 1 ms may be between the clocks of two hosts.
    assert slow_of(run(4, sends={2: 4.8})) == {}


def test_the_slow_network_of_a_busy_host_is_named_with_its_load() -> None:
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
    result = summarise(merged)
    assert slow_of(result) == {2: "network"}
    says = " ".join(row.verdict.says for row in result.devices if row.verdict is not None)
    assert "check its network card, link and switch port; or its load: on " in says
    assert "95% of the CPU" in says


DEVICES = on_hosts(gpu_devices(2), gpu_devices(2), gpu_devices(1))


def begins(slow: dict[int, Factor]) -> list[str]:
    """How the sentences on the slow devices begin; n2 has the towers 2 and 3."""
    trainer = Trainer(devices=DEVICES, common=0.0, slow=slow)
    slow_ones = judged_events(DEVICES, trainer.events(150)).slow
    return [verdict.says.partition(" compute")[0] for verdict in slow_ones]


def test_a_host_all_of_whose_devices_are_slow_is_named_once_with_the_middle_of_them() -> None:
    trainer = Trainer(devices=DEVICES, common=0.0, slow={2: slower(18), 3: slower(20)})
    first, second = judged_events(DEVICES, trainer.events(150)).slow
    assert first.says == second.says
    assert first.says.startswith("host n2: all 2 GPUs compute 19% slower than on other hosts (at least 1")
    # A step takes 10 ms of weights, 100 / 0.8 ms of computing and 10 ms of rest, of which 25 ms are lost.
    assert there(first.cost).percent == pytest.approx(100 * 25 / 145, abs=1.5)


def test_a_device_that_is_slower_still_than_its_host_keeps_its_own_sentence() -> None:
    assert begins({2: slower(10), 3: slower(30)}) == [
        "host n2: all 2 GPUs",
        "n2 GPU 1 (NVIDIA GeForce GTX 1070)",
    ]


def test_two_slow_hosts_of_three_are_both_named() -> None:
    devices = on_hosts(*[gpu_devices(4)] * 3)
    trainer = Trainer(devices=devices, slow={tower: slower(12) for tower in range(4, 12)})
    found = judged_events(devices, trainer.events(100)).slow
    assert {verdict.says.partition(" compute")[0] for verdict in found} == {
        "host n2: all 4 GPUs",
        "host n3: all 4 GPUs",
    }


def test_devices_that_were_slow_one_after_another_are_no_slow_host() -> None:
    later = begins({2: levels((1, 20), (70, 0)), 3: levels((80, 20))})
    assert later == ["n2 GPU 0 (NVIDIA GeForce GTX 1070)", "n2 GPU 1 (NVIDIA GeForce GTX 1070)"]
