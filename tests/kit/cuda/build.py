"""Compiles the library, once for each state of its sources, and keeps it in a folder of the user's."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
_FLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-pthread", "-Wl,-soname,libcuda.so.1"),
)


class NoCompilerError(RuntimeError):
    """There is no gcc here, or it does not compile the double."""


def why_not() -> str | None:
    """Give the reason why the library cannot be built here, None if it can."""
    return None if shutil.which("gcc") else "no gcc to compile the double of libcuda.so.1"


def library() -> Path:
    """Give the path of libcuda.so.1, in a folder that holds nothing else. Raises NoCompilerError."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"gputopo-cuda-double-{os.getuid()}" / digest.hexdigest()[:16]
    path = folder / "libcuda.so.1"
    if not path.exists():
        _compile([source for source in sources if source.suffix == ".c"], path)
    return path


def _compile(sources: list[Path], path: Path) -> None:
    reason = why_not()
    if reason:
        raise NoCompilerError(reason)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may build at once: each writes a file of its own and puts it in place whole.
    draft = path.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        ["gcc", *_FLAGS, "-o", str(draft), *map(str, sources), "-lm"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise NoCompilerError(f"gcc does not compile the double of libcuda.so.1:\n{done.stderr}")
    draft.replace(path)
