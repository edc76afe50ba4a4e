"""The TensorFlow that the running Python would import, read without importing it.

An import takes seconds, and a process that has imported TensorFlow can no longer choose its GPUs.
"""

import ast
import contextlib
import ctypes
import mmap
import os
import platform
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from gputopo.values.machine import TensorFlowInstall

# The libraries without which TensorFlow registers no GPU, by the major version of CUDA.
CUDA_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "12": (
        "libcudart.so.12",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcufft.so.11",
        "libcusolver.so.11",
        "libcusparse.so.12",
    ),
}
# Distributions that have the package `tensorflow`.
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
LOADER_CACHE = Path("/etc/ld.so.cache")
_DEFAULT_FOLDERS = (Path("/lib64"), Path("/usr/lib64"), Path("/lib"), Path("/usr/lib"))  # ld.so(8)
_VERSION = re.compile(r"\d+(?:\.\d+)+")

# ELF with 64 bits, little-endian (elf(5)): header, program header, entry of the dynamic section.
_HEADER, _PROGRAM_HEADER, _DYNAMIC_ENTRY = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<qQ"
_ELF_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 5, 15, 29


def read_tensorflow(
    path: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ
) -> TensorFlowInstall | None:
    """Return the TensorFlow that `import tensorflow` would load, or None if there is none.

    `path`: folders of packages, as in sys.path; None: this process's folders. Never raises for a file that is
    absent or unreadable: its facts are None.
    """
    package = _package(path)
    if package is None:
        return None
    build = _build_info(package)
    libraries = _cuda_libraries(package, build, environ)
    distribution, version = _distribution(package.parent)
    kernels = build.get("cuda_compute_capabilities")
    return TensorFlowInstall(
        distribution=distribution,
        version=version,
        platform=platform.machine(),
        is_cuda_build=build.get("is_cuda_build"),
        cuda_version=build.get("cuda_version"),
        cudnn_version=_version_of_cudnn(libraries[-1].file) if libraries else None,
        kernels=tuple(map(str, kernels)) if isinstance(kernels, list | tuple) else (),
        missing_libraries=tuple(library.name for library in libraries if library.file is None)
        if libraries
        else None,
        unreached_libraries=tuple(library.name for library in libraries if library.is_unreached),
    )


