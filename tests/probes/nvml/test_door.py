import contextlib

import pytest

from gputopo.probes.nvml.door import NotReadError, open_nvml
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


@pytest.mark.parametrize(
    ("reported", "written"),
    [("0000:0a:00.0", "0000:0a:00.0"), ("10000:01:00.0", "10000:01:00.0"), ("00ab:ff:1f.0", "00ab:ff:1f.0")],
)
def test_addresses_are_written_as_the_kernel_does(reported: str, written: str) -> None:
    one = Scenario("one", (GpuSpec(reported, None, "pci0000:00"),), ())
    with installed(FakeNvml(one)), open_nvml() as nvml:
        assert nvml.pci_address(nvml.handle(0)) == written


def test_a_link_that_the_driver_reports_as_zero_is_not_known() -> None:
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
def test_peer_to_peer_is_reported_in_words(code: int, word: str) -> None:
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
