"""Processes that find the double instead of the driver."""

import atexit
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from tests.kit.cuda.build import library
from tests.kit.cuda.scenario import CudaSpec
from tests.kit.forks import Done, Program, Server


def run_program(spec: CudaSpec, *arguments: str, given: bytes = b"", timeout_s: float = 100.0) -> Done:
    """Run `-m MODULE ARGUMENTS` on a box in a separate process, a fork; see `forks`."""
    with tempfile.TemporaryDirectory() as folder:
        return _server().run(arguments, environment(spec, Path(folder)), timeout_s, given)


@contextmanager
def started(spec: CudaSpec, *arguments: str, out: int) -> Iterator[tuple[Program, IO[str]]]:
    """Start a program on a box; return it and what it writes to stderr. `out`: file for its stdout."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _server().started(arguments, environment(spec, Path(folder)), out) as program,
    ):
        yield program


@cache
def _server() -> Server:
    server = Server(["tests.kit.cuda.preloaded"], _found_first(os.environ))
    assert server.threads == 1
    atexit.register(server.end)
    return server


def environment(
    spec: CudaSpec, folder: Path | None = None, parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Write the scenario file into `folder` and return the environment of a child. Raises NoCompilerError.

    Without a folder, the file is next to the library, under a name made from its contents, and is kept.
    """
    given = _found_first(os.environ if parent is None else parent)
    file = _place(spec) if folder is None else folder / "cuda.txt"
    return {**given, "FAKE_CUDA_SCENARIO": str(spec.write(file))}


def _found_first(parent: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for the loader, which reads it only when a process starts."""
    path = library()
    behind = parent.get("LD_LIBRARY_PATH")
    folders = f"{path.parent}:{behind}" if behind else str(path.parent)
    return {**parent, "LD_LIBRARY_PATH": folders, "LD_PRELOAD": str(path)}


def _place(spec: CudaSpec) -> Path:
    folder = library().parents[1] / "scenarios"
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(spec.text().encode()).hexdigest()[:16]}.txt"
