"""The environment of a process that finds the double in the place of the driver."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from tests.kit.cuda.build import library
from tests.kit.cuda.scenario import CudaSpec


def environment(
    spec: CudaSpec, folder: Path | None = None, parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Write the scenario file into `folder` and give the environment of a child. Raises NoCompilerError.

    Without a folder the file lies beside the library, under a name made of what is in it, and stays.
    The loader reads LD_LIBRARY_PATH and LD_PRELOAD only when a process starts.
    """
    path = library()
    given = dict(os.environ if parent is None else parent)
    behind = given.get("LD_LIBRARY_PATH")
    given["LD_LIBRARY_PATH"] = f"{path.parent}:{behind}" if behind else str(path.parent)
    given["LD_PRELOAD"] = str(path)
    given["FAKE_CUDA_SCENARIO"] = str(
        spec.write(_place(spec, path) if folder is None else folder / "cuda.txt")
    )
    return given


def _place(spec: CudaSpec, path: Path) -> Path:
    folder = path.parents[1] / "scenarios"
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(spec.text().encode()).hexdigest()[:16]}.txt"
