import contextlib
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.machine import Hop
from gputopo.probes.collect import read_machine
from gputopo.probes.nvml import NotReadError, open_nvml
from gputopo.probes.nvml_words import (
    ARCHITECTURES,
    BRANDS,
    MEMORY_LOCATIONS,
    SRAM_COUNTS,
    THRESHOLDS,
    THROTTLE_REASONS,
    throttle_reasons,
)
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS, GpuSpec, LinkSpec, Scenario, changed
from tests.kit.telling import TELLING

FOUR = TELLING


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, "NOT_SUPPORTED"),
        (4, "NO_PERMISSION"),
        (9, "DRIVER_NOT_LOADED"),
        (12, "LIBRARY_NOT_FOUND"),
        (18, "LIB_RM_VERSION_MISMATCH"),
        (999, "UNKNOWN"),
        (4711, "ERROR_4711"),
    ],
)
def test_the_reason_of_a_failed_init_is_nvmls_own_name(code: int, reason: str) -> None:
    with installed(FakeNvml(FOUR, init_code=code)), pytest.raises(NotReadError) as error:
        open_nvml().__enter__()
    assert error.value.reason == reason


def test_nvml_is_shut_down_at_the_end_even_after_an_error() -> None:
    with installed(FakeNvml(FOUR)) as fake:
        with contextlib.suppress(ZeroDivisionError), open_nvml():
            assert fake.open == 1
            raise ZeroDivisionError
        assert fake.open == 0


def test_versions_are_given_as_people_write_them() -> None:
    with installed(FakeNvml(changed(FOUR, cuda_version=11_080))), open_nvml() as nvml:
        assert nvml.cuda_version() == "11.8"
        assert nvml.driver_version() == "550.163.01"
        assert nvml.nvml_version() == "12.550.163.01"


def test_an_old_driver_without_the_new_symbols_answers_by_the_old_ones() -> None:
    fake = FakeNvml(FOUR)
    fake.without(
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    )
    with installed(fake), open_nvml() as nvml:
        gpu = nvml.handle(0)
        assert nvml.cuda_version() == "12.4"
        assert nvml.memory_mib(gpu) == {"total": 40960, "used": 1024, "free": 39936}
        assert nvml.temperature_c(gpu) == 31
        assert nvml.throttle_mask(gpu) == 1
        assert nvml.processes(gpu, "compute") == ((4000, 1024),)


def test_a_driver_without_application_clocks_is_asked_by_the_newer_name() -> None:
    fake = FakeNvml(FOUR)
    fake.without("nvmlDeviceGetApplicationsClock")
    with installed(fake), open_nvml() as nvml:
        assert nvml.application_clock_mhz(nvml.handle(0), "video") == 1005


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


def test_the_most_telling_reason_of_several_ways_is_given() -> None:
    fake = FakeNvml(FOUR)
    fake.without("nvmlDeviceGetTemperatureV")
    fake.refuse("nvmlDeviceGetTemperature", 4)
    with installed(fake), open_nvml() as nvml, pytest.raises(NotReadError, match="NO_PERMISSION"):
        nvml.temperature_c(nvml.handle(0))


def test_a_lost_gpu_is_not_asked_a_second_way() -> None:
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
    ("told", "written"),
    [("0000:0a:00.0", "0000:0a:00.0"), ("10000:01:00.0", "10000:01:00.0"), ("00ab:ff:1f.0", "00ab:ff:1f.0")],
)
def test_addresses_are_written_as_the_kernel_does(told: str, written: str) -> None:
    one = Scenario("one", (GpuSpec(told, None, "pci0000:00"),), ())
    with installed(FakeNvml(one)), open_nvml() as nvml:
        assert nvml.pci_address(nvml.handle(0)) == written


def test_a_link_of_which_the_driver_says_zero_is_not_known() -> None:
    hidden = changed(FOUR, gpus={0: {"link": LinkSpec(8.0, 0)}})
    with installed(FakeNvml(hidden)), open_nvml() as nvml:
        first, second = nvml.handle(0), nvml.handle(1)
        assert nvml.pcie(second, "width_now") == 16
        with pytest.raises(NotReadError, match="UNKNOWN"):
            nvml.pcie(first, "width_now")


def test_more_than_1024_cpus_fit() -> None:
    large = changed(FOUR, cpus=(range(1000, 1200),))
    with installed(FakeNvml(large)), open_nvml() as nvml:
        assert nvml.cpu_affinity(nvml.handle(0)) == tuple(range(1000, 1200))


def test_a_memory_affinity_of_several_nodes_names_none() -> None:
    loose = changed(FOUR, gpus={0: {"numa_node": -1}}, cpus=(range(4), range(4, 8)))
    with installed(FakeNvml(loose)), open_nvml() as nvml, pytest.raises(NotReadError, match="SEVERAL_NODES"):
        nvml.numa_node(nvml.handle(0))


def test_a_refusal_of_the_memory_temperature_within_the_answer_is_seen() -> None:
    with (
        installed(FakeNvml(SCENARIOS["desktop"])),
        open_nvml() as nvml,
        pytest.raises(NotReadError, match="NOT_SUPPORTED"),
    ):
        nvml.memory_temperature_c(nvml.handle(0))


