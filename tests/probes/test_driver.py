from pathlib import Path
from typing import Any

import pytest

from gputopo.probes import DriverStop, read_tree, read_with
from gputopo.probes.nvml import NvmlAnswers
from gputopo.values.machine import Driver, DriverStatus, Gpu
from tests.kit.scenarios import SCENARIOS
from tests.kit.sysfs import write_files, write_function, write_tree

LOADED: dict[str, Any] = {"module": "550.54", "nodes": ("nvidiactl", "nvidia0")}
HUNG = DriverStop("hung", "nvmlInit", (), "did not return within 10 s")
LISTED = {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: x"}
Facts = dict[str, Any]


def facts(error: str | None = None, gpus: int = 0, **fields: Any) -> Facts:
    """What is known of a machine: NVML's error and count, and the facts of `read`."""
    return {"error": error, "gpus": gpus, **fields}


def read(
    root: Path,
    *,
    error: str | None,
    gpus: int,
    stops: tuple[DriverStop, ...] = (),
    bound: tuple[str | None, ...] = ("nvidia",),
    module: str | None = None,
    nodes: tuple[str, ...] = (),
    files: Any = (),
) -> Driver:
    """Return the driver. `bound`: the kernel drivers of the GPUs on the bus. `nodes`: the files in /dev."""
    for number, kernel in enumerate(bound):
        place = f"pci0000:00/0000:0{1 + number}:00.0"
        write_function(root, place, "10de", "20b0", "030200", kernel=kernel)
    write_files(root, {f"dev/{node}": "" for node in nodes} | dict(files))
    if module is not None:
        write_files(root / "sys/module/nvidia", {"version": module})
    listed = tuple(Gpu(index=index) for index in range(gpus))
    return read_with(root, lambda: NvmlAnswers(error, gpus=listed, counted=gpus, stops=stops)).driver


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (facts(gpus=1, **LOADED), "ok"),
        (facts(gpus=2, bound=()), "ok"),  # WSL: no PCI bus to be seen
        (facts("LIBRARY_NOT_FOUND", bound=()), "no_device"),
        (facts(gpus=0, bound=(), **LOADED), "no_device"),
        (facts("UNKNOWN", bound=(), files=LISTED, **LOADED), "failed"),
        (facts("LIBRARY_NOT_FOUND", bound=(), files=LISTED), "library_missing"),
        # No bus is seen (micro-VM, gVisor, WSL): what implies a device
        (facts("DRIVER_NOT_LOADED", bound=()), "no_device"),
        (facts("GPU_IS_LOST", bound=()), "failed"),
        (facts("LIBRARY_NOT_FOUND", bound=(), nodes=("nvidia0",)), "library_missing"),
        (facts("DRIVER_NOT_LOADED", bound=(), module=""), "no_permission"),
        (facts("HUNG", bound=(), stops=(HUNG,)), "hung"),
        (facts(gpus=4, stops=(HUNG,), **LOADED), "hung"),
        (facts("LIBRARY_NOT_FOUND", **LOADED), "library_missing"),
        (facts("DRIVER_NOT_LOADED", bound=(None,)), "not_loaded"),
        (facts("DRIVER_NOT_LOADED", module=""), "no_permission"),
        (facts("DRIVER_NOT_LOADED", **LOADED), "failed"),
        (facts("NO_PERMISSION", **LOADED), "no_permission"),
        (facts("UNKNOWN", **LOADED), "failed"),
        (facts(gpus=0, **LOADED), "failed"),
        (facts(gpus=0, **{**LOADED, "nodes": ("nvidiactl",)}), "no_permission"),
        (facts("LIBRARY_NOT_FOUND", bound=("nouveau", None)), "other_driver"),
        (facts("UNKNOWN", **{**LOADED, "bound": ("vfio-pci", "nvidia")}), "failed"),
        (facts("LIB_RM_VERSION_MISMATCH", bound=("nouveau",)), "version_mismatch"),
    ],
)
def test_faults_of_the_driver_are_distinguished(seen: Facts, status: DriverStatus, tmp_path: Path) -> None:
    driver = read(tmp_path, **seen)
    assert driver.status == status
    assert (driver.detail is None) == (status in ("ok", "no_device"))


def test_the_detail_states_what_was_seen(tmp_path: Path) -> None:
    detail = read(tmp_path, **facts("DRIVER_NOT_LOADED", bound=("nouveau", "vfio-pci"))).detail
    assert detail == (
        "NVML: DRIVER_NOT_LOADED; kernel module nvidia is not loaded; the kernel driver nouveau and vfio-pci "
        "is bound to the device; /dev/nvidiactl is not there; /dev/nvidia0 is not there"
    )


def test_facts_are_read_from_the_tree_of_a_machine(tmp_path: Path) -> None:
    write_tree(SCENARIOS["desktop"], tmp_path)
    driver = read(tmp_path, **facts("UNKNOWN", bound=()))
    assert (driver.status, driver.kernel_module_version) == ("failed", "550.163.01")
    assert driver.detail == "NVML: UNKNOWN; kernel module nvidia 550.163.01 is loaded"


def test_one_gpu_that_may_be_opened_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = facts("UNKNOWN", module="550.54", nodes=("nvidia0", "nvidia1", "nvidiactl"))
    for allowed, status in ((("nvidiactl", "nvidia1"), "failed"), (("nvidiactl",), "no_permission")):
        monkeypatch.setattr("os.access", lambda path, _, names=allowed: Path(path).name in names)
        assert read(tmp_path, **seen).status == status


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Wed Jan  1 00:00:00 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.309.01  Release Build  (dvs-builder@x)",
    ],
)
def test_the_version_of_either_kernel_module_is_read(tmp_path: Path, line: str) -> None:
    write_files(tmp_path, {"proc/driver/nvidia/version": f"{line}\nGCC version: gcc 12.2.0"})
    assert read_tree(tmp_path).driver.kernel_module_version == "535.309.01"


def test_the_version_under_sys_stands_in_for_proc(tmp_path: Path) -> None:
    assert read_tree(tmp_path).driver.kernel_module_version is None
    write_files(tmp_path, {"sys/module/nvidia/version": "390.157"})
    assert read_tree(tmp_path).driver.kernel_module_version == "390.157"
