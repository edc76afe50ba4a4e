import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.summary import Summary
from gputopo.runs.verdict.hosts import named_by_host, whole_hosts
from gputopo.runs.verdict.judge import Judgement
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import SLOW, Verdict
from tests.invented_runs import gpu_devices, on_hosts
from tests.runs.verdict.drills import Trainer, always

DEVICES = on_hosts(gpu_devices(2), gpu_devices(2), gpu_devices(1))


def slow(device: Device, percent: float, **fields: object) -> Verdict:
    return Verdict(
        word=SLOW,
        says=f"tower {device.tower}",
        tower=device.tower,
        part="compute",
        percent_under=percent,
        percent_under_low=percent - 1,
        percent_under_high=percent + 1,
        **fields,  # type: ignore[arg-type]
    )


def said(*percents: float, **fields: object) -> list[str]:
    """The sentences on the devices of n2, slower by so many percent; those of n1 and n3 are even."""
    even = Verdict(word="even", says="even")
    verdicts = {device.tower: even for device in DEVICES}
    own = [device for device in DEVICES if device.host == "n2"]
    verdicts |= {one.tower: slow(one, by, **fields) for one, by in zip(own, percents, strict=False)}
    return [verdicts_of.says for verdicts_of in list(named_by_host(DEVICES, verdicts).values())[2:4]]


def test_a_host_all_of_whose_devices_are_slow_is_named_once_with_the_middle_of_them() -> None:
    sentence = (
        "host n2: all 2 GPUs compute 11 % slower than those of other hosts "
        "(at least 9.0 %, 99.9 % confidence)"
    )
    assert said(10, 12) == [sentence] * 2


def test_a_device_that_is_slower_still_than_its_host_keeps_its_own_sentence() -> None:
    first, second = said(10, 30)
    assert first.startswith("host n2: all 2 GPUs")
    assert second == "tower 3"


def judgement(trainer: Trainer) -> Judgement:
    summary = Summary()
    for event in trainer.events(150):
        summary.add(event)
    return summary.check().judgement


def test_a_slow_host_costs_what_all_its_devices_cost_together() -> None:
    devices = on_hosts(gpu_devices(2), gpu_devices(2))
    found = judgement(Trainer(devices=devices, common=0.0, slow={2: always(20), 3: always(20)}))
    costs = [verdict.cost.percent for verdict in found.devices if verdict.cost is not None]
    # A step takes 10 ms of weights, 100 / 0.8 ms of computing and 10 ms of rest, of which 25 ms are lost.
    assert costs == [pytest.approx(100 * 25 / 145, abs=1.5)] * 2
    assert {verdict.says.split(" compute")[0] for verdict in found.slow} == {"host n2: all 2 GPUs"}


def test_two_slow_hosts_of_three_are_both_named() -> None:
    devices = on_hosts(*[gpu_devices(4)] * 3)
    found = judgement(Trainer(devices=devices, slow={tower: always(12) for tower in range(4, 12)}))
    names = {verdict.says.split(" compute")[0] for verdict in found.slow}
    assert names == {"host n2: all 4 GPUs", "host n3: all 4 GPUs"}


def test_devices_that_were_slow_one_after_another_are_no_slow_host() -> None:
    verdicts = {0: slow(DEVICES[0], 9), 1: slow(DEVICES[1], 9, from_step=300)}
    verdicts[0] = msgspec.structs.replace(verdicts[0], to_step=200)
    assert named_by_host(DEVICES, verdicts) == verdicts


def test_on_a_single_host_no_host_is_named() -> None:
    devices = gpu_devices(3)
    assert whole_hosts(devices, {0: "compute", 1: "compute"}) == {}


@given(st.dictionaries(st.integers(0, 4), st.sampled_from(["compute", "weights"])))
def test_a_host_is_slow_exactly_if_it_has_two_devices_and_all_are_slow_in_one_part(
    parts: dict[int, str],
) -> None:
    of_hosts = {0: [0, 1], 1: [2, 3], 2: [4]}
    expected = {
        rank
        for rank, towers in of_hosts.items()
        if len(towers) > 1 and parts.get(towers[0]) is not None and len({parts.get(t) for t in towers}) == 1
    }
    assert whole_hosts(DEVICES, parts).keys() == expected
