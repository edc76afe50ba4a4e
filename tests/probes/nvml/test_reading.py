import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.probes import child
from gputopo.values.machine import Machine
from tests.kit.machines import read, read_machine
from tests.kit.nvml import FakeNvml, crash, hang, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree

FOUR = SCENARIOS["four"]


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "NVML_LIMITS", child.NVML_LIMITS._replace(nvml_s=1.0))


def faulty(fault: Callable[[], None], call: str, gpu: int | None = None, after_calls: int = 0) -> FakeNvml:
    fake = FakeNvml(FOUR)
    fake.spoil(call, fault, gpu, after_calls)
    return fake


def read_faulty(fake: FakeNvml, folder: Path) -> Machine:
    write_tree(FOUR, folder)
    with installed(fake):
        return read_machine(folder)


def test_a_healthy_machine_is_the_same_through_the_child(tmp_path: Path) -> None:
    whole = read(FOUR, tmp_path)
    with installed(FakeNvml(FOUR)):
        assert read_machine(tmp_path) == whole


def test_one_call_of_one_gpu_costs_what_comes_after_it_on_that_gpu(tmp_path: Path) -> None:
    machine = read_faulty(faulty(crash, "nvmlDeviceGetPowerUsage", gpu=2), tmp_path)
    whole = read(FOUR, tmp_path)
    assert machine.driver.status == "crashed"
    assert machine.driver.detail is not None
    assert machine.driver.detail.startswith("nvmlDeviceGetPowerUsage of GPU 2 ")
    assert machine.driver.version == whole.driver.version
    for index in (0, 1, 3):
        assert machine.gpus[index].power_w == whole.gpus[index].power_w
        assert machine.gpus[index].recovery_action == whole.gpus[index].recovery_action
    stopped = machine.gpus[2]
    assert (stopped.name, stopped.clocks_mhz, stopped.lost) == (
        whole.gpus[2].name,
        whole.gpus[2].clocks_mhz,
        False,
    )
    assert (stopped.power_w.draw, stopped.compute_mode) == (None, None)
    assert machine.missing["gpus[2].power_w.draw"] == "CRASHED"
    assert machine.missing["gpus[2].compute_mode"] == "NOT_ASKED"
    assert machine.links[0] == whole.links[0]
    assert [link.hop for link in machine.links] == [link.hop for link in whole.links]
    assert machine.missing["links[2-3].p2p_read"] == "NOT_ASKED"


def test_of_a_call_that_is_made_often_the_answers_before_the_fault_stay(tmp_path: Path) -> None:
    machine = read_faulty(faulty(crash, "nvmlDeviceGetClockInfo", gpu=1, after_calls=3), tmp_path)
    clocks = machine.gpus[1].clocks_mhz
    assert (clocks.graphics.now, clocks.sm.now, clocks.memory.now) == (1305, 1305, 1215)
    assert clocks.video.now is None


def test_every_gpu_may_crash_by_itself(tmp_path: Path) -> None:
    machine = read_faulty(faulty(crash, "nvmlDeviceGetName"), tmp_path)
    assert [gpu.name for gpu in machine.gpus] == [None] * 4
    assert all(gpu.uuid for gpu in machine.gpus)
    assert machine.driver.detail is not None
    assert machine.driver.detail.count("nvmlDeviceGetName of GPU") == 4


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"])
def test_a_pair_costs_the_pairs_of_its_gpus(symbol: str, tmp_path: Path) -> None:
    machine = read_faulty(faulty(crash, symbol, gpu=2), tmp_path)
    whole = read(FOUR, tmp_path)
    assert machine.driver.status == "crashed"
    assert [gpu.name for gpu in machine.gpus] == [gpu.name for gpu in whole.gpus]
    assert [gpu.recovery_action for gpu in machine.gpus] == [gpu.recovery_action for gpu in whole.gpus]
    assert machine.link(0, 1) == whole.link(0, 1)
    assert "GPUs 2 and 3" in (machine.driver.detail or "")


def test_versions_that_crash_cost_themselves(tmp_path: Path) -> None:
    machine = read_faulty(faulty(crash, "nvmlSystemGetDriverVersion"), tmp_path)
    assert (machine.driver.status, machine.driver.version) == ("crashed", None)
    assert machine.driver.cuda_version == "12.4"
    assert machine.missing["driver.version"] == "CRASHED"
    assert len(machine.gpus) == 4


def test_a_count_that_crashes_leaves_the_gpus_of_the_bus(tmp_path: Path) -> None:
    machine = read_faulty(faulty(crash, "nvmlDeviceGetCount"), tmp_path)
    assert (machine.driver.status, len(machine.gpus)) == ("crashed", 4)
    assert machine.gpus[0].pci_address == FOUR.gpus[0].address
    assert machine.missing["gpus[0].name"] == "CRASHED"


def test_where_the_driver_hangs_altogether_what_was_read_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "NVML_LIMITS", child.NVML_LIMITS._replace(start_s=3.0))
    broken, fake = tmp_path / "broken", FakeNvml(FOUR)

    def crash_and_hang_from_then_on() -> None:
        broken.touch()
        crash()

    fake.spoil("nvmlDeviceGetPowerUsage", crash_and_hang_from_then_on, gpu=1)
    fake.spoil("nvmlInitWithFlags", lambda: hang() if broken.exists() else None)
    machine = read_faulty(fake, tmp_path / "tree")
    whole = read(FOUR, tmp_path / "tree")
    assert machine.driver.detail is not None
    assert [text.split(" ")[0] for text in machine.driver.detail.split("; ")] == [
        "nvmlDeviceGetPowerUsage",
        "nvmlInit",
    ]
    assert machine.gpus[0].power_w == whole.gpus[0].power_w
    assert machine.gpus[1].clocks_mhz == whole.gpus[1].clocks_mhz
    assert machine.missing["gpus[1].power_w.draw"] == "CRASHED"
    assert machine.missing["gpus[2].name"] == "NOT_ASKED"


def test_without_another_process_the_reason_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    machine = read_faulty(FakeNvml(FOUR), tmp_path)
    assert (machine.driver.status, len(machine.gpus)) == ("failed", 4)
    assert "NO_CHILD_PROCESS" in (machine.driver.detail or "")
