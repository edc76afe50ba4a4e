from typing import Any

import pynvml
import pytest

from gputopo.probes.nvml.door import NotReadError, open_nvml
from tests.kit.distinct import DISTINCT
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS

FOUR = DISTINCT


def test_a_mismatch_of_pynvml_and_driver_is_a_missing_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def mismatched(_: object) -> None:
        raise pynvml.NVMLLibraryMismatchError

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPerformanceState", mismatched)
    with (
        installed(FakeNvml(FOUR)),
        open_nvml() as nvml,
        pytest.raises(NotReadError, match="FUNCTION_NOT_FOUND"),
    ):
        nvml.pstate(nvml.handle(0))


def test_a_pynvml_without_a_function_is_a_missing_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMarginTemperature")
    with (
        installed(FakeNvml(FOUR)),
        open_nvml() as nvml,
        pytest.raises(NotReadError, match="FUNCTION_NOT_FOUND"),
    ):
        nvml.temperature_margin_c(nvml.handle(0))


def test_the_most_specific_reason_of_several_calls_is_given() -> None:
    fake = FakeNvml(FOUR)
    fake.without("nvmlDeviceGetTemperatureV")
    fake.refuse("nvmlDeviceGetTemperature", 4)
    with installed(fake), open_nvml() as nvml, pytest.raises(NotReadError, match="NO_PERMISSION"):
        nvml.temperature_c(nvml.handle(0))


def test_a_lost_gpu_is_not_asked_a_second_time() -> None:
    fake = FakeNvml(SCENARIOS["lost_gpu"])
    with installed(fake), open_nvml() as nvml:
        gpu = nvml.handle(2)
        with pytest.raises(NotReadError, match="GPU_IS_LOST"):
            nvml.temperature_c(gpu)
    assert ("nvmlDeviceGetTemperature[0]", 2) not in fake.calls


def test_a_name_that_is_no_text_is_no_crash() -> None:
    def unreadable(_: object, buffer: Any, size: object) -> int:
        buffer.value = b"\xff\xfe"
        return 0

    fake = FakeNvml(FOUR)
    with installed(fake), open_nvml() as nvml:
        gpu = nvml.handle(0)
        fake._symbols["nvmlDeviceGetName"] = unreadable
        pynvml._nvmlGetFunctionPointer_cache.clear()
        with pytest.raises(NotReadError, match="UNREADABLE_TEXT"):
            nvml.name(gpu)


@pytest.mark.parametrize(
    ("kind", "member", "number"),
    [
        (1, "uiVal", 4_000_000_000),
        (3, "ullVal", 1 << 40),
        (4, "sllVal", -5),
        (5, "siVal", -8),
        (6, "usVal", 7),
    ],
)
def test_a_field_value_is_taken_from_the_member_that_its_type_names(
    kind: int, member: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: object, __: object) -> list[Any]:
        value = pynvml.c_nvmlFieldValue_t()
        value.valueType = kind
        setattr(value.value, member, number)
        return [value]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", answer)
    with installed(FakeNvml(FOUR)), open_nvml() as nvml:
        assert nvml.field(nvml.handle(0), 1) == number


def test_a_field_value_of_an_unheard_of_type_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    value = pynvml.c_nvmlFieldValue_t()
    value.valueType = 77
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda *_: [value])
    with (
        installed(FakeNvml(FOUR)),
        open_nvml() as nvml,
        pytest.raises(NotReadError, match="UNKNOWN_VALUE_TYPE_77"),
    ):
        nvml.field(nvml.handle(0), 1)


def test_a_margin_that_comes_as_an_unsigned_number_is_negative_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMarginTemperature", lambda _: (1 << 32) - 3)
    with installed(FakeNvml(FOUR)), open_nvml() as nvml:
        assert nvml.temperature_margin_c(nvml.handle(0)) == -3
        assert nvml.margin_threshold_c(nvml.handle(0), "margin_shutdown") == -8
