import importlib.metadata
import json
import subprocess
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