def load_cuda_libraries(
    path: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Load the installed CUDA libraries that TensorFlow would not find. Return their names.

    Call it before TensorFlow looks for GPUs: the loader then uses the library that the process has loaded.
    TensorFlow 2.21.0 with its CUDA libraries from PyPI needs it: the library that opens libcusolver.so.11
    does not have that folder in its RUNPATH, so TensorFlow finds no GPU.
    """
    package = _package(path)
    if package is None:
        return ()
    loaded = []
    for library in _cuda_libraries(package, _build_info(package), environ):
        if library.is_unreached:
            with contextlib.suppress(OSError):  # TensorFlow reports what it cannot open
                ctypes.CDLL(str(library.file), mode=ctypes.RTLD_GLOBAL)
                loaded.append(library.name)
    return tuple(loaded)


class _Library(NamedTuple):
    """A library that TensorFlow opens. `is_unreached`: it is installed where the loader does not search."""

    name: str
    file: Path | None
    is_unreached: bool


def _package(path: Sequence[str] | None) -> Path | None:
    spec = PathFinder.find_spec("tensorflow", path)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _cuda_libraries(
    package: Path, build: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[_Library, ...]:
    """Return the libraries that TensorFlow needs to register a GPU, cuDNN last; () if they are unknown.

    The loader searches LD_LIBRARY_PATH, the RUNPATH of the library that opens another one, what ldconfig
    recorded, and the default folders (ld.so(8)).
    """
    names = CUDA_LIBRARIES.get(str(build.get("cuda_version")).partition(".")[0])
    cudnn = build.get("cudnn_version")
    openers = [
        *package.glob("libtensorflow_framework.so*"),
        package / "python/_pywrap_tensorflow_internal.so",
    ]
    run_path = next((folders for file in openers if (folders := _run_path(file))), None)
    if names is None or cudnn is None or run_path is None:
        return ()
    from_environment = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = [*from_environment, *run_path, *_DEFAULT_FOLDERS]
    from_packages = sorted(package.parent.glob("nvidia/*/lib"))
    try:
        cache = LOADER_CACHE.read_bytes()
    except OSError:
        cache = b""
    libraries = []
    for name in (*names, f"libcudnn.so.{str(cudnn).partition('.')[0]}"):
        file = _file_in(folders, name) or _file_in_cache(cache, name)
        installed = file or _file_in(from_packages, name)
        libraries.append(_Library(name, installed, is_unreached=installed is not file))
    return tuple(libraries)


def _file_in(folders: Iterable[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def _file_in_cache(cache: bytes, name: str) -> Path | None:
    """Return the file that ldconfig recorded. Its cache contains the paths as NUL-terminated strings."""
    end = cache.find(f"/{name}\0".encode())
    return None if end < 0 else Path(os.fsdecode(cache[cache.rfind(b"\0", 0, end) + 1 : end]), name)


def _build_info(package: Path) -> dict[str, Any]:
    """Return the literal in `build_info = collections.OrderedDict([(name, value), ...])`, or nothing."""
    try:
        tree = ast.parse((package / "python/platform/build_info.py").read_text(encoding="utf-8"))
        values = [node.value for node in tree.body if isinstance(node, ast.Assign)]
        calls = [value for value in values if isinstance(value, ast.Call) and value.args]
        return dict(ast.literal_eval(calls[-1].args[0]))
    except (OSError, SyntaxError, ValueError, TypeError, IndexError):
        return {}


def _distribution(site_packages: Path) -> tuple[str | None, str | None]:
    """Return the name and version of the distribution that installed TensorFlow, if pip recorded it.

    importlib.metadata can do this too, but takes 10 ms to load.
    """
    for name in _DISTRIBUTIONS:
        prefix = f"{name.replace('-', '_')}-"
        for folder in sorted(site_packages.glob(f"{prefix}*.dist-info")):
            return name, folder.name.removeprefix(prefix).removesuffix(".dist-info")
    return None, None


def _version_of_cudnn(library: Path | None) -> str | None:
    """Return cuDNN's version: from its PyPI package, or from the name of the file that its link points to."""
    if library is None:
        return None
    for folder in library.parent.glob("../../../nvidia_cudnn_cu*.dist-info"):
        return folder.name.removesuffix(".dist-info").rpartition("-")[2]
    match = _VERSION.search(os.path.realpath(library).rpartition(".so.")[2])
    return match and match[0]


def _run_path(file: Path) -> list[Path]:
    """Return the folders in a library's RPATH and RUNPATH; none if the library cannot be read."""
    origin = str(file.parent)
    texts = [text.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for text in _run_path_texts(file)]
    words = dict.fromkeys(word for text in texts for word in text.split(":") if word)
    return [Path(os.path.normpath(word)) for word in words]


def _run_path_texts(file: Path) -> Iterator[str]:
    """Yield RPATH and RUNPATH from an ELF file's dynamic section; nothing if it is not such a file."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(_ELF_64_LITTLE_ENDIAN)] != _ELF_64_LITTLE_ENDIAN:
                return
            header = struct.unpack_from(_HEADER, data)
            start, size, count = header[5], header[9], header[10]
            segments = [struct.unpack_from(_PROGRAM_HEADER, data, start + size * n) for n in range(count)]
            entries = dict[int, list[int]]()
            for kind, _, offset, _, _, length, *_ in segments:
                if kind == _PT_DYNAMIC:
                    for tag, value in struct.iter_unpack(_DYNAMIC_ENTRY, data[offset : offset + length]):
                        entries.setdefault(tag, []).append(value)
            (address,) = entries.get(_DT_STRTAB, [0])
            strings = next(
                offset + address - virtual
                for kind, _, offset, virtual, _, length, *_ in segments
                if kind == _PT_LOAD and virtual <= address < virtual + length
            )
            for tag in (_DT_RPATH, _DT_RUNPATH):
                for value in entries.get(tag, ()):
                    first = strings + value
                    yield data[first : data.find(b"\0", first)].decode(errors="replace")
    except (OSError, ValueError, struct.error, StopIteration):
        return
