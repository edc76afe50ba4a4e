import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.train.versions import commit_of, own_commit
from tests.launch.forks import run_program

CODE = """
import importlib.metadata, json
from gputopo.launch.train.versions import installed, worker_versions
def absent(name):
    if name != "b":
        raise importlib.metadata.PackageNotFoundError(name)
    return "2.0"
print(json.dumps([worker_versions(), installed({"x": ("a", "b"), "y": ("c",)}, absent)]))
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
    assert installed == {"x": "2.0"}


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(root: Path, files: dict[str, str], folder: str = ".git") -> Path:
    for name, text in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"},
        {"HEAD": "ref: a\n", "a": "ref: b\n", "b": COMMIT},
    ],
    ids=["detached", "loose", "packed", "chain"],
)
def test_the_commit_is_read_as_git_keeps_it(files: dict[str, str], tmp_path: Path) -> None:
    assert commit_of(git(tmp_path, files)) == COMMIT


def test_a_work_tree_beside_the_repository_is_understood(tmp_path: Path) -> None:
    git(tmp_path, {"refs/heads/side": COMMIT}, "main/.git")
    git(tmp_path, {"HEAD": "ref: refs/heads/side\n", "commondir": "../..\n"}, "main/.git/worktrees/side")
    (tmp_path / "side").mkdir()
    (tmp_path / "side/.git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/side\n")
    assert commit_of(tmp_path / "side") == COMMIT


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"HEAD": "ref: refs/heads/none\n"},
        {"HEAD": "ref: a\n", "a": "ref: a\n"},
        {"HEAD": "\n", "packed-refs": "nothing\n"},
    ],
    ids=["no-repository", "no-branch", "circle", "empty"],
)
def test_where_it_is_unknown_there_is_none(files: dict[str, str], tmp_path: Path) -> None:
    assert commit_of(git(tmp_path, files)) is None


def test_our_own_is_a_commit_or_not_known() -> None:
    own = own_commit()
    assert own is None or len(own) in (40, 64)
