"""Batch scripts of `--format sbatch`, as Slurm and a linter of shell scripts take them."""

import subprocess
from pathlib import Path

import pytest

from tests.starters.cluster import Cluster
from tests.starters.runs import GPUTOPO, environ

pytestmark = pytest.mark.starters

RUN = (*GPUTOPO, "run", "--from", "dgx1-p100", "--dry-run", "--format", "sbatch", "--model", "resnet50")


@pytest.mark.parametrize(
    "words",
    [
        ("--num-hosts", "2", "--num-gpus", "4"),
        ("--num-hosts", "3"),
        ("--hosts", "n[1-2]", "--gpus", "0,2"),
        ("--num-gpus", "2"),
        ("--gpus", "1-4", "--sbatch-option", "time=1:00:00"),
    ],
)
def test_slurm_and_shellcheck_take_a_batch_script(
    hosts: Cluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    code, script, err = hosts.start([*RUN, *words], environ(tmp_path)).ended()
    assert code == 0, err
    assert "--cpus-per-gpu=" in script or "--exclusive" in script
    assert "--mem-per-gpu=" in script or "--mem=0" in script
    assert "SBATCH --time=" in script
    file = tmp_path / "job.sh"
    file.write_text(script)
    checked = subprocess.run(["shellcheck", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    command = hosts.command("head", ["sbatch", "--test-only", str(file)])
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
