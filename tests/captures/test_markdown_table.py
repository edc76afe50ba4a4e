"""Tables of GPUs: columns by their titles, by certain shapes, and what stays uncertain."""

from pathlib import Path

import pytest

from gputopo.captures import detect, markdown_table
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.captures import samples

CAPTURES = Path(__file__).parents[3] / "shared/captures/other"
BARE = "".join(line + "\n" for line in samples.TABLE.splitlines()[2:])


def read(text: str = samples.TABLE) -> Machine:
    return markdown_table.parse(text, origin="x")


def test_a_header_makes_every_column_certain() -> None:
    machine = read()
    assert [gpu.pci_address for gpu in machine.gpus] == list(samples.GPUS)
    assert [gpu.memory_mib.total for gpu in machine.gpus] == [8119] * 3
    assert [(gpu.pcie.gen_now, gpu.pcie.gen_max) for gpu in machine.gpus] == [(1, 3), (3, 3), (3, 3)]
    assert [(gpu.pcie.width_now, gpu.pcie.width_max) for gpu in machine.gpus] == [(16, 16), (8, 8), (4, 16)]
    assert [gpu.power_w.limit for gpu in machine.gpus] == [151.0, 151.0, 120.0]
    assert [gpu.persistence_mode for gpu in machine.gpus] == [False, True, False]
    assert machine.unread == ()


def test_without_a_header_only_certain_cells_are_read() -> None:
    machine = read(BARE)
    assert [(gpu.pcie.gen_now, gpu.pcie.gen_max) for gpu in machine.gpus] == [(1, 3), (3, 3), (3, 3)]
    assert [(gpu.pcie.width_now, gpu.pcie.width_max) for gpu in machine.gpus] == [(16, 16), (8, 8), (4, 16)]
    assert [gpu.power_w.limit for gpu in machine.gpus] == [None] * 3
    assert [(unread.line, unread.text) for unread in machine.unread] == [
        (1, "GPU 0: 151.00 W, Disabled"),
        (2, "GPU 1: 151.00 W, Enabled"),
        (3, "GPU 2: 120.00 W, Disabled"),
    ]


def test_pairs_that_could_be_either_stay_unread() -> None:
    alike = BARE.replace("1/3 |", "2/4 |").replace("3/3 |", "4/4 |").replace("16", "4").replace("8/8", "4/4")
    machine = read(alike)
    assert all(gpu.pcie.gen_now is None and gpu.pcie.width_now is None for gpu in machine.gpus)
    assert "2/4, 4/4" in machine.unread[0].text


def test_a_public_table_shows_the_card_that_runs_at_x4() -> None:
    if not CAPTURES.is_dir():
        pytest.skip("the folder of public captures is not beside this checkout")
    (path,) = CAPTURES.glob("md-table*.txt")
    machine = detect.load([str(path)])
    assert [gpu.index for gpu in machine.gpus] == [1, 2, 3, 4, 5, 6, 7]
    assert [gpu.pcie.width_now for gpu in machine.gpus] == [8, 8, 8, 4, 8, 8, 8]
    assert [gpu.pcie.width_max for gpu in machine.gpus] == [16] * 7
    assert [gpu.pcie.gen_max for gpu in machine.gpus] == [4, 4, 3, 4, 4, 4, 4]
    assert [gpu.pcie.gen_now for gpu in machine.gpus] == [4, 4, 3, 4, 4, 1, 1]
    assert [gpu.memory_mib.total for gpu in machine.gpus] == [24564] * 7
    assert all("450.00 W, Disabled" in unread.text for unread in machine.unread)


def test_rows_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InputError, match="has 7 cells"):
        read(BARE.replace(" | Enabled", ""))
    with pytest.raises(InputError, match="two rows"):
        read(BARE + BARE)


def test_a_pair_that_no_link_can_have_is_listed() -> None:
    machine = read(samples.TABLE.replace("1/3", "1/31"))
    assert machine.gpus[0].pcie.gen_max is None
    assert machine.unread[0].text == "GPU 0: 1/31"
