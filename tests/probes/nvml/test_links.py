import ctypes
from dataclasses import replace
from typing import Any

import pynvml
import pytest

from gputopo.values.machine import Fabric, NvLink
from tests.kit.machines import read_double
from tests.kit.nvml import FakeNvml
from tests.kit.nvml_fill import pointed_at
from tests.kit.scenarios import SCENARIOS, NvLinkSpec, changed

TWO = replace(SCENARIOS["four"], gpus=SCENARIOS["four"].gpus[:2])
COUNTER = "nvmlDeviceGetNvLinkErrorCounter"
NEW_COUNTS = {206: 1, 207: 2, 208: 3, 209: 4, 210: 5, 211: 6, 212: 7, 214: 8, 219: 9}


def nvlink(spec: NvLinkSpec, *refused: str) -> tuple[NvLink, dict[str, str]]:
    """Return the first link of a GPU with such links, and the reasons of what it did not report."""
    fake = FakeNvml(changed(TWO, gpus={0: {"nvlinks": (spec, spec)}}))
    for call in refused:
        fake.refuse(call, gpu=0)
    machine = read_double(fake)
    links = machine.gpus[0].nvlinks
    assert links is not None
    prefix = "gpus[0].nvlinks[0]."
    return links[0], {
        path.removeprefix(prefix): reason
        for path, reason in machine.missing.items()
        if path.startswith(prefix)
    }


@pytest.mark.parametrize(("version", "speed"), [(1, 19_375), (7, 50_000)])
def test_the_speed_of_a_link_is_reported_by_the_field_of_its_time(version: int, speed: int) -> None:
    link, missing = nvlink(NvLinkSpec(1, version, mb_per_s=speed))
    assert link.gb_per_s == speed / 1000
    assert "gb_per_s" not in missing


def test_each_of_twelve_links_has_a_field_of_its_speed() -> None:
    ports = tuple(NvLinkSpec(1, 1, mb_per_s=1000 * (1 + link)) for link in range(14))
    links = read_double(changed(TWO, gpus={0: {"nvlinks": ports}})).gpus[0].nvlinks or ()
    assert [link.gb_per_s for link in links] == [float(1 + link) for link in range(12)] + [None, None]


def test_a_speed_that_is_refused_or_zero_is_missing() -> None:
    link, missing = nvlink(NvLinkSpec(1, 6), "nvmlDeviceGetFieldValues[164,0]")
    assert (link.gb_per_s, missing["gb_per_s"]) == (None, "NOT_SUPPORTED")
    link, missing = nvlink(NvLinkSpec(1, 6, mb_per_s=0))
    assert (link.gb_per_s, missing["gb_per_s"]) == (None, "UNKNOWN")


def test_where_the_old_counters_are_refused_field_values_stand_in() -> None:
    link, missing = nvlink(NvLinkSpec(1, 6, {}, {161: 1, 162: 2, 163: 7}), COUNTER)
    assert link.errors == {"replay": 1, "recovery": 2, "crc": 7}
    assert missing == {}


def test_the_newest_links_show_other_counters() -> None:
    link, missing = nvlink(NvLinkSpec(1, 7, {}, NEW_COUNTS), COUNTER)
    assert len(link.errors) == 9
    assert (link.errors["malformed_packets"], link.errors["effective_errors"]) == (1, 9)
    assert missing == {}


VERSION_MISMATCH = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
JOINED = {"state": 3, "status": 0, "healthMask": 0b10, "healthSummary": 1}


def box(fabric: dict[str, int]) -> FakeNvml:
    return FakeNvml(changed(TWO, gpus={0: {"fabric": fabric}}))


def read_fabrics(*fabrics: dict[str, int]) -> list[Fabric]:
    """Return what is read of GPUs, one with each of these."""
    card = replace(TWO.gpus[0], nvlinks=())
    cards = tuple(replace(card, fabric={**JOINED, **fabric}) for fabric in fabrics)
    return [gpu.fabric for gpu in read_double(replace(TWO, gpus=cards)).gpus]


# The condition of a fabric that each constant of pynvml (NVML_GPU_FABRIC_HEALTH_MASK_...) is about.
CONDITIONS = {
    "DEGRADED_BW": ("bandwidth", {"FALSE": "full", "TRUE": "degraded"}),
    "ROUTE_RECOVERY": ("route_recovery_in_progress", {}),
    "ROUTE_UNHEALTHY": ("route_unhealthy", {}),
    "ACCESS_TIMEOUT_RECOVERY": ("access_timeout_recovery", {}),
    "INCORRECT_CONFIGURATION": ("incorrect_configuration", {}),
    "PARTITION_ASSIGNED": ("partition_assigned", {}),
}
MASK = "NVML_GPU_FABRIC_HEALTH_MASK_"


