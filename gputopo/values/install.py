"""Commands that install packages for the Python that runs gputopo.

gputopo itself is installed from its clone: it is not on PyPI.
"""

import shlex
import sys
from collections.abc import Sequence

# The packages that `tensorflow[and-cuda]` installs, by the libraries in them.
CUDA_PACKAGES = {
    "libcudart": "nvidia-cuda-runtime-cu12",
    "libcublas": "nvidia-cublas-cu12",
    "libcublasLt": "nvidia-cublas-cu12",
    "libcufft": "nvidia-cufft-cu12",
    "libcusolver": "nvidia-cusolver-cu12",
    "libcusparse": "nvidia-cusparse-cu12",
    "libcudnn": "nvidia-cudnn-cu12",
}
UPDATE_GPUTOPO = (
    f"update gputopo: run git pull in its clone, then {shlex.quote(sys.executable)} -m pip install ."
)


def pip_install(*requirements: str) -> str:
    """Return the shell command that installs these requirements, quoted so that it can be pasted."""
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def install_tensorflow(version: str | None = None, *, cuda: bool) -> str:
    """Return the shell command that installs TensorFlow, with its wheel's CUDA libraries if `cuda`.

    `version`: the installed version, which is kept; None: any version that gputopo supports.
    """
    return pip_install(f"tensorflow{'[and-cuda]' if cuda else ''}{f'=={version}' if version else '>=2.16'}")


def missing_libraries(libraries: Sequence[str]) -> str:
    """Return the missing CUDA libraries as a clause: the first with its package, and how many others."""
    first, *others = libraries
    package = CUDA_PACKAGES.get(first.partition(".")[0])
    named = f"{first} (package {package})" if package else first
    return f"{named} and {len(others)} more libraries are missing" if others else f"{named} is missing"
