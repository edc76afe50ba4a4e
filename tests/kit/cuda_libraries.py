"""The files of CUDA libraries without contents: gputopo looks for them but does not load them."""

import os
from collections.abc import Collection
from pathlib import Path

ALL = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)


def with_cuda_libraries(folder: Path, *, without: Collection[str] = ()) -> dict[str, str]:
    """Write the files that TensorFlow needs; return the environment in which the loader finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ALL:
        if name not in without:
            (folder / name).touch()
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{before}" if before else str(folder)}
