import importlib.metadata
import json
import subprocess
import sys

import pytest

CODE = """
import importlib.metadata, json
from gputopo.launch.core.versions import installed, worker_versions
def absent(name):
    if name != "b":
        raise importlib.metadata.PackageNotFoundError(name)
    return "2.0"
print(json.dumps([worker_versions(), installed({"x": ("a", "b"), "y": ("c",)}, absent)]))
"""


@pytest.mark.tensorflow
def test_a_worker_tells_the_versions_of_all_that_computes() -> None:
    """Also: of packages by one name the one that is installed counts, and none is left out silently."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True
    )
    versions, installed = json.loads(done.stdout.splitlines()[-1])
    assert versions["tensorflow"] == importlib.metadata.version("tensorflow")
    assert versions["keras"] == importlib.metadata.version("keras")
    assert versions["onednn"] in ("on", "off")
    assert {"gputopo", "python"} <= set(versions)
    assert installed == {"x": "2.0"}
