"""Build information of TensorFlow's published wheels for Linux and CPython 3.11.

Each constant has the values of `build_info` in `tensorflow/python/platform/build_info.py` of one wheel. Patch
releases that have the same values share a constant: 2.16.1 and 2.16.2, 2.17.0 and 2.17.1, 2.18.0 and 2.18.1,
2.19.0 and 2.19.1.
"""

from typing import Final, NotRequired, TypedDict


class BuildInfo(TypedDict):
    """What `tf.sysconfig.get_build_info()` returns; a build without CUDA has only the three flags.

    `cuda_compute_capabilities`: `sm_XY` has machine code of capability X.Y; `compute_XY` has PTX too.
    `cudnn_version`: the major version.
    """

    is_cuda_build: bool
    is_rocm_build: bool
    is_tensorrt_build: bool
    cpu_compiler: NotRequired[str]
    cuda_compute_capabilities: NotRequired[list[str]]
    cuda_version: NotRequired[str]
    cudnn_version: NotRequired[str]


TENSORFLOW_2_16: Final[BuildInfo] = {
    "cpu_compiler": "/usr/lib/llvm-17/bin/clang",
    "cuda_compute_capabilities": ["sm_50", "sm_60", "sm_70", "sm_80", "compute_90"],
    "cuda_version": "12.3",
    "cudnn_version": "8",
    "is_cuda_build": True,
    "is_rocm_build": False,
    "is_tensorrt_build": True,
}

TENSORFLOW_2_17: Final[BuildInfo] = {
    "cpu_compiler": "/usr/lib/llvm-17/bin/clang",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
    "cuda_version": "12.3",
    "cudnn_version": "8",
    "is_cuda_build": True,
    "is_rocm_build": False,
    "is_tensorrt_build": True,
}

TENSORFLOW_2_18: Final[BuildInfo] = {
    "cpu_compiler": "/usr/lib/llvm-18/bin/clang",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "is_cuda_build": True,
    "is_rocm_build": False,
    "is_tensorrt_build": False,
}

TENSORFLOW_2_19: Final[BuildInfo] = {
    "cpu_compiler": "/usr/lib/llvm-18/bin/clang",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "is_cuda_build": True,
    "is_rocm_build": False,
    "is_tensorrt_build": False,
}

TENSORFLOW_2_20: Final[BuildInfo] = {
    "cpu_compiler": "clang 18",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "is_cuda_build": True,
    "is_rocm_build": False,
    "is_tensorrt_build": False,
}

TENSORFLOW_2_21: Final[BuildInfo] = {
    "cpu_compiler": "clang",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "is_cuda_build": True,
    "is_rocm_build": False,
    "is_tensorrt_build": False,
}

TENSORFLOW_CPU_2_21: Final[BuildInfo] = {
    "is_cuda_build": False,
    "is_rocm_build": False,
    "is_tensorrt_build": False,
}
