"""Compiles a library, once for each state of its sources, into a private folder of the user's cache."""

import hashlib
import os
import shutil
import stat
import subprocess
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

SOURCES = Path(__file__).parent / "src"
_FLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    "-pthread",
)


class NoCompilerError(RuntimeError):
    """gcc is missing, cannot compile a library, or there is no private folder for the library."""


def why_not() -> str | None:
    """Return the reason why the library cannot be built here, or None if it can."""
    return None if shutil.which("gcc") else "no gcc to compile the doubles of NVIDIA's libraries"


@cache
def library(folder: Path = SOURCES, name: str = "libcuda.so.1") -> Path:
    """Return the path of the library built from a folder of C files; it is the only file of its folder.

    Raises NoCompilerError.
    """
    sources = sorted(folder.glob("*.[ch]"))
    digest = hashlib.sha256(repr((name, _FLAGS)).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    path = private_folder(user_cache_path("gputopo-tests")) / digest.hexdigest()[:16] / name
    if not path.exists():
        _compile([source for source in sources if source.suffix == ".c"], path)
    return path


def private_folder(path: Path) -> Path:
    """Return the folder, created if it is missing. Nobody else may write to it, because its files are loaded.

    Raises NoCompilerError if other users can write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise NoCompilerError(f"no folder {path}: {error.strerror}; set XDG_CACHE_HOME") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NoCompilerError(f"{path} is not a folder of this user alone (mode 0700)")
    return path


def _compile(sources: list[Path], path: Path) -> None:
    reason = why_not()
    if reason:
        raise NoCompilerError(reason)
    path.parent.mkdir(exist_ok=True)
    # Several processes may build at once, so each writes its own file and renames it.
    draft = path.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        ["gcc", *_FLAGS, f"-Wl,-soname,{path.name}", "-o", str(draft), *map(str, sources), "-lm"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise NoCompilerError(f"gcc does not compile the double of {path.name}:\n{done.stderr}")
    draft.replace(path)
