import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gputopo.probes import NotReadError
from gputopo.probes.nvml.door import Handle, Nvml, signed
from gputopo.probes.nvml.questions import nvlink_fields, pcie_bytes
from gputopo.probes.nvml.words import FABRIC_HEALTH, FABRIC_STATES, FABRIC_SUMMARIES
from gputopo.values.machine import NvLink
from tests.kit.nvml import FakeNvml
from tests.kit.scenarios import SCENARIOS, NvLinkSpec, changed
from tests.probes.nvml.test_gpu import read

COUNTER = "nvmlDeviceGetNvLinkErrorCounter"
NEW_COUNTS = {206: 1, 207: 2, 208: 3, 209: 4, 210: 5, 211: 6, 212: 7, 214: 8, 219: 9}


GPU = Handle(0)


class Fields(Nvml):
    """NVML of which only field values are asked: these, and `wanted` has what was."""

    def __init__(self, *answers: int) -> None:
        self._answers = answers

    def fields(self, gpu: Handle, wanted: Sequence[tuple[int, int]]) -> list[int | NotReadError]:
        self.wanted = tuple(wanted)
        return list(self._answers) or [0] * len(wanted)


def test_bytes_over_pcie_are_known_once_either_count_is_past_32_bits() -> None:
    assert pcie_bytes(Fields(1 << 32, 7), GPU) == (1 << 32, 7)
    with pytest.raises(NotReadError):
        pcie_bytes(Fields((1 << 32) - 1, 7), GPU)


class Events(Nvml):
    """NVML whose answers, or failures, are these."""

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def ask(self, function: str, *arguments: Any) -> Any:
        answer = next(self._answers)
        if isinstance(answer, NotReadError):
            raise answer
        return answer


@pytest.mark.parametrize("reason", ["TIMEOUT", "GPU_IS_LOST"])
def test_errors_before_a_gpu_is_lost_are_returned_first(reason: str) -> None:
    event = SimpleNamespace(eventType=8, device=5, eventData=79)
    assert Events(event, NotReadError(reason)).xids(None) == ((5, 79),)
    with pytest.raises(NotReadError, match="LOST"):
        Events(NotReadError("GPU_IS_LOST")).xids(None)


def test_margins_of_32_bits_have_a_sign() -> None:
    numbers = (5, (1 << 31) - 1, 1 << 31, (1 << 32) - 5, 1 << 32)
    assert [signed(number) for number in numbers] == [5, (1 << 31) - 1, -(1 << 31), -5, 1 << 32]


def test_each_of_twelve_links_has_a_field_of_its_speed() -> None:
    asked = set()
    for link in range(14):
        nvlink_fields(nvml := Fields(), GPU, link, 1)
        asked |= {field for field, _ in nvml.wanted}
    assert asked == {164, 90, *range(84, 90), *range(132, 138)}


def nvlink(spec: NvLinkSpec, *refused: str) -> tuple[NvLink, dict[str, str]]:
    """Return the first link of a GPU with such links, and the reasons of what it did not report."""
    fake = FakeNvml(changed(SCENARIOS["four"], gpus={0: {"nvlinks": (spec, spec)}}))
    for call in refused:
        fake.refuse(call, gpu=0)
    machine = read(fake)
    links = machine.gpus[0].nvlinks
    assert links is not None
    prefix = "gpus[0].nvlinks[0]."
    return links[0], {
        path.removeprefix(prefix): reason
        for path, reason in machine.missing.items()
        if path.startswith(prefix)
    }


@pytest.mark.parametrize(("version", "speed"), [(1, 19_375), (2, 25_781), (5, 25_781), (7, 50_000)])
def test_the_speed_of_a_link_is_reported_by_the_field_of_its_time(version: int, speed: int) -> None:
    link, missing = nvlink(NvLinkSpec(1, version, mb_per_s=speed))
    assert link.gb_per_s == speed / 1000
    assert "gb_per_s" not in missing


def test_a_speed_that_is_refused_or_zero_is_missing() -> None:
    link, missing = nvlink(NvLinkSpec(1, 6), "nvmlDeviceGetFieldValues[164,0]")
    assert (link.gb_per_s, missing["gb_per_s"]) == (None, "NOT_SUPPORTED")
    link, missing = nvlink(NvLinkSpec(1, 6, mb_per_s=0))
    assert (link.gb_per_s, missing["gb_per_s"]) == (None, "UNKNOWN")


def test_a_link_of_a_card_between_shows_its_old_counters_and_not_their_sum_again() -> None:
    link, missing = nvlink(NvLinkSpec(1, 5, {0: 1, 1: 2, 2: 3, 3: 4}, {161: 1, 162: 2, 163: 7}))
    assert link.errors == {"replay": 1, "recovery": 2, "crc_flit": 3, "crc_data": 4}
    assert missing == {}


def test_where_the_old_counters_are_refused_field_values_stand_in() -> None:
    link, missing = nvlink(NvLinkSpec(1, 6, {}, {161: 1, 162: 2, 163: 7}), COUNTER)
    assert link.errors == {"replay": 1, "recovery": 2, "crc": 7}
    assert missing == {}


