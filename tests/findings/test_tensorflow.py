"""Whether TensorFlow can use a GPU: all models of the reference data, all wheels that gputopo supports."""

import pytest
from msgspec.structs import replace

from gputopo.findings import Support, find, install_support, support_of
from gputopo.reference import GpuExpectation, known_gpus
from gputopo.values.machine import Driver, Machine, TensorFlowInstall
from tests.findings.tensorflow_installs import BEFORE_PTX_8_5, BUILDS, NEWEST_CUDA, installed, machine


def support(model: str, install: TensorFlowInstall, cuda: str = NEWEST_CUDA) -> Support:
    on = machine(model, install, cuda)
    return support_of(on, on.gpus[0])


def expected_level(model: GpuExpectation, version: str) -> str:
    """The level by NVIDIA's and TensorFlow's tables, with the newest driver."""
    old = version < "2.17"
    match model.architecture:
        case "Kepler":
            return "error"
        case "Maxwell":
            return "fine" if old else "error"
        case "Pascal" | "Volta":
            return "warning" if version >= "2.20" else "fine"
        case "Blackwell":
            return "warning" if version >= "2.21" else "error"
    return "fine"


@pytest.mark.parametrize("version", BUILDS)
def test_each_model_of_the_reference_data_has_the_level_of_its_architecture(version: str) -> None:
    wrong = {
        model.name: found
        for model in known_gpus()
        if (found := support(model.name, installed(version)).level) != expected_level(model, version)
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("version", "cuda", "level"),
    [
        ("2.18.1", "12.2", "error"),
        ("2.18.1", "12.3", "fine"),
        ("2.21.0", BEFORE_PTX_8_5, "error"),
        ("2.21.0", "12.5", "fine"),
    ],
)
def test_the_driver_of_a_hopper_must_know_the_ptx_of_the_wheel(version: str, cuda: str, level: str) -> None:
    found = support("NVIDIA H100 80GB HBM3", installed(version), cuda)
    assert found.level == level
    assert found.compiles == (level == "fine")


def test_compiled_kernels_need_only_a_driver_for_the_same_major_version() -> None:
    install = installed("2.19.1")
    assert support("Tesla T4", install, "12.0").level == "fine"
    refused = support("Tesla T4", install, "11.8")
    assert refused.level == "error"
    assert "525.60.13" in refused.remedy


@pytest.mark.parametrize(
    ("model", "kernels"),
    [("NVIDIA B200", ("sm_80", "sm_100")), ("NVIDIA GeForce RTX 5090", ("sm_80", "compute_120"))],
)
def test_a_build_for_the_gpu_is_fine_whatever_its_version(model: str, kernels: tuple[str, ...]) -> None:
    container = installed("2.17.1", cuda_version="12.8", kernels=kernels)
    assert support(model, container, "12.8").level == "fine"
    assert support(model, container, "12.7").level != "error", "of such a build less is known"


def test_kernels_for_one_architecture_only_do_not_count_for_another() -> None:
    only_90a = installed("2.21.0", kernels=("sm_60", "sm_90a"))
    assert support("NVIDIA H100 80GB HBM3", only_90a) == Support()
    assert support("NVIDIA B200", only_90a).level == "error"


def test_what_is_not_known_is_not_refused() -> None:
    assert support("NVIDIA Unheard-of 9000", installed("2.21.0")) == Support()
    assert support("NVIDIA H100 80GB HBM3", TensorFlowInstall()) == Support()
    on = replace(machine("NVIDIA H100 80GB HBM3", installed("2.21.0")), driver=Driver(status="ok"))
    assert support_of(on, on.gpus[0]).level == "fine"
    assert install_support(TensorFlowInstall(is_cuda_build=True)).level == "warning"


@pytest.mark.parametrize(
    ("install", "reason", "remedy"),
    [
        (
            installed("2.21.0", missing_libraries=("libcudart.so.12", "libcublas.so.12", "libcudnn.so.9")),
            "libcudart.so.12 (package nvidia-cuda-runtime-cu12) and 2 more libraries are missing",
            "-m pip install 'tensorflow[and-cuda]==2.21.0'",
        ),
        (
            TensorFlowInstall(
                distribution="tensorflow-cpu", version="2.21.0", platform="x86_64", is_cuda_build=False
            ),
            "tensorflow-cpu 2.21.0 is built without CUDA",
            "pip uninstall -y tensorflow-cpu && ",
        ),
    ],
    ids=["no libraries", "tensorflow-cpu"],
)
def test_a_tensorflow_that_can_use_no_gpu_has_the_command_that_helps(
    install: TensorFlowInstall, reason: str, remedy: str
) -> None:
    found = install_support(install)
    assert found.level == "error"
    assert reason in found.reason
    assert remedy in found.remedy


def test_inspect_reports_all_of_it_and_no_error() -> None:
    def reported(on: Machine) -> dict[str, str]:
        ours = [finding for finding in find(on) if finding.id.startswith("tensorflow.")]
        return {finding.id: finding.severity for finding in ours}

    missing = installed("2.21.0", missing_libraries=("libcudnn.so.9",))
    unreached = installed("2.21.0", unreached_libraries=("libcusolver.so.11",))
    assert reported(machine("Tesla T4", installed("2.21.0"))) == {}
    assert reported(machine("Tesla T4", missing)) == {"tensorflow.cannot_use": "warning"}
    assert reported(machine("Tesla T4", unreached)) == {"tensorflow.unreached_library": "info"}
    assert reported(machine("Tesla K80", installed("2.21.0"))) == {"tensorflow.cannot_use": "warning"}
    assert reported(machine("NVIDIA B200", installed("2.21.0"))) == {"tensorflow.may_fail": "warning"}
    assert reported(machine("NVIDIA H200", installed("2.21.0"), count=8)) == {
        "tensorflow.first_start": "info"
    }
    assert reported(replace(machine("Tesla K80", missing), tensorflow=None)) == {}
