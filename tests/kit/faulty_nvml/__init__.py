"""A libnvidia-ml.so.1 of four GPUs in which one call hangs, crashes, refuses or returns garbage (`nvml.c`).

pynvml finds it in a process that is started with `environment()`; FAULTY_NVML selects the fault. The GPUs are
the GPUs of the scenario `four`, with far fewer facts.
"""

import os
from pathlib import Path

from tests.kit.cuda.build import library

SCENARIO = "four"
FAULT = "FAULTY_NVML"


def environment() -> dict[str, str]:
    """Return the environment of a process that finds the library. Raises NoCompilerError."""
    path = library(Path(__file__).parent, "libnvidia-ml.so.1")
    behind = os.environ.get("LD_LIBRARY_PATH")
    folders = f"{path.parent}:{behind}" if behind else str(path.parent)
    return {**os.environ, "LD_LIBRARY_PATH": folders}
