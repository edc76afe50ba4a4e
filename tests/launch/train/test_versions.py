import importlib.metadata
from pathlib import Path

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

CODE = """
import json, sys
from gputopo.launch.train import worker_versions
sys.path.insert(0, sys.argv[1])
print(json.dumps([worker_versions(gpus=gpus) for gpus in (False, True)]))
"""


def test_a_worker_reports_the_versions_of_all_that_computes(tmp_path: Path) -> None:
    """Also: of packages by one name the one that is installed counts."""
    package = tmp_path / "nvidia_nccl_cu12-2.99.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.99\n")
    versions, on_gpus = answer_of("-c", CODE, str(tmp_path))
    assert versions["tensorflow"] == importlib.metadata.version("tensorflow")
    assert versions["keras"] == importlib.metadata.version("keras")
    assert versions["onednn"] == "on"
    assert {"gputopo", "python"} <= set(versions)
    assert not {"cuda_version", "cudnn_version", "nccl", "cudnn"} & set(versions)  # no GPU computes
    assert on_gpus["nccl"] == "2.99"
