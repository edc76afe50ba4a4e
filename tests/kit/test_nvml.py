import pynvml

from tests.kit.nvml import FakeNvml, installed
from tests.kit.scenarios import SCENARIOS

FOUR = SCENARIOS["four"]


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
