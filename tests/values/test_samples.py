from typing import Any

import msgspec

from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Ecc,
    Gpu,
    GpuProcess,
    Machine,
    NvLink,
    Pcie,
    PowerW,
    Sample,
    Throttle,
)
from gputopo.values.samples import at_samples, facts_of, gpu_with, same

GPU = Gpu(
    index=3,
    name="A100",
    clocks_mhz=ClocksMhz(sm=ClockMhz(now=1410, max=1410)),
    throttle=Throttle(mask=4, reasons=("sw_power_cap",)),
    power_w=PowerW(draw=27.5, limit=400.0),
    pcie=Pcie(aer={"fatal": 1}),
    processes=(GpuProcess(pid=7, name="python"),),
    nvlinks=(NvLink(link=0, active=True, errors={"crc": 3}),),
)


def test_a_gpu_is_its_facts() -> None:
    facts = facts_of(GPU)
    assert facts["clocks_mhz.sm.max"] == 1410
    assert facts["throttle.reasons"] == ["sw_power_cap"]
    assert "numa_node" not in facts
    assert gpu_with(3, facts) == GPU
    assert msgspec.json.decode(msgspec.json.encode(facts)) == facts


def machine(*gpus: dict[str, Any], **facts: Any) -> Machine:
    samples = tuple(Sample(source=f"{n}", gpus=({"index": 3, **one},)) for n, one in enumerate(gpus))
    return Machine(source="a test", gpus=(msgspec.structs.replace(GPU, **facts),), samples=samples)


def test_a_machine_without_samples_or_with_one_is_a_sample_by_itself() -> None:
    for one in (machine(), machine({"power_w.draw": 5.0})):
        assert at_samples(one) == (one,)


def test_at_a_sample_nothing_is_of_another_one() -> None:
    first, second = at_samples(machine({"power_w.draw": 30.0}, {"pstate": "P8", "persistence_mode": False}))
    assert first.gpus == (
        Gpu(
            index=3,
            name="A100",
            clocks_mhz=ClocksMhz(sm=ClockMhz(max=1410)),
            power_w=PowerW(draw=30.0, limit=400.0),
        ),
    )
    assert (second.gpus[0].power_w.draw, second.gpus[0].pstate) == (None, "P8")
    assert (first.gpus[0].persistence_mode, second.gpus[0].persistence_mode) == (None, False)
    assert [one.samples[0].source for one in (first, second)] == ["0", "1"]


def test_counters_have_a_maximum() -> None:
    counted: list[dict[str, Any]] = [
        {"ecc.corrected_volatile": 3, "pcie.aer": {"fatal": 1}},
        {"pcie.aer": {"fatal": 0, "nonfatal": 2}},
        {"ecc.corrected_volatile": 1},
    ]
    maxima = {3: {"ecc.corrected_volatile": 3, "pcie.aer": {"fatal": 1, "nonfatal": 2}}}
    for one in at_samples(machine(*counted), maxima):
        assert one.gpus[0].ecc == Ecc(corrected_volatile=3)


def test_nvlinks_are_the_same_where_what_both_report_is() -> None:
    cases: list[tuple[Any, Any, bool]] = [
        ([{"link": 0, "active": True}], [{"link": 0, "active": None, "errors": {"crc": 1}}], True),
        ([{"link": 0, "active": True}], [{"link": 1, "active": False}], True),
        ([{"link": 0, "active": True}], [{"link": 0, "active": False}], False),
    ]
    for a, b, expected in cases:
        assert same("nvlinks", a, b) is expected
        assert same("nvlinks", b, a) is expected
