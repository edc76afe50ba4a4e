import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.train.versions import commit_of
from tests.launch.forks import run_program

CODE = """
import importlib.metadata, json
from gputopo.launch.train.versions import installed, worker_versions
def absent(name):
    if name != "b":
        raise importlib.metadata.PackageNotFoundError(name)
    return "2.0"
print(json.dumps([worker_versions(gpus=False), installed({"x": ("a", "b"), "y": ("c",)}, absent)]))
"""


LOADED = """
import ctypes, json, sys
from pathlib import Path
from gputopo.launch.train.versions import loaded
before = loaded(Path("/proc/self/maps").read_text())
libraries = [ctypes.CDLL(path) for path in sys.argv[1:]]
print(json.dumps([before, loaded(Path("/proc/self/maps").read_text())]))
"""


def compiled(path: Path, body: str) -> str:
    source = path.with_suffix(".c")
    source.write_text(f"#include <stddef.h>\n{body}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return str(path)


@pytest.mark.parametrize(
    ("nccl", "cudnn", "reported"),
    [
        (22005, 90300, ("2.20.5", "9.3.0")),
        (2804, 8907, ("2.8.4", "8.9.7")),
        (23007, 91002, ("2.30.7", "9.10.2")),
    ],
)
def test_libraries_that_are_loaded_report_their_versions_themselves(
    tmp_path: Path, nccl: int, cudnn: int, reported: tuple[str, str]
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    libraries = [
        compiled(folder / "libnccl.so.2", f"int ncclGetVersion(int *to) {{ *to = {nccl}; return 0; }}"),
        compiled(folder / "libcudnn.so.9", f"size_t cudnnGetVersion(void) {{ return {cudnn}; }}"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *libraries], capture_output=True, text=True, timeout=120, check=True
    )
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert before == {}
    assert after == {"nccl": reported[0], "cudnn": reported[1]}


@pytest.mark.tensorflow
def test_a_worker_reports_the_versions_of_all_that_computes() -> None:
    """Also: of packages by one name the one that is installed counts, and none is left out silently."""
    done = run_program("-c", CODE)
    versions, installed = json.loads(done.stdout.splitlines()[-1])
    assert versions["tensorflow"] == importlib.metadata.version("tensorflow")
    assert versions["keras"] == importlib.metadata.version("keras")
    assert versions["onednn"] == "on"
    assert {"gputopo", "python"} <= set(versions)
    assert not {"cuda_version", "cudnn_version", "nccl", "cudnn"} & set(versions)  # no GPU computes
    assert installed == {"x": "2.0"}


def test_the_commit_is_the_one_that_is_checked_out(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    assert commit_of(tmp_path) is None
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert len(commit_of(tmp_path) or "") == 40
