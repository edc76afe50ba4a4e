"""Versions of the software that a worker runs with, and the commit that gputopo runs from.

No TensorFlow is loaded with this module.
"""

import importlib.metadata
import os
import platform
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
    `nccl` and `cudnn` those of the installed packages. `onednn`: on or off for ops on the CPU, if the
    environment sets it; TensorFlow's default differs by processor.
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
        **(cuda if gpus else {}),
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


def _onednn() -> dict[str, str]:
    value = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    return {} if value is None else {"onednn": "on" if value.lower() in ("1", "true") else "off"}


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the flags of the CPU, as far as oneDNN may use them; empty if they are not known."""
    if _onednn().get("onednn") == "off":
        return frozenset()
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


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
