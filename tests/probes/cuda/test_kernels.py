"""The kernels' text: ptxas takes it for every chip that it knows."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gputopo.probes.cuda.kernels import KERNELS, PTX, grid

_CHIPS = ("50", "60", "70", "75", "80", "90", "100", "120")


def test_every_kernel_is_there_once_and_the_target_is_the_oldest() -> None:
    for name in KERNELS:
        assert PTX.count(f".visible .entry {name}(") == 1
    assert ".version 6.4" in PTX
    assert ".target sm_50" in PTX
    assert PTX.isascii()


@pytest.mark.parametrize("chip", _CHIPS)
def test_the_assembler_takes_the_kernels(chip: str, tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas here")
    (tmp_path / "k.ptx").write_text(PTX)
    command = [ptxas, f"-arch=sm_{chip}", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "is not defined for option 'gpu-name'" in done.stderr:
        pytest.skip(f"this ptxas does not know sm_{chip}")
    assert done.returncode == 0, done.stderr


def test_a_grid_fills_the_chip_but_has_no_idle_threads() -> None:
    assert grid(132, 2**25) == (264, 512)
    assert grid(132, 1) == (1, 512)
    assert grid(1, 513) == (2, 512)
