"""What is read of an installed TensorFlow, without importing it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes import read_tensorflow
from gputopo.values.machine import TensorFlowInstall
from tests.kit.cuda.build import why_not
from tests.kit.cuda_libraries import ALL, with_cuda_libraries
from tests.launch import tensorflow_builds as builds

needs_gcc = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
NOWHERE: dict[str, str] = {}


@pytest.fixture(autouse=True)
def loader_cache(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What ldconfig recorded: libraries of this machine do not count."""
    contents, read_bytes = [b""], Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: contents[0] if path.name == "ld.so.cache" else read_bytes(path)
    )
    return contents


def build_info(build: Any) -> str:
    pairs = sorted(build.items())
    return (
        f'\n# License\n"""Module."""\nimport collections\n\nbuild_info = collections.OrderedDict({pairs!r})\n'
    )


def library(file: Path, *, run_path: str = "", soname: str = "") -> None:
    """Compile a library without any code."""
    options = [f"-Wl,-rpath,{run_path}", "-Wl,--enable-new-dtags"] if run_path else []
    options += [f"-Wl,-soname,{soname}"] if soname else []
    file.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "/dev/null", "-o", file, *options], check=True, capture_output=True
    )


def install(
    folder: Path,
    build: Any = builds.TENSORFLOW_2_21,
    name: str = "tensorflow-2.21.0",
    run_path: str = "$ORIGIN",
) -> Path:
    """Write what is read of a TensorFlow into a folder of packages."""
    package = folder / "tensorflow"
    (package / "python/platform").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "python/platform/build_info.py").write_text(build_info(build))
    (folder / f"{name}.dist-info").mkdir()
    library(package / "libtensorflow_framework.so.2", run_path=run_path)
    return folder


def read(folder: Path, environ: dict[str, str] = NOWHERE) -> TensorFlowInstall:
    found = read_tensorflow([str(folder)], environ)
    assert found is not None
    return found


def test_a_python_without_tensorflow_has_none(tmp_path: Path) -> None:
    assert read_tensorflow([str(tmp_path)], NOWHERE) is None


@needs_gcc
@pytest.mark.parametrize(
    ("build", "name", "cudnn"),
    [
        (builds.TENSORFLOW_2_16, "tensorflow-2.16.2", "libcudnn.so.8"),
        (builds.TENSORFLOW_2_21, "tf_nightly-2.22.0.dev20260308", "libcudnn.so.9"),
    ],
)
def test_a_wheel_with_cuda_names_the_libraries_that_it_does_not_find(
    tmp_path: Path, build: Any, name: str, cudnn: str
) -> None:
    found = read(install(tmp_path, build, name))
    assert f"{found.distribution}-{found.version}".replace("-", "_") == name.replace("-", "_")
    assert found.is_cuda_build
    assert found.cuda_version == build["cuda_version"]
    assert found.kernels == tuple(build["cuda_compute_capabilities"])
    assert found.missing_libraries == (*ALL[:-1], cudnn)
    assert found.unreached_libraries == ()


@needs_gcc
def test_a_wheel_without_cuda_is_one(tmp_path: Path) -> None:
    found = read(install(tmp_path, builds.TENSORFLOW_CPU_2_21, "tensorflow_cpu-2.21.0"))
    assert (found.distribution, found.version) == ("tensorflow-cpu", "2.21.0")
    assert found.is_cuda_build is False
    assert found.missing_libraries is None


@needs_gcc
def test_libraries_count_wherever_the_loader_looks(tmp_path: Path, loader_cache: list[bytes]) -> None:
    folder = install(tmp_path / "packages", run_path=f"/nowhere:{tmp_path}/conda/lib")
    by_environment, by_run_path, by_ldconfig = ALL[:2], ALL[2:4], ALL[4:]
    environ = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}/modules"}
    for name, place in {
        **dict.fromkeys(by_environment, "modules"),
        **dict.fromkeys(by_run_path, "conda/lib"),
    }.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).touch()
    assert read(folder, environ).missing_libraries == by_ldconfig
    strings = b"".join(f"/usr/local/cuda/lib64/{name}\0".encode() for name in by_ldconfig)
    loader_cache[0] = b"glibc-ld.so.cache1.1\0\0\1" + strings
    assert read(folder, environ).missing_libraries == ()
    assert read(folder, environ).unreached_libraries == ()


@needs_gcc
def test_packages_outside_of_the_run_path_are_installed_but_not_reached(tmp_path: Path) -> None:
    """As the wheel of 2.21.0, which does not name the folder of libcusolver."""
    reached = [
        f"$ORIGIN/../nvidia/{name}/lib" for name in ("cuda_runtime", "cublas", "cufft", "cusparse", "cudnn")
    ]
    folder = install(tmp_path, run_path=":".join(reached))
    for name, package in {
        "libcudart.so.12": "cuda_runtime",
        "libcublas.so.12": "cublas",
        "libcublasLt.so.12": "cublas",
        "libcufft.so.11": "cufft",
        "libcusolver.so.11": "cusolver",
        "libcusparse.so.12": "cusparse",
        "libcudnn.so.9": "cudnn",
    }.items():
        (tmp_path / "nvidia" / package / "lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / package / "lib" / name).touch()
    (tmp_path / "nvidia_cudnn_cu12-9.28.0.42.dist-info").mkdir()
    found = read(folder)
    assert found.missing_libraries == ()
    assert found.unreached_libraries == ("libcusolver.so.11",)
    assert found.cudnn_version == "9.28.0.42"


LOADS = """
import ctypes, sys
from gputopo.probes import load_cuda_libraries
try:
    ctypes.CDLL("libcusolver.so.11")
except OSError:
    print(*load_cuda_libraries([sys.argv[1]]))
    ctypes.CDLL("libcusolver.so.11")
    print("found")
"""


@needs_gcc
def test_a_library_that_is_not_reached_is_found_once_it_is_loaded(tmp_path: Path) -> None:
    others = with_cuda_libraries(tmp_path / "cuda", without=["libcusolver.so.11"])
    folder = install(tmp_path / "packages", run_path=str(tmp_path / "cuda"))
    library(folder / "nvidia/cusolver/lib/libcusolver.so.11", soname="libcusolver.so.11")
    assert others
    done = subprocess.run(
        [sys.executable, "-c", LOADS, folder], env={"PATH": ""}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["libcusolver.so.11", "found"], done.stderr


@needs_gcc
def test_of_a_cuda_that_is_not_known_nothing_is_missing(tmp_path: Path) -> None:
    found = read(install(tmp_path, {**builds.TENSORFLOW_2_21, "cuda_version": "14.0"}))
    assert found.missing_libraries is None


@given(data=st.binary(max_size=300), keeps=st.integers(0, 200))
def test_damaged_files_are_never_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, keeps: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    package = folder / "tensorflow"
    (package / "python/platform").mkdir(parents=True)
    (package / "__init__.py").touch()
    text = build_info(builds.TENSORFLOW_2_21).encode()
    (package / "python/platform/build_info.py").write_bytes(text[: len(text) - keeps] + data)
    (package / "libtensorflow_framework.so.2").write_bytes(b"\x7fELF\x02\x01" + data)
    read(folder)
