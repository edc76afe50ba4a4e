"""Installed TensorFlows, and machines that have them."""

from typing import Any

from msgspec.structs import replace

from gputopo.values.machine import Driver, Gpu, Machine, TensorFlowInstall
from tests.launch import tensorflow_builds as builds

BUILDS = {
    "2.16.2": builds.TENSORFLOW_2_16,
    "2.17.1": builds.TENSORFLOW_2_17,
    "2.18.1": builds.TENSORFLOW_2_18,
    "2.19.1": builds.TENSORFLOW_2_19,
    "2.20.0": builds.TENSORFLOW_2_20,
    "2.21.0": builds.TENSORFLOW_2_21,
}
# What pip installs with `and-cuda` in November 2026.
CUDNN = {"2.16.2": "8.9.7.29", "2.17.1": "8.9.7.29", "2.18.1": "9.3.0.75", "2.19.1": "9.3.0.75"}
NEWEST_CUDNN = "9.28.0.42"
NEWEST_CUDA = "13.1"
BEFORE_PTX_8_5 = "12.4"


def installed(version: str, **facts: Any) -> TensorFlowInstall:
    build = BUILDS[version]
    whole = TensorFlowInstall(
        distribution="tensorflow",
        platform="x86_64",
        version=version,
        is_cuda_build=build["is_cuda_build"],
        cuda_version=build["cuda_version"],
        cudnn_version=CUDNN.get(version, NEWEST_CUDNN),
        kernels=tuple(build["cuda_compute_capabilities"]),
        missing_libraries=(),
    )
    return replace(whole, **facts)


def machine(model: str, install: TensorFlowInstall, cuda: str = NEWEST_CUDA, count: int = 1) -> Machine:
    gpus = tuple(Gpu(index=index, name=model) for index in range(count))
    driver = Driver(status="ok", version="580.65.06", cuda_version=cuda)
    return Machine(source="live", driver=driver, gpus=gpus, tensorflow=install)


def with_each_fault() -> list[Machine]:
    """Return a machine for each of the findings about TensorFlow."""
    missing = installed("2.21.0", missing_libraries=("libcudnn.so.9",))
    unreached = installed("2.21.0", unreached_libraries=("libcusolver.so.11",))
    models = ("Tesla K80", "NVIDIA B200", "NVIDIA H200")
    whole = [machine("Tesla T4", install) for install in (missing, unreached)]
    return [*whole, *(machine(model, installed("2.21.0")) for model in models)]
