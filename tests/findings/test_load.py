"""When a reading counts as taken under load, and what shows that a GPU is in use."""

from typing import Any

import pytest

from gputopo.findings import use_of
from gputopo.values.machine import Gpu, GpuProcess, MemoryMib, Mig, PowerW, UtilizationPercent
from tests import there


def card(**facts: Any) -> Gpu:
    """An idle GPU of 10 GiB with a limit of 320 W, and nothing that uses it but what `facts` say."""
    memory = MemoryMib(total=10_240, used=facts.pop("used", 1), free=facts.pop("free", 9_900))
    power = PowerW(draw=facts.pop("watts", 30.0), default_limit=320.0)
    percent = UtilizationPercent(gpu=facts.pop("percent", 0))
    others: dict[str, Any] = {"persistence_mode": True, "processes": ()} | facts
    return Gpu(index=0, memory_mib=memory, power_w=power, utilization_percent=percent, **others)


XORG = GpuProcess(pid=7, kind="graphics", name="Xorg", memory_mib=22)


@pytest.mark.parametrize(
    ("facts", "by"),
    [
        (
            {"percent": 65, "used": 9_184, "free": 640, "watts": 140.0},
            "65% load, 9184 of 10240 MiB used, no process listed",
        ),
        ({"percent": 99}, "99% load, no process listed"),
        (
            {"used": 600, "free": 9_300, "processes": None},
            "0% load, 600 of 10240 MiB used, processes not reported",
        ),
        ({"watts": 200.0}, "0% load, 200 of 320 W, no process listed"),
        ({"processes": (XORG, GpuProcess(pid=8, kind="mps", name="python"))}, "python (pid 8)"),
    ],
)
def test_a_gpu_is_in_use_by_a_process_load_memory_or_power(facts: dict[str, Any], by: str) -> None:
    use = there(use_of(card(**facts)))
    assert use.by == by


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"used": 1_400, "free": 8_840},  # what the driver reserves may be in it
        {"percent": 100, "persistence_mode": False},  # the driver was loaded for the query
        {"percent": 40, "used": 3_000, "free": 6_900, "processes": (XORG,)},
        {"used": 1_474, "processes": (GpuProcess(pid=1, kind="compute+graphics", name="dwm.exe"),)},
        {"processes": (GpuProcess(pid=1, kind="compute", name="nvidia-cuda-mps-server", memory_mib=30),)},
        {"percent": 60, "used": 5_000, "free": 4_900, "mig": Mig(mode=True)},
        {"watts": 150.0},
    ],
)
def test_an_idle_gpu_a_desktop_and_an_idle_mps_server_are_no_use(facts: dict[str, Any]) -> None:
    assert use_of(card(**facts)) is None
