import pynvml
import pytest

from gputopo.probes.nvml.words import FABRIC_HEALTH, FABRIC_STATES, FABRIC_SUMMARIES
from tests.kit.nvml import FakeNvml
from tests.kit.scenarios import SCENARIOS, changed
from tests.probes.gpus.test_gpu import read

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
