import pytest

from gputopo.reference.pcie import generation_of
from gputopo.values.fields import path_in_words, value_in_words


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("clocks_mhz.memory.max", "memory clock max"),
        ("power_w.limit", "power limit"),
        ("pcie.width_now", "PCIe width now"),
        ("ecc.corrected_volatile", "ECC corrected volatile"),
        ("memory_mib.total", "memory total"),
        ("numa_node", "NUMA node"),
        ("numa_nodes[1].cpus", "NUMA node 1 CPUs"),
        ("nvlinks[2].gb_per_s", "NVLink 2 speed"),
        ("max_speed_gt_per_s", "max speed"),
        ("something_new", "something new"),
    ],
)
def test_a_path_is_told_in_words(path: str, words: str) -> None:
    assert path_in_words(path) == words


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("clocks_mhz.memory.max", 4004, "4004 MHz"),
        ("power_w.limit", 151.0, "151 W"),
        ("pcie.width_max", 8, "x8"),
        ("max_width", 8, "x8"),
        ("memory_mib.total", 8114, "8114 MiB"),
        ("max_speed_gt_per_s", 8.0, "8 GT/s"),
        ("nvlinks[2].gb_per_s", 25.781, "25.781 GB/s"),
        ("persistence_mode", True, "on"),
        ("persistence_mode", False, "off"),
        ("name", None, "not told"),
        ("name", "card", "card"),
    ],
)
def test_a_value_has_its_unit(path: str, value: object, words: str) -> None:
    assert value_in_words(path, value) == words


@pytest.mark.parametrize(("speed", "generation"), [(2.5, 1), (8.0, 3), (64.0, 6), (7.0, None), (None, None)])
def test_a_speed_has_its_generation(speed: float | None, generation: int | None) -> None:
    assert generation_of(speed) == generation
