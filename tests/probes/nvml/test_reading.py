import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.values.machine import Machine
from tests.kit.driver_time import DriverTime
from tests.kit.machines import leaves, read, read_machine
from tests.kit.nvml import FakeNvml, crash, installed
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_tree

FOUR = SCENARIOS["four"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(FOUR, tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="module")
def whole(root: Path) -> Machine:
    return read(FOUR, root)


Read = Callable[..., Machine]


@pytest.fixture
def read_faulty(root: Path) -> Read:
    """Returns a function that reads the machine whose driver has a fault in a call."""

    def read(fault: Callable[[], None], call: str, gpu: int | None = None, after_calls: int = 0) -> Machine:
        fake = FakeNvml(FOUR)
        fake.spoil(call, fault, gpu, after_calls)
        with installed(fake):
            return read_machine(root)

    return read


def test_a_healthy_machine_is_the_same_through_the_child(root: Path, whole: Machine) -> None:
    with installed(FakeNvml(FOUR)):
        assert read_machine(root) == whole


def test_one_call_of_one_gpu_costs_what_comes_after_it_on_that_gpu(read_faulty: Read, whole: Machine) -> None:
    machine = read_faulty(crash, "nvmlDeviceGetPowerUsage", gpu=2)
    assert machine.driver.status == "crashed"
    assert machine.driver.detail is not None
    assert machine.driver.detail.startswith("nvmlDeviceGetPowerUsage of GPU 2 ")
    assert machine.driver.version == whole.driver.version
    for index in (0, 1, 3):  # CUDA's order is known of all GPUs or of none
        assert leaves(machine.gpus[index]) | {"cuda_index": index} == leaves(whole.gpus[index])
    stopped = machine.gpus[2]
    assert (stopped.name, stopped.lost) == (whole.gpus[2].name, False)
    assert stopped.clocks_mhz == whole.gpus[2].clocks_mhz
    assert (stopped.power_w.draw, stopped.compute_mode) == (None, None)
    assert machine.missing["gpus[2].power_w.draw"] == "CRASHED"
    assert machine.missing["gpus[2].compute_mode"] == "NOT_ASKED"
    assert machine.links[0] == whole.links[0]
    assert [link.hop for link in machine.links] == [link.hop for link in whole.links]
    assert machine.missing["links[2-3].p2p_read"] == "NOT_ASKED"


def test_every_gpu_may_crash_by_itself(read_faulty: Read) -> None:
    machine = read_faulty(crash, "nvmlDeviceGetName")
    assert [gpu.name for gpu in machine.gpus] == [None] * 4
    assert all(gpu.uuid for gpu in machine.gpus)
    assert machine.driver.detail is not None
    assert machine.driver.detail.count("nvmlDeviceGetName of GPU") == 4


def test_versions_that_crash_cost_themselves(read_faulty: Read) -> None:
    machine = read_faulty(crash, "nvmlSystemGetDriverVersion")
    assert (machine.driver.status, machine.driver.version) == ("crashed", None)
    assert machine.driver.cuda_version == "12.4"
    assert machine.missing["driver.version"] == "CRASHED"
    assert len(machine.gpus) == 4


def test_a_count_that_crashes_leaves_the_gpus_of_the_bus(read_faulty: Read) -> None:
    machine = read_faulty(crash, "nvmlDeviceGetCount")
    assert (machine.driver.status, len(machine.gpus)) == ("crashed", 4)
    assert machine.gpus[0].pci_address == FOUR.gpus[0].address
    assert machine.missing["gpus[0].name"] == "CRASHED"


def test_where_the_driver_hangs_altogether_what_was_read_before_stays(
    root: Path, whole: Machine, tmp_path: Path
) -> None:
    broken, fake, time_of_driver = tmp_path / "broken", FakeNvml(FOUR), DriverTime()

    def crash_and_hang_from_then_on() -> None:
        broken.touch()
        crash()

    fake.spoil("nvmlDeviceGetPowerUsage", crash_and_hang_from_then_on, gpu=1)
    fake.spoil("nvmlInitWithFlags", lambda: time_of_driver.sleep(math.inf) if broken.exists() else None)
    with installed(fake):
        machine = read_machine(root, time_of_driver)
    assert machine.driver.detail is not None
    assert [text.split(" ")[0] for text in machine.driver.detail.split("; ")] == [
        "nvmlDeviceGetPowerUsage",
        "nvmlInit",
    ]
    assert machine.gpus[0].power_w == whole.gpus[0].power_w
    assert machine.gpus[1].clocks_mhz == whole.gpus[1].clocks_mhz
    assert machine.missing["gpus[1].power_w.draw"] == "CRASHED"
    assert machine.missing["gpus[2].name"] == "NOT_ASKED"


def test_without_another_process_the_reason_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with installed(FakeNvml(FOUR)):
        machine = read_machine(root)
    assert (machine.driver.status, len(machine.gpus)) == ("failed", 4)
    assert "NO_CHILD_PROCESS" in (machine.driver.detail or "")