@pytest.mark.parametrize(("code", "word"), [(0, "OK"), (1, "CHIPSET_NOT_SUPPORTED"), (9, "UNKNOWN_9")])
def test_peer_to_peer_is_told_in_words(code: int, word: str) -> None:
    with installed(FakeNvml(changed(FOUR, p2p={(0, 1): code}))), open_nvml() as nvml:
        assert nvml.p2p(nvml.handle(0), nvml.handle(1), "read") == word


def test_a_topology_level_that_nvml_does_not_define_is_not_guessed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with installed(FakeNvml(FOUR)), open_nvml() as nvml:
        a, b = nvml.handle(0), nvml.handle(1)
        assert nvml.common_ancestor(a, b) is Hop.PIX
        monkeypatch.setattr(Scenario, "level", lambda *_: 35)
        with pytest.raises(NotReadError, match="UNKNOWN_LEVEL_35"):
            nvml.common_ancestor(a, b)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ()),
        (0x1, ("gpu_idle",)),
        (0x24, ("sw_power_cap", "sw_thermal_slowdown")),
        (0x1A8, ("hw_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting")),
        (0x800, ("unknown_0x800",)),
    ],
)
def test_throttle_bits_are_told_in_words(mask: int, words: tuple[str, ...]) -> None:
    assert throttle_reasons(mask) == words


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_no_throttle_bit_is_ever_lost(mask: int) -> None:
    numbers = {word: bit for bit, word in THROTTLE_REASONS.items()}
    words = throttle_reasons(mask)
    bits = [numbers[word] if word in numbers else int(word.removeprefix("unknown_"), 16) for word in words]
    assert sum(bits) == mask
    assert len(bits) == mask.bit_count()


def test_the_throttle_words_are_those_of_pynvmls_constants() -> None:
    prefix = "nvmlClocksThrottleReason"
    named = {
        name.removeprefix(prefix).lower(): value
        for name, value in vars(pynvml).items()
        if name.startswith(prefix) and not name.endswith(("None", "All", "UserDefinedClocks"))
    }
    assert named == {word.replace("_", ""): bit for bit, word in THROTTLE_REASONS.items()}


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


@pytest.mark.parametrize("code", [0, 99])
def test_a_brand_without_a_name_is_missing_with_its_number(code: int) -> None:
    with (
        installed(FakeNvml(changed(FOUR, gpus={0: {"brand": code}}))),
        open_nvml() as nvml,
        pytest.raises(NotReadError, match=f"UNKNOWN_{code}"),
    ):
        nvml.brand(nvml.handle(0))


def test_a_virtual_machine_that_hides_the_chip_gives_no_device_id() -> None:
    with (
        installed(FakeNvml(changed(FOUR, gpus={0: {"device_id": "0000"}}))),
        open_nvml() as nvml,
        pytest.raises(NotReadError, match="UNKNOWN"),
    ):
        nvml.pci_device_id(nvml.handle(0))


def test_the_words_are_those_of_pynvmls_constants() -> None:
    thresholds = {
        "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
        "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        "memory_max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
        "max_operating": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
        "target": pynvml.NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR,
    }
    assert thresholds == THRESHOLDS
    for name, code in MEMORY_LOCATIONS.items():
        assert getattr(pynvml, f"NVML_MEMORY_LOCATION_{name.upper()}") == code
    for code, words in ARCHITECTURES.items():
        assert getattr(pynvml, f"NVML_DEVICE_ARCH_{words.split()[0].upper()}") == code
    assert (BRANDS[pynvml.NVML_BRAND_GEFORCE], BRANDS[pynvml.NVML_BRAND_QUADRO_RTX]) == (
        "GeForce",
        "Quadro RTX",
    )
    fields = {field for field, _ in pynvml.c_nvmlEccSramErrorStatus_v1_t._fields_}
    assert set(SRAM_COUNTS.values()) == fields - {"version"}


# Functions that came after driver 470 or are refused by it, as far as gputopo asks for them.
NEWER_THAN_470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
)


def test_an_old_driver_costs_only_what_it_does_not_have() -> None:
    fake = FakeNvml(FOUR)
    fake.without(*NEWER_THAN_470)
    with installed(fake):
        machine = read_machine(Path("/nonexistent"))
    gpu = machine.gpus[0]
    assert (machine.driver.status, gpu.lost, gpu.memory_mib.used, gpu.temperature_c.gpu) == (
        "ok",
        False,
        1024,
        31,
    )
    assert (gpu.architecture, gpu.mig.instances, gpu.temperature_c.margin_slowdown) == (None, None, None)
    lacks = {path for path, reason in machine.missing.items() if reason == "FUNCTION_NOT_FOUND"}
    assert {
        "gpus[0].architecture",
        "gpus[0].mig.mode",
        "gpus[0].mig.instances",
        "gpus[0].temperature_c.margin",
        "gpus[0].temperature_c.memory",
        "gpus[0].nvlinks[0].gb_per_s",
        "gpus[0].remapped_rows.pending",
    } <= lacks
    assert gpu.ecc.counts is not None
    assert gpu.nvlinks is not None
    assert gpu.nvlinks[0].errors["crc_data"] == 4