def codes_by_word(prefix: str) -> dict[str, int]:
    """Return pynvml's constants with a prefix, by the rest of their names, without NOT_SUPPORTED."""
    codes = {
        name.removeprefix(prefix): code for name, code in vars(pynvml).items() if name.startswith(prefix)
    }
    codes.pop("NOT_SUPPORTED")
    assert codes
    return codes


def test_the_words_of_a_fabrics_health_are_those_of_pynvmls_constants() -> None:
    masks, health = [], []
    for condition, (name, words) in CONDITIONS.items():
        shift = getattr(pynvml, f"{MASK}SHIFT_{condition}")
        for state, code in codes_by_word(f"{MASK}{condition}_").items():
            masks.append({"healthMask": code << shift, "healthSummary": 0})
            health.append({name: words.get(state, state.lower().replace("_", " "))})
    assert [fabric.health for fabric in read_fabrics(*masks)] == health


def test_the_words_of_a_fabrics_state_are_those_of_pynvmls_constants() -> None:
    states, summaries = (codes_by_word(f"NVML_GPU_FABRIC_{name}_") for name in ("STATE", "HEALTH_SUMMARY"))
    shown = [fabric.state for fabric in read_fabrics(*({"state": code} for code in states.values()))]
    assert shown == [word.lower().replace("_", " ") for word in states]
    fabrics = read_fabrics(*({"healthSummary": code} for code in summaries.values()))
    shown = [(fabric.health or {})["summary"] for fabric in fabrics]
    assert shown == [word.lower().replace("_", " ") for word in summaries]


def test_a_gpu_that_has_joined_reports_it_and_how_it_is() -> None:
    fabric = read_double(box(JOINED)).gpus[0].fabric
    assert (fabric.state, fabric.status) == ("completed", "success")
    assert fabric.health == {"summary": "healthy", "bandwidth": "full"}


def test_a_driver_before_550_has_a_struct_of_28_bytes() -> None:
    fake, sizes = box(JOINED), []
    fake.without("nvmlDeviceGetGpuFabricInfoV")
    reported = fake.nvmlDeviceGetGpuFabricInfo

    def measured(handle: Any, info: Any) -> int:
        sizes.append(ctypes.sizeof(pointed_at(info)))
        return reported(handle, info)

    fake.replace("nvmlDeviceGetGpuFabricInfo", measured)
    fabric = read_double(fake).gpus[0].fabric
    assert (fabric.state, fabric.status, fabric.clique_id, set(sizes)) == ("completed", "success", 0, {28})


def test_a_gpu_that_has_not_joined_has_no_status_yet() -> None:
    machine = read_double(box({"state": 2}))
    fabric = machine.gpus[0].fabric
    assert (fabric.state, fabric.status, fabric.health) == ("in progress", None, None)
    assert machine.missing["gpus[0].fabric.status"] == "NOT_COMPLETED"


def test_a_gpu_without_nvswitches_has_the_reason() -> None:
    machine = read_double(box({"state": 0}))
    assert machine.gpus[0].fabric.state is None
    for name in ("state", "status", "health"):
        assert machine.missing[f"gpus[0].fabric.{name}"] == "NOT_SUPPORTED"


def test_a_state_and_a_condition_to_come_are_reported_by_number() -> None:
    machine = read_double(box({"state": 9, "healthMask": 0xF00}))
    assert machine.missing["gpus[0].fabric.state"] == "UNKNOWN_9"
    assert machine.gpus[0].fabric.health == {"incorrect_configuration": "code 15"}


def test_an_older_driver_is_asked_for_the_struct_that_it_has() -> None:
    fake = box(JOINED)
    fake.refuse("nvmlDeviceGetGpuFabricInfoV[3]", VERSION_MISMATCH)
    assert read_double(fake).gpus[0].fabric.health == {"bandwidth": "full"}
    oldest = box(JOINED)
    oldest.without("nvmlDeviceGetGpuFabricInfoV")
    fabric = read_double(oldest).gpus[0].fabric
    assert (fabric.state, fabric.status, fabric.health) == ("completed", "success", None)
