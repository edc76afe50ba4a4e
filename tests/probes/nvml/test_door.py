"""What drivers answer, in the forms that they have, and what the facts of a machine then are."""

import contextlib
from dataclasses import replace
from typing import Any

import pynvml
import pytest

from gputopo.probes import NotReadError
from gputopo.probes.nvml import open_nvml
from tests.kit.distinct import DISTINCT as FOUR
from tests.kit.machines import read_double
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import GpuSpec, LinkSpec, Scenario, changed

# A fact is read of each GPU in the same way: two are enough.
DISTINCT = replace(FOUR, gpus=FOUR.gpus[:2])


@pytest.mark.parametrize(("code", "reason"), [(18, "LIB_RM_VERSION_MISMATCH"), (4711, "ERROR_4711")])
def test_the_reason_of_a_failed_init_is_nvmls_own_name(code: int, reason: str) -> None:
    with installed(FakeNvml(DISTINCT, init_code=code)), pytest.raises(NotReadError) as error:
        open_nvml().__enter__()
    assert error.value.reason == reason


def test_nvml_is_shut_down_at_the_end_even_after_an_error() -> None:
    with installed(FakeNvml(DISTINCT)) as fake:
        with contextlib.suppress(ZeroDivisionError), open_nvml():
            assert fake.open == 1
            raise ZeroDivisionError
        assert fake.open == 0


def test_a_driver_that_has_facts_by_another_name_only_gives_the_same_facts() -> None:
    fake = FakeNvml(DISTINCT)
    fake.without(
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetApplicationsClock",
    )
    assert read_double(fake) == read_double(DISTINCT)


@pytest.mark.parametrize("address", ["10000:01:00.0", "00ab:ff:1f.0"])
def test_addresses_are_written_as_the_kernel_does(address: str) -> None:
    one = Scenario("one", (GpuSpec(address, None, "pci0000:00"),), ())
    assert read_double(one).gpus[0].pci_address == address


def reason_of(name: str, fake: FakeNvml | Scenario) -> str:
    """Return why a fact of the first GPU is not read."""
    return read_double(fake).missing[f"gpus[0].{name}"]


SEVERAL_NODES = changed(DISTINCT, gpus={0: {"numa_node": -1}}, cpus=(range(4), range(4, 8)))


@pytest.mark.parametrize(
    ("scenario", "name", "reason"),
    [
        (changed(DISTINCT, gpus={0: {"link": LinkSpec(8.0, 0)}}), "pcie.width_now", "UNKNOWN"),
        (SEVERAL_NODES, "numa_node", "SEVERAL_NODES"),
        (changed(DISTINCT, gpus={0: {"brand": 99}}), "brand", "UNKNOWN_99"),
        (changed(DISTINCT, gpus={0: {"device_id": "0000"}}), "pci_device_id", "UNKNOWN"),
    ],
)
def test_an_answer_that_names_nothing_is_a_missing_fact(scenario: Scenario, name: str, reason: str) -> None:
    assert reason_of(name, scenario) == reason


def test_more_than_1024_cpus_fit() -> None:
    assert read_double(changed(DISTINCT, cpus=(range(1000, 1200),))).gpus[0].cpu_affinity == "1000-1199"


@pytest.mark.parametrize(("code", "word"), [(1, "CHIPSET_NOT_SUPPORTED"), (9, "UNKNOWN_9")])
def test_peer_to_peer_is_reported_in_words(code: int, word: str) -> None:
    assert read_double(changed(DISTINCT, p2p={(0, 1): code})).links[0].p2p_read == word


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
    fake = FakeNvml(DISTINCT)
    fake.without(*NEWER_THAN_470)
    machine = read_double(fake)
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
    gpu = machine.gpus[0]
    assert (gpu.lost, gpu.memory_mib.used, gpu.temperature_c.gpu) == (False, 1024, 31)
    assert gpu.ecc.counts is not None
    assert gpu.nvlinks is not None
    assert gpu.nvlinks[0].errors["crc_data"] == 4


def test_what_driver_or_pynvml_has_otherwise_or_not_at_all_is_a_missing_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mismatched(_: object) -> None:
        raise pynvml.NVMLLibraryMismatchError

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPerformanceState", mismatched)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMarginTemperature")
    machine = read_double(DISTINCT)
    assert {machine.missing[f"gpus[0].{name}"] for name in ("pstate", "temperature_c.margin")} == {
        "FUNCTION_NOT_FOUND"
    }


def test_the_most_specific_reason_of_several_calls_is_given() -> None:
    fake = FakeNvml(DISTINCT)
    fake.without("nvmlDeviceGetTemperatureV")
    fake.refuse("nvmlDeviceGetTemperature", 4)
    assert reason_of("temperature_c.gpu", fake) == "NO_PERMISSION"


def test_a_name_that_is_no_text_is_no_crash() -> None:
    def unreadable(_: object, buffer: Any, size: object) -> int:
        buffer.value = b"\xff\xfe"
        return 0

    fake = FakeNvml(DISTINCT)
    fake.replace("nvmlDeviceGetName", unreadable)
    assert reason_of("name", fake) == "UNREADABLE_TEXT"


@pytest.mark.parametrize(
    ("kind", "member", "number"),
    [
        (3, "ullVal", 1 << 40),
        (4, "sllVal", -5),
        (77, "uiVal", "UNKNOWN_VALUE_TYPE_77"),
    ],
)
def test_a_field_value_is_taken_from_the_member_that_its_type_names(
    kind: int, member: str, number: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = pynvml.c_nvmlFieldValue_t()
    value.valueType = kind
    setattr(value.value, member, number if isinstance(number, int) else 0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda _, wanted: [value] * len(wanted))
    machine = read_double(DISTINCT)
    read = machine.gpus[0].pcie.replay_rollovers
    assert (machine.missing["gpus[0].pcie.replay_rollovers"] if read is None else read) == number


@pytest.mark.parametrize(("reported", "margin"), [((1 << 32) - 3, -3), ((1 << 31) - 1, (1 << 31) - 1)])
def test_a_margin_that_comes_as_an_unsigned_number_has_its_sign(
    reported: int, margin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMarginTemperature", lambda _: reported)
    assert read_double(DISTINCT).gpus[0].temperature_c.margin == margin
