import msgspec
import pytest

from gputopo.captures.smi.key_names import COLLECTED
from gputopo.captures.smi.names import GPU, Dialect, names
from gputopo.values.machine import Gpu


def test_every_fact_of_the_table_has_a_place_in_the_gpu() -> None:
    for row in GPU:
        place: object = Gpu(index=0)
        for name in next((d for d in COLLECTED if row.fact.startswith(f"{d}.")), row.fact).split("."):
            assert isinstance(place, msgspec.Struct), row.fact
            assert name in place.__struct_fields__, row.fact
            place = getattr(place, name)


@pytest.mark.parametrize("dialect", ["xml", "text", "csv"])
def test_no_name_stands_for_two_facts_or_is_passed_over_as_well(dialect: Dialect) -> None:
    listed = [name for row in GPU for name in row.names(dialect)]
    assert len(listed) == len(set(listed)) > 60
    assert not [name for name in listed if names(dialect).is_unplaced(name)]


@pytest.mark.parametrize(
    ("dialect", "name", "known"),
    [
        ("xml", "supported_clocks/supported_mem_clock/value", True),
        ("xml", "retired_pages/double_bit_retirement/retired_page_addresses", True),
        ("xml", "serial", True),
        ("xml", "serial_killer", False),
        ("xml", "fb_memory_usage", False),
        ("text", "fabric/clusteruuid", True),
        ("text", "pci/atomic caps outbound", True),
        ("text", "deferred clocks/graphics", False),
        ("csv", "fabric.clusteruuid", True),
        ("csv", "fabricated", False),
    ],
)
def test_a_known_name_without_a_place_covers_what_is_below_it(
    dialect: Dialect, name: str, known: bool
) -> None:
    assert names(dialect).is_unplaced(name) is known
