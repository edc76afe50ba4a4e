"""Which software a worker computes with. TensorFlow loads with this module."""

import ctypes
import importlib.metadata
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from gputopo import __version__
from gputopo.launch.train.checkout import own_commit

# NCCL and cuDNN mostly come with TensorFlow as packages of NVIDIA's, one for each major version of CUDA.
_PACKAGES = {
    "keras": ("keras",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}


def worker_versions() -> dict[str, str]:
    """Give the versions by name; what is not there or not known is left out.

    `cuda_version` and `cudnn_version` are those that TensorFlow was built for; `nccl` and `cudnn` those that
    are loaded, or else those of the installed packages (NCCL is loaded when it is first used). `onednn`: on
    or off, for ops on the CPU.
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
        **loaded(Path("/proc/self/maps").read_text(errors="replace")),
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


def loaded(maps: str) -> dict[str, str]:
    """Give the versions that NCCL and cuDNN themselves tell, where they are loaded.

    `maps`: what is mapped into this process, as in /proc/self/maps; nothing is loaded for being asked.
    """
    found: dict[str, str] = {}
    for name, (library, ask) in _LIBRARIES.items():
        path = next((line.split(maxsplit=5)[-1] for line in maps.splitlines() if library.search(line)), None)
        if path is None:
            continue
        try:
            found[name] = ask(ctypes.CDLL(path))
        except (OSError, AttributeError):  # it was replaced on the disk, or is no such library
            continue
    return found


def _nccl(library: ctypes.CDLL) -> str:
    """Ask `ncclGetVersion`: 22005 is 2.20.5; before 2.9 there were fewer digits, 2804 is 2.8.4."""
    number = ctypes.c_int(0)
    library.ncclGetVersion(ctypes.byref(number))
    scale = 10_000 if number.value >= 10_000 else 1_000
    major, rest = divmod(number.value, scale)
    return f"{major}.{rest // 100}.{rest % 100}"


def _cudnn(library: ctypes.CDLL) -> str:
    """Ask `cudnnGetVersion`: 90300 is 9.3.0; before 9 there were fewer digits, 8907 is 8.9.7."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    scale = 10_000 if number >= 10_000 else 1_000
    major, rest = divmod(number, scale)
    return f"{major}.{rest // 100}.{rest % 100}"


_LIBRARIES = {
    "nccl": (re.compile(r"/libnccl\.so[.\d]*$"), _nccl),
    "cudnn": (re.compile(r"/libcudnn\.so[.\d]*$"), _cudnn),
}


def _onednn() -> dict[str, str]:
    """Ask TensorFlow itself: the default of TF_ENABLE_ONEDNN_OPTS differs by platform."""
    try:
        from tensorflow.python.util import _pywrap_util_port  # has no public name
    except ImportError:
        return {}
    return {"onednn": "on" if _pywrap_util_port.IsMklEnabled() else "off"}
