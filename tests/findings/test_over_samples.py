"""Findings of a machine with several samples: a fault in one is a fault, in whatever order they come."""

import itertools

import msgspec
import pytest
from msgspec.structs import replace

from gputopo.captures import merge
from gputopo.findings import find_read
from gputopo.values.history import GpuHistory
from gputopo.values.machine import Machine, Sample
from tests.findings import faults
from tests.findings.boxes import TIMES, Change, every_gpu, find, gpu, sound

# Faults of what a sample has.
SICK = ("ECC", "persistence", "thermal slowdown of the driver")


@pytest.mark.parametrize("name", [*SICK, "lost GPU"])
def test_a_fault_is_found_beside_a_healthy_capture_in_both_orders(name: str) -> None:
    change, _ = faults.FAULTS[name]
    captures = [sound(), change(sound())]
    found = [find(merge(order)) for order in itertools.permutations(captures)]
    assert found[0] == found[1]
    if name in SICK:
        shown = {(one.id, one.subject, one.severity) for one in find(captures[1])}
        assert shown <= {(one.id, one.subject, one.severity) for one in found[0]}


def merged(*changes: Change) -> Machine:
    return merge([change(sound()) for change in changes])


IDLE = every_gpu(**faults.IDLE)
HOT = gpu(1, throttle={"mask": 0x40, "reasons": ("hw_thermal_slowdown",)})
CAPPED = gpu(1, throttle={"mask": 0x4, "reasons": ("sw_power_cap",)}, power_w={"draw": 299.0})


def test_a_gpu_that_is_gone_from_one_sample_on_and_by_the_log_is_lost_once() -> None:
    seen = ({"index": 2}, {"index": 2, "lost": True})
    samples = tuple(
        Sample(source="x", time=time, gpus=(one,)) for time, one in zip(TIMES, seen, strict=False)
    )
    gone = replace(gpu(2, lost=True)(sound()), samples=samples)
    found = find(faults.logged(2, "xid", code=79)(gone))
    lost = [one for one in found if one.id in ("gpu.lost", "driver.xid")]
    assert [(one.id, one.subject.text) for one in lost] == [("gpu.lost", "gpu:2")]
    assert "Xid 79 in the kernel log" in lost[0].says


def test_the_load_of_a_log_has_its_share_of_the_time_and_its_maximum() -> None:
    series = (GpuHistory(gpu=1, samples=10, loaded=8, peak_percent=99),)
    (found,) = find_read(replace(sound(2), series=series))[1:]
    assert (found.id, found.severity, found.subject.text) == ("gpu.busy", "info", "gpu:1")
    assert "under load in 80% of 10 samples, 99% at most" in found.says
    with_program = gpu(1, processes=faults.process())(replace(sound(2), series=series))
    assert any("by another program: python" in one.says for one in find_read(with_program))


def test_the_number_of_samples_that_show_a_fault_is_reported() -> None:
    (found,) = find(merged(HOT, IDLE, CAPPED))[:1]
    assert (found.id, found.severity) == ("throttle.hw_thermal_slowdown", "error")
    assert found.says.endswith(", in 1 of 3 samples")
    assert (found.evidence["samples"], found.evidence["of_samples"]) == (1, 3)


def test_counters_count_by_their_maximum() -> None:
    found = find(merged(*(gpu(1, ecc={"uncorrected_volatile": count}) for count in (2, 7, 0))))
    assert [one.id for one in found] == ["ecc.uncorrected"]
    assert "7 uncorrected" in found[0].says
    assert "samples" not in found[0].says


def test_a_busy_and_an_idle_sample_are_not_one_gpu() -> None:
    """The load of one and the clocks of the other would be a throttled GPU."""
    assert find(merged(IDLE, lambda machine: machine)) == ()


def test_a_gpu_that_is_lost_in_one_sample_is_lost() -> None:
    lost = find(msgspec.structs.replace(merged(gpu(1, lost=True), IDLE)))
    assert "gpu.lost" in [one.id for one in lost]