def test_the_newest_links_show_other_counters() -> None:
    link, missing = nvlink(NvLinkSpec(1, 7, {}, NEW_COUNTS), COUNTER)
    assert len(link.errors) == 9
    assert (link.errors["malformed_packets"], link.errors["effective_errors"]) == (1, 9)
    assert missing == {}


def test_a_link_that_reports_no_counters_has_one_reason() -> None:
    link, missing = nvlink(NvLinkSpec(1, 4), COUNTER)
    assert (link.errors, missing) == ({}, {"errors": "NOT_SUPPORTED"})


VERSION_MISMATCH = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
JOINED = {"state": 3, "status": 0, "healthMask": 0b10, "healthSummary": 1}


def box(fabric: dict[str, int] | None) -> FakeNvml:
    return FakeNvml(changed(SCENARIOS["four"], gpus={0: {"fabric": fabric}}))


def test_the_words_are_those_of_pynvmls_constants() -> None:
    for code, word in FABRIC_STATES.items():
        assert getattr(pynvml, f"NVML_GPU_FABRIC_STATE_{word.upper().replace(' ', '_')}") == code
    for code, word in FABRIC_SUMMARIES.items():
        assert getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_SUMMARY_{word.upper().replace(' ', '_')}") == code
    constants = {
        "bandwidth": "DEGRADED_BW",
        "route_recovery_in_progress": "ROUTE_RECOVERY",
        "route_unhealthy": "ROUTE_UNHEALTHY",
        "access_timeout_recovery": "ACCESS_TIMEOUT_RECOVERY",
        "incorrect_configuration": "INCORRECT_CONFIGURATION",
        "partition_assigned": "PARTITION_ASSIGNED",
    }
    assert constants.keys() == FABRIC_HEALTH.keys()
    for name, (shift, width, words) in FABRIC_HEALTH.items():
        assert getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_{constants[name]}") == shift
        assert getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_{constants[name]}") == width
        for code, word in words.items():
            meant = {"full": "FALSE", "degraded": "TRUE"}.get(word, word.upper().replace(" ", "_"))
            assert getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_{constants[name]}_{meant}") == code


def test_a_gpu_that_has_joined_reports_it_and_how_it_is() -> None:
    fabric = read(box(JOINED)).gpus[0].fabric
    assert (fabric.state, fabric.status) == ("completed", "success")
    assert fabric.health == {"summary": "healthy", "bandwidth": "full"}


def test_a_driver_before_550_has_a_struct_of_28_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, sizes = box(JOINED), []
    fake.without("nvmlDeviceGetGpuFabricInfoV")
    reported = fake.nvmlDeviceGetGpuFabricInfo

    def measured(handle: Any, info: Any) -> int:
        sizes.append(ctypes.sizeof(info._obj))
        return reported(handle, info)

    monkeypatch.setitem(fake._symbols, "nvmlDeviceGetGpuFabricInfo", measured)
    fabric = read(fake).gpus[0].fabric
    assert (fabric.state, fabric.status, fabric.clique_id, set(sizes)) == ("completed", "success", 0, {28})


@pytest.mark.parametrize(("code", "state"), [(1, "not started"), (2, "in progress")])
def test_a_gpu_that_has_not_joined_has_no_status_yet(code: int, state: str) -> None:
    machine = read(box({"state": code}))
    fabric = machine.gpus[0].fabric
    assert (fabric.state, fabric.status, fabric.health) == (state, None, None)
    assert machine.missing["gpus[0].fabric.status"] == "NOT_COMPLETED"


@pytest.mark.parametrize("fabric", [None, {"state": 0}])
def test_a_gpu_without_nvswitches_has_the_reason(fabric: dict[str, int] | None) -> None:
    machine = read(box(fabric))
    assert machine.gpus[0].fabric.state is None
    for name in ("state", "status", "health"):
        assert machine.missing[f"gpus[0].fabric.{name}"] == "NOT_SUPPORTED"


def test_a_state_and_a_condition_to_come_are_reported_by_number() -> None:
    machine = read(box({"state": 9, "healthMask": 0xF00}))
    assert machine.missing["gpus[0].fabric.state"] == "UNKNOWN_9"
    assert machine.gpus[0].fabric.health == {"incorrect_configuration": "code 15"}


def test_an_older_driver_is_asked_for_the_struct_that_it_has() -> None:
    fake = box(JOINED)
    fake.refuse("nvmlDeviceGetGpuFabricInfoV[3]", VERSION_MISMATCH)
    assert read(fake).gpus[0].fabric.health == {"bandwidth": "full"}
    oldest = box(JOINED)
    oldest.without("nvmlDeviceGetGpuFabricInfoV")
    fabric = read(oldest).gpus[0].fabric
    assert (fabric.state, fabric.status, fabric.health) == ("completed", "success", None)


def test_a_driver_from_before_fabrics_states_that_it_is_unknown() -> None:
    fake = box(JOINED)
    fake.without("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")
    assert read(fake).missing["gpus[0].fabric.state"] == "FUNCTION_NOT_FOUND"
