import contextlib
from typing import Any

import pynvml
import pytest

from gputopo.probes import NotReadError
from gputopo.probes.nvml.door import open_nvml
from gputopo.probes.nvml.questions import common_ancestor, cuda_version, fact, facts_with, p2p, processes
from gputopo.values.machine import Hop
from tests.kit.distinct import DISTINCT
from tests.kit.machines import read_here
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS, GpuSpec, LinkSpec, Scenario, changed

FOUR = DISTINCT


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


def test_the_cuda_version_is_given_as_people_write_it() -> None:
    with installed(FakeNvml(changed(FOUR, cuda_version=11_080))), open_nvml() as nvml:
        assert cuda_version(nvml) == "11.8"


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
        assert cuda_version(nvml) == "12.4"
        assert facts_with(nvml, gpu, "memory_mib.used") == {
            "memory_mib.total": 40960,
            "memory_mib.used": 1024,
            "memory_mib.free": 39936,
        }
        assert fact(nvml, gpu, "temperature_c.gpu") == 31
        assert fact(nvml, gpu, "throttle.mask") == 1
        assert processes(nvml, gpu, "compute") == ((4000, 1024),)


def test_a_driver_without_application_clocks_is_asked_by_the_newer_name() -> None:
    fake = FakeNvml(FOUR)
    fake.without("nvmlDeviceGetApplicationsClock")
    with installed(fake), open_nvml() as nvml:
        assert fact(nvml, nvml.handle(0), "clocks_mhz.video.application") == 1005


@pytest.mark.parametrize(
    ("reported", "written"),
    [("0000:0a:00.0", "0000:0a:00.0"), ("10000:01:00.0", "10000:01:00.0"), ("00ab:ff:1f.0", "00ab:ff:1f.0")],
)
def test_addresses_are_written_as_the_kernel_does(reported: str, written: str) -> None:
    one = Scenario("one", (GpuSpec(reported, None, "pci0000:00"),), ())
    with installed(FakeNvml(one)), open_nvml() as nvml:
        assert fact(nvml, nvml.handle(0), "pci_address") == written


def reason_of(name: str, fake: FakeNvml) -> str:
    """Return why a fact of the first GPU is not read."""
    with installed(fake), open_nvml() as nvml, pytest.raises(NotReadError) as error:
        fact(nvml, nvml.handle(0), name)
    return error.value.reason


SEVERAL_NODES = changed(FOUR, gpus={0: {"numa_node": -1}}, cpus=(range(4), range(4, 8)))


@pytest.mark.parametrize(
    ("scenario", "name", "reason"),
    [
        (changed(FOUR, gpus={0: {"link": LinkSpec(8.0, 0)}}), "pcie.width_now", "UNKNOWN"),
        (SEVERAL_NODES, "numa_node", "SEVERAL_NODES"),
        (SCENARIOS["desktop"], "temperature_c.memory", "NOT_SUPPORTED"),
        (changed(FOUR, gpus={0: {"brand": 0}}), "brand", "UNKNOWN_0"),
        (changed(FOUR, gpus={0: {"brand": 99}}), "brand", "UNKNOWN_99"),
        (changed(FOUR, gpus={0: {"device_id": "0000"}}), "pci_device_id", "UNKNOWN"),
    ],
)
def test_an_answer_that_names_nothing_is_a_missing_fact(scenario: Scenario, name: str, reason: str) -> None:
    assert reason_of(name, FakeNvml(scenario)) == reason


def test_more_than_1024_cpus_fit() -> None:
    large = changed(FOUR, cpus=(range(1000, 1200),))
    with installed(FakeNvml(large)), open_nvml() as nvml:
        assert fact(nvml, nvml.handle(0), "cpu_affinity") == "1000-1199"


@pytest.mark.parametrize(("code", "word"), [(0, "OK"), (1, "CHIPSET_NOT_SUPPORTED"), (9, "UNKNOWN_9")])
def test_peer_to_peer_is_reported_in_words(code: int, word: str) -> None:
    with installed(FakeNvml(changed(FOUR, p2p={(0, 1): code}))), open_nvml() as nvml:
        assert p2p(nvml, nvml.handle(0), nvml.handle(1), "read") == word


def test_a_topology_level_that_nvml_does_not_define_is_not_guessed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with installed(FakeNvml(FOUR)), open_nvml() as nvml:
        a, b = nvml.handle(0), nvml.handle(1)
        assert common_ancestor(nvml, a, b) is Hop.PIX
        monkeypatch.setattr(Scenario, "level", lambda *_: 35)
        with pytest.raises(NotReadError, match="UNKNOWN_LEVEL_35"):
            common_ancestor(nvml, a, b)


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
        machine = read_here()
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


def test_what_driver_or_pynvml_has_otherwise_or_not_at_all_is_a_missing_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mismatched(_: object) -> None:
        raise pynvml.NVMLLibraryMismatchError

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPerformanceState", mismatched)
    assert reason_of("pstate", FakeNvml(FOUR)) == "FUNCTION_NOT_FOUND"
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMarginTemperature")
    assert reason_of("temperature_c.margin", FakeNvml(FOUR)) == "FUNCTION_NOT_FOUND"


def test_the_most_specific_reason_of_several_calls_is_given() -> None:
    fake = FakeNvml(FOUR)
    fake.without("nvmlDeviceGetTemperatureV")
    fake.refuse("nvmlDeviceGetTemperature", 4)
    assert reason_of("temperature_c.gpu", fake) == "NO_PERMISSION"


def test_a_lost_gpu_is_not_asked_a_second_time() -> None:
    fake = FakeNvml(SCENARIOS["lost_gpu"])
    with installed(fake), open_nvml() as nvml:
        gpu = nvml.handle(2)
        with pytest.raises(NotReadError, match="GPU_IS_LOST"):
            fact(nvml, gpu, "temperature_c.gpu")
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
            fact(nvml, gpu, "name")


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
        assert fact(nvml, nvml.handle(0), "temperature_c.margin") == -3
        assert fact(nvml, nvml.handle(0), "temperature_c.margin_shutdown") == -8
