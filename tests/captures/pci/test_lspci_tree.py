"""The tree of `lspci -tv`: addresses, parents and kinds, and trees that hypothesis invents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values.errors import InputError
from gputopo.values.machine import Hop, Machine
from tests.captures import samples


def read(text: str = samples.LSPCI_TREE) -> Machine:
    return read_text(text, origin="x")


def test_without_numa_numbers_two_roots_are_no_known_hop() -> None:
    machine = read()
    assert [link.hop for link in machine.links] == [Hop.PIX, None, None]
    assert "links[0-2].hop" in machine.missing
    assert machine.nics[0].hops == {"gpu:2": Hop.PHB}


def test_a_line_without_a_parent_is_listed() -> None:
    first, *rest = samples.LSPCI_TREE.splitlines()
    machine = read("\n".join([first, "     +-19.0  what is this", *rest]))
    assert [unread.line for unread in machine.unread] == [2]


def test_a_function_that_stands_twice_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        read(samples.LSPCI_TREE * 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA Corporation GA102 [GeForce RTX 3090]", "gpu"),
        ("NVIDIA Corporation GA102 High Definition Audio Controller", "other"),
        ("NVIDIA Corporation GA100 [A100 NVSwitch]", "other"),
        ("NVIDIA Corporation Device 2330", "gpu"),
        ("NVIDIA Corporation Device 22a3", "other"),
        ("Mellanox Technologies MT28908 Family [ConnectX-6]", "nic"),
        ("Intel Corporation Ethernet Controller X710 for 10GBASE-T", "nic"),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 21 [Radeon RX 6800]", "other"),
    ],
)
def test_a_name_shows_what_a_function_is(name: str, kind: str) -> None:
    (node,) = read(f"-[0000:00]---00.0  {name}\n").pci
    assert node.kind == kind


def test_an_unknown_number_is_a_gpu_only_beside_its_own_sound() -> None:
    card = "-[0000:00]---01.0-[01]--+-00.0  NVIDIA Corporation Device 2fff\n"
    for other, kind in (("NVIDIA Corporation Device 22ba Audio", "gpu"), ("Invented Device", "other")):
        machine = read(f"{card}                        \\-00.1  {other}\n")
        assert {node.address: node.kind for node in machine.pci}["0000:01:00.0"] == kind


Shape = list["Shape"] | None  # a bridge with what is behind it, or a device


@given(
    st.lists(st.recursive(st.none(), lambda inside: st.lists(inside, max_size=3), max_leaves=12), min_size=1)
)
def test_a_drawn_tree_is_read_as_it_was_drawn(shapes: list[Shape]) -> None:
    shapes = shapes[:20]
    drawn, parents = _draw(shapes)
    machine = read(drawn)
    assert {node.address: node.parent for node in machine.pci} == parents
    assert machine.unread == ()


def _draw(shapes: list[Shape]) -> tuple[str, dict[str, str | None]]:
    """Draw a tree as lspci does, one root, and return the parents that it must be read as."""
    parents: dict[str, str | None] = {}
    buses = iter(range(1, 256))

    def below(bus: int, inside: list[Shape], parent: str | None) -> list[str]:
        """The block of lines of one bus; the first line goes on behind its bridge."""
        lines: list[str] = []
        for place, shape in enumerate(inside):
            address = f"0000:{bus:02x}:{place:02x}.0"
            parents[address] = parent
            if shape is None:
                block = [f"{place:02x}.0  Invented Device"]
            else:
                behind = next(buses)
                head = f"{place:02x}.0-[{behind:02x}]-"
                inner = below(behind, shape, address) or ["-"]
                block = [head + inner[0], *(" " * len(head) + line for line in inner[1:])]
            last = place == len(inside) - 1
            if len(inside) == 1:
                joint, under = "---", "   "
            else:
                joint = "-+-" if place == 0 else " \\-" if last else " +-"
                under = "   " if last else " | "
            lines += [joint + block[0], *(under + line for line in block[1:])]
        return lines

    block = below(0, shapes, None)
    head = "-[0000:00]"
    return "\n".join([head + block[0], *(" " * len(head) + line for line in block[1:])]) + "\n", parents


def test_a_tree_without_names_does_not_state_that_there_is_no_gpu() -> None:
    machine = read_text("-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n", origin="x")
    assert machine.gpus == ()
    assert machine.missing["gpus"] == "the tree has no names (lspci -t); lspci -tv has them"
