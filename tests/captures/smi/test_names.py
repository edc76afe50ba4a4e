import msgspec
import pytest

from gputopo.captures.smi.names import COLLECTED, DRIVER, GPU, PROCESS, Dialect, names
from gputopo.reference.clock_events import BITS
from gputopo.values.machine import Driver, Gpu, GpuProcess


def test_every_fact_of_the_table_has_a_place_in_the_gpu() -> None:
    for row in GPU:
        place: object = Gpu(index=0)
        for name in next((d for d in COLLECTED if row.fact.startswith(f"{d}.")), row.fact).split("."):
            assert isinstance(place, msgspec.Struct), row.fact
            assert name in place.__struct_fields__, row.fact
            place = getattr(place, name)


def test_the_driver_and_the_processes_have_their_places() -> None:
    assert {row.fact for row in DRIVER} <= set(Driver.__struct_fields__)
    assert {row.fact for row in PROCESS} <= set(GpuProcess.__struct_fields__)


def test_the_reasons_are_called_as_the_live_probe_calls_them() -> None:
    ours = {row.fact.removeprefix("throttle.reasons.") for row in GPU if row.kind == "active"}
    assert set(BITS) <= ours


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
