from pathlib import Path

import pytest

from gputopo.captures import bundled_names, load, read_bundled
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop

CAPTURES = Path(__file__).parents[3] / "shared" / "captures" / "topo"


@pytest.mark.parametrize("name", bundled_names())
def test_a_bundled_machine_is_whole(name: str) -> None:
    machine = read_bundled(name)
    count = len(machine.gpus)
    assert machine.source == "bundled machine"
    assert [gpu.index for gpu in machine.gpus] == list(range(count))
    assert len(machine.links) == count * (count - 1) // 2
    assert all(gpu.name for gpu in machine.gpus)
    assert all(gpu.uuid is None for gpu in machine.gpus)
    assert machine.missing["gpus[*].memory_mib"] == "not in the source"


def test_7gforce_is_two_islands_of_three_and_four_cards() -> None:
    machine = read_bundled("7gforce")
    near = {(link.a, link.b) for link in machine.links if link.hop is Hop.PIX}
    assert near == {(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (3, 6), (4, 5), (4, 6), (5, 6)}
    assert {link.hop for link in machine.links} == {Hop.PIX, Hop.PHB}
    assert [gpu.name for gpu in machine.gpus] == ["GeForce GTX 1070"] * 6 + ["GeForce GTX 1080"]
    assert [gpu.pci_address for gpu in machine.gpus][3] == "0000:0a:00.0"


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("7gforce", "7gforce_"),
        ("7gforce-v2", "7gforce-v2"),
        ("az-2x-m60", "az-2x"),
        ("az-4x-m60", "az-4x"),
        ("dgx1-p100", "dgx1-p100"),
        ("dgx1-v100", "dgx1-v100"),
    ],
)
def test_a_bundled_machine_has_the_matrix_of_its_capture(name: str, start: str) -> None:
    if not CAPTURES.is_dir():
        pytest.skip("the folder of public captures is not beside this checkout")
    (path,) = CAPTURES.glob(f"{start}*.txt")
    capture = load([str(path)])
    machine = read_bundled(name)
    assert [(k.a, k.b, k.hop) for k in machine.links] == [(k.a, k.b, k.hop) for k in capture.links]
    # The text of one, whose cards have none, does not show whether NVLinks would be shown.
    assert [k.nvlinks for k in machine.links] == [k.nvlinks or 0 for k in capture.links]
    assert [(nic.name, nic.hops) for nic in machine.nics] == [(nic.name, nic.hops) for nic in capture.nics]


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(InputError) as caught:
        read_bundled("8gforce")
    assert caught.value.what == "no bundled machine is called 8gforce"
    assert "az-2x-m60" in caught.value.hint
