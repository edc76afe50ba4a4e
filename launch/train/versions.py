"""Versions of the software that a worker uses, and the commit that gputopo runs from.

This module does not load TensorFlow.
"""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gputopo import __version__

GIT_S = 5.0  # seconds until git is treated as not installed
# NCCL and cuDNN are mostly installed with TensorFlow as NVIDIA packages, one for each major version of CUDA.
_PACKAGES = {
    "keras": ("keras",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}


def worker_versions(*, gpus: bool) -> dict[str, str]:
    """Return the versions by name, without software that is not installed or has no known version.

    On `gpus`, `cuda_version` and `cudnn_version` are the versions that TensorFlow was built for; `nccl` and
    `cudnn` are the versions of the installed packages. `onednn`: on or off for ops on the CPU, if the
    environment sets it; TensorFlow's default depends on the processor.
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
        **_installed(packages),
        **(cuda if gpus else {}),
        **_onednn(),
    }


def _installed(packages: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the versions of the installed packages by name. If a name has several, the first is used."""
    versions: dict[str, str] = {}
    for name, candidates in packages.items():
        for package in candidates:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions.setdefault(name, importlib.metadata.version(package))
    return versions


def _onednn() -> dict[str, str]:
    value = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    return {} if value is None else {"onednn": "on" if value.lower() in ("1", "true") else "off"}


def cpu_flags() -> frozenset[str]:
    """Return the CPU flags that oneDNN may use, or an empty set if they are not known."""
    if _onednn().get("onednn") == "off":
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def own_commit() -> str | None:
    """Return the commit of the checkout that contains this package, or None if git does not know it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():  # it is installed elsewhere
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=GIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
