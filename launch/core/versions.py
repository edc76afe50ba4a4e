"""Which software a worker computes with. TensorFlow loads with this module."""

import importlib.metadata
import platform
from collections.abc import Callable, Mapping

import tensorflow as tf

from gputopo import __version__
from gputopo.checkout import own_commit

# NCCL and cuDNN come with TensorFlow as packages of NVIDIA's, one for each major version of CUDA.
_PACKAGES = {
    "keras": ("keras",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}


def worker_versions() -> dict[str, str]:
    """Give the versions by name; what is not there or not known is left out.

    `cuda_version` and `cudnn_version` are those that TensorFlow was built for; `nccl` and `cudnn` those of
    the installed packages. `onednn`: on or off, for ops on the CPU.
    """
    built = tf.sysconfig.get_build_info()
    told = {key: str(built[key]) for key in ("cuda_version", "cudnn_version") if built.get(key)}
    commit = own_commit()
    return {
        "gputopo": __version__,
        **({} if commit is None else {"commit": commit}),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        **installed(_PACKAGES, importlib.metadata.version),
        **told,
        **_onednn(),
    }


def installed(packages: Mapping[str, tuple[str, ...]], version: Callable[[str], str]) -> dict[str, str]:
    """Give the versions of those packages that are installed; of several by one name the first."""
    found: dict[str, str] = {}
    for name, candidates in packages.items():
        for package in candidates:
            try:
                found.setdefault(name, version(package))
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def _onednn() -> dict[str, str]:
    """Ask TensorFlow itself: the default of TF_ENABLE_ONEDNN_OPTS differs by platform."""
    try:
        from tensorflow.python.util import _pywrap_util_port  # has no public name
    except ImportError:
        return {}
    return {"onednn": "on" if _pywrap_util_port.IsMklEnabled() else "off"}
