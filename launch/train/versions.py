"""Versions of the software that a worker runs with, and the commit that gputopo runs from.

No TensorFlow is loaded with this module.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from gputopo import __version__

GIT_S = 5.0  # seconds until git counts as not there
# NCCL and cuDNN mostly come with TensorFlow as packages of NVIDIA's, one for each major version of CUDA.
_PACKAGES = {
    "keras": ("keras",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}


def worker_versions(*, gpus: bool) -> dict[str, str]:
    """Return the versions by name; what is not installed or unknown is left out.

    Where it trains on `gpus`, `cuda_version` and `cudnn_version` are those that TensorFlow was built for,
    `nccl` and `cudnn` those that are loaded, or else those of the installed packages (NCCL is loaded when it
    is first used). `onednn`: on or off for ops on the CPU, if the environment sets it; TensorFlow's default
    differs by processor.
    """
    import tensorflow as tf

    built = tf.sysconfig.get_build_info()
    cuda = {key: str(built[key]) for key in ("cuda_version", "cudnn_version") if built.get(key)}
    packages = _PACKAGES if gpus else {"keras": _PACKAGES["keras"]}
    commit = own_commit()
    return {
        "gputopo": __version__,
        **({} if commit is None else {"commit": commit}),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        **installed(packages, importlib.metadata.version),
        **(loaded(Path("/proc/self/maps").read_text(errors="replace")) | cuda if gpus else {}),
        **_onednn(),
    }


def installed(packages: Mapping[str, tuple[str, ...]], version: Callable[[str], str]) -> dict[str, str]:
    """Return the versions of the installed packages; of several by one name the first."""
    found: dict[str, str] = {}
    for name, candidates in packages.items():
        for package in candidates:
            try:
                found.setdefault(name, version(package))
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def loaded(maps: str) -> dict[str, str]:
    """Return the versions that NCCL and cuDNN report, where they are loaded.

    `maps`: mappings of this process, as in /proc/self/maps; no library is loaded for this.
    """
    found: dict[str, str] = {}
    for name, (library, ask) in _LIBRARIES.items():
        path = next((line.split(maxsplit=5)[-1] for line in maps.splitlines() if library.search(line)), None)
        if path is None:
            continue
        try:
            found[name] = ask(ctypes.CDLL(path))
        except (OSError, AttributeError):  # replaced on the disk, or not that library
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
    value = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    return {} if value is None else {"onednn": "on" if value.lower() in ("1", "true") else "off"}


def own_commit() -> str | None:
    """Return the commit of the checkout that this package lies in, None if it is installed elsewhere."""
    root = Path(__file__).resolve().parents[2]
    return commit_of(root) if (root / "pyproject.toml").is_file() else None


def commit_of(root: Path) -> str | None:
    """Return the commit that is checked out in this folder, None if git does not know."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=GIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
