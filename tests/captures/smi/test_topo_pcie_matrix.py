"""`nvidia-smi topo -mp`: the same matrix, of PCIe alone."""

import pytest

from gputopo.captures import merge, read_text
from gputopo.values.machine import Hop, Machine

WHOLE = "GPU0 GPU1 GPU2\nGPU0 X NV4 SYS\nGPU1 NV4 X SYS\nGPU2 SYS SYS X\n"
PCIE = "GPU0 GPU1 GPU2\nGPU0 X PXB SYS\nGPU1 PXB X SYS\nGPU2 SYS SYS X\n"
LEGEND = "\nLegend:\n\n  X = Self\n  SYS = far\n  NODE = nearer\n"
NVLINKS = "  NV# = so many NVLinks\n"


def read(text: str) -> Machine:
    return read_text(text, origin="box.txt")


def nvlinks(machine: Machine) -> list[int | None]:
    return [link.nvlinks for link in machine.links]


@pytest.mark.parametrize("text", ["$ nvidia-smi topo -mp\n" + PCIE, PCIE + LEGEND])
def test_a_matrix_of_pcie_alone_reports_nothing_of_nvlinks(text: str) -> None:
    machine = read(text)
    assert [link.hop for link in machine.links] == [Hop.PXB, Hop.SYS, Hop.SYS]
    assert nvlinks(machine) == [None, None, None]
    assert "topo -mp" in machine.missing["links[*].nvlinks"]


@pytest.mark.parametrize(
    "text",
    ["nvidia-smi topo -m\n" + PCIE, PCIE + LEGEND + NVLINKS, PCIE + "\nLegend:\n\n  SOC = far\n"],
    ids=["command", "legend", "old legend"],
)
def test_a_whole_matrix_without_nvlinks_states_that_there_are_none(text: str) -> None:
    assert nvlinks(read(text)) == [0, 0, 0]


@pytest.mark.parametrize("texts", [(WHOLE, PCIE), (PCIE, WHOLE)])
def test_without_command_and_legend_it_adds_to_a_source_that_shows_nvlinks(texts: tuple[str, str]) -> None:
    machine = merge([read(text) for text in texts])
    assert nvlinks(machine) == [4, 0, 0]
    assert [link.hop for link in machine.links] == [Hop.PXB, Hop.SYS, Hop.SYS]
    assert machine.contradictions == ()
