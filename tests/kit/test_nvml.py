import pynvml
import pytest

from tests.kit.distinct import DISTINCT
from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS

FOUR = SCENARIOS["four"]


def test_pynvmls_own_functions_run_on_the_double() -> None:
    with installed(FakeNvml(DISTINCT)):
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
        assert pynvml.nvmlDeviceGetCount() == 4
        assert pynvml.nvmlDeviceGetPciInfo(gpu).busId == "00000000:45:00.0"
        assert pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).total == 40 << 30
        assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu) == [100_000, 405_000]
        assert [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [4001]
        assert len(pynvml.nvmlDeviceGetRetiredPages(gpu, 0)) == 2
        pynvml.nvmlShutdown()


def test_a_symbol_that_the_double_does_not_know_is_function_not_found() -> None:
    with installed(FakeNvml(FOUR)):
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetNumFans(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_every_call_that_would_change_a_setting_is_noted() -> None:
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("nvmlDeviceSetPowerManagementLimit", (100_000,)),
        ("nvmlDeviceSetPersistenceMode", (1,)),
        ("nvmlDeviceSetMigMode", (1,)),
        ("nvmlDeviceResetGpuLockedClocks", ()),
        ("nvmlDeviceClearEccErrorCounts", (0,)),
    ]
    for function, arguments in cases:
        with installed(FakeNvml(FOUR)) as fake:
            pynvml.nvmlInit()
            getattr(pynvml, function)(pynvml.nvmlDeviceGetHandleByIndex(0), *arguments)
        assert fake.writes == [function]
