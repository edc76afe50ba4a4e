from pathlib import Path

import pytest

from gputopo.probes import DriverStop
from gputopo.probes.driver import DriverFacts, decide, module_version, read_facts
from gputopo.probes.nvml.reading import NvmlAnswers
from gputopo.probes.pci import read_pci
from gputopo.values.machine import DriverStatus
from tests.kit.scenarios import SCENARIOS, changed
from tests.kit.sysfs import write_files, write_tree

LOADED = {"module_loaded": True, "module_version": "550.54", "control_node": "ok", "gpu_node": "ok"}


HUNG = DriverStop("hung", "nvmlInit", (), "did not return within 10 s")


def facts(**fields: object) -> DriverFacts:
    return DriverFacts(**{"bound": ("nvidia",), **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (facts(nvml_gpus=1, **LOADED), "ok"),
        (facts(nvml_gpus=2, bound=()), "ok"),  # WSL: no PCI bus to be seen
        (facts(nvml_error="LIBRARY_NOT_FOUND", bound=()), "no_device"),
        (facts(nvml_gpus=0, bound=(), **LOADED), "no_device"),
        (facts(nvml_error="UNKNOWN", bound=(), other_signs=True, **LOADED), "failed"),
        # No bus is seen (micro-VM, gVisor, WSL): what implies a device
        (facts(nvml_error="DRIVER_NOT_LOADED", bound=()), "no_device"),
        *((facts(nvml_error=one, bound=()), "failed") for one in ("GPU_IS_LOST", "UNKNOWN")),
        (facts(nvml_error="LIBRARY_NOT_FOUND", bound=(), gpu_node="ok"), "library_missing"),
        (facts(nvml_error="DRIVER_NOT_LOADED", bound=(), module_loaded=True), "no_permission"),
        (facts(nvml_error="HUNG", bound=(), stops=(HUNG,)), "hung"),
        (facts(nvml_gpus=4, stops=(HUNG,), **LOADED), "hung"),
        (facts(nvml_error="LIBRARY_NOT_FOUND", **LOADED), "library_missing"),
        (facts(nvml_error="DRIVER_NOT_LOADED", bound=(None,)), "not_loaded"),
        (facts(nvml_error="DRIVER_NOT_LOADED", module_loaded=True), "no_permission"),
        (facts(nvml_error="DRIVER_NOT_LOADED", **LOADED), "failed"),
        (facts(nvml_error="LIB_RM_VERSION_MISMATCH", **LOADED), "version_mismatch"),
        (facts(nvml_error="NO_PERMISSION", **LOADED), "no_permission"),
        (facts(nvml_error="UNKNOWN", **{**LOADED, "control_node": "denied"}), "no_permission"),
        (facts(nvml_error="UNKNOWN", **LOADED), "failed"),
        (facts(nvml_gpus=0, **LOADED), "failed"),
        (facts(nvml_gpus=0, **{**LOADED, "gpu_node": "absent"}), "no_permission"),
        (facts(nvml_error="DRIVER_NOT_LOADED", bound=("nouveau",)), "other_driver"),
        (facts(nvml_error="LIBRARY_NOT_FOUND", bound=("nouveau", None)), "other_driver"),
        (facts(nvml_error="UNKNOWN", **{**LOADED, "bound": ("vfio-pci", "nvidia")}), "failed"),
        (facts(nvml_error="LIB_RM_VERSION_MISMATCH", bound=("nouveau",)), "version_mismatch"),
    ],
)
def test_faults_of_the_driver_are_distinguished(seen: DriverFacts, status: DriverStatus) -> None:
    found, detail = decide(seen)
    assert found == status
    assert (detail is None) == (status in ("ok", "no_device"))


def test_the_detail_states_what_was_seen() -> None:
    _, detail = decide(
        facts(nvml_error="DRIVER_NOT_LOADED", bound=("nouveau", "vfio-pci"), control_node="absent")
    )
    assert detail == (
        "NVML: DRIVER_NOT_LOADED; kernel module nvidia is not loaded; the kernel driver nouveau and vfio-pci "
        "is bound to the device; /dev/nvidiactl is not there; /dev/nvidia0 is not there"
    )


def test_a_call_that_hung_is_the_detail() -> None:
    assert decide(facts(stops=(HUNG,))) == ("hung", "nvmlInit did not return within 10 s")


def test_facts_are_read_from_proc_sys_and_dev(tmp_path: Path) -> None:
    write_tree(SCENARIOS["desktop"], tmp_path)
    seen = read_facts(tmp_path, read_pci(tmp_path), NvmlAnswers("UNKNOWN"))
    assert seen == DriverFacts(
        nvml_error="UNKNOWN",
        bound=("nvidia",),
        module_loaded=True,
        module_version="550.163.01",
        control_node="ok",
        gpu_node="ok",
    )


def test_facts_of_a_machine_without_a_driver(tmp_path: Path) -> None:
    write_tree(changed(SCENARIOS["desktop"], gpus={0: {"kernel_driver": "nouveau"}}), tmp_path, driver=False)
    seen = read_facts(tmp_path, read_pci(tmp_path), NvmlAnswers("LIBRARY_NOT_FOUND"))
    assert (seen.bound, seen.module_loaded, seen.module_version) == (("nouveau",), False, None)
    assert (seen.control_node, seen.gpu_node) == ("absent", "absent")


def test_gpus_that_only_the_kernel_module_lists_are_a_sign_of_a_device(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: x"})
    assert read_facts(tmp_path, (), NvmlAnswers("UNKNOWN")).other_signs


def test_one_gpu_that_may_be_opened_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""})
    for allowed, node in (("nvidia1", "ok"), ("nvidiactl", "denied")):
        monkeypatch.setattr("os.access", lambda path, _, name=allowed: Path(path).name == name)
        assert read_facts(tmp_path, (), NvmlAnswers(None)).gpu_node == node
    assert read_facts(tmp_path / "none", (), NvmlAnswers(None)).gpu_node == "absent"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Wed Jan  1 00:00:00 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.309.01  Release Build  (dvs-builder@x)",
    ],
)
def test_the_version_of_either_kernel_module_is_read(tmp_path: Path, line: str) -> None:
    write_files(tmp_path, {"proc/driver/nvidia/version": f"{line}\nGCC version: gcc 12.2.0"})
    assert module_version(tmp_path) == "535.309.01"


def test_the_version_under_sys_stands_in_for_proc(tmp_path: Path) -> None:
    assert module_version(tmp_path) is None
    write_files(tmp_path, {"sys/module/nvidia/version": "390.157"})
    assert module_version(tmp_path) == "390.157"
