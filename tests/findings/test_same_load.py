"""What GPUs draw is compared only between GPUs under the same load."""

from typing import Any

import pytest

from gputopo.values.finding import Finding
from tests.findings.boxes import Change, all_of, every_gpu, find, gpu, sound
from tests.findings.faults import IDLE


def low(change: Change, count: int = 4) -> list[Finding]:
    """Return the findings that a GPU draws less than its peers."""
    return [one for one in find(change(sound(count))) if one.id == "power.below_peers"]


LOW: dict[str, Any] = {"power_w": {"draw": 149.0}}  # the others draw 250 W


@pytest.mark.parametrize(
    ("watts", "other", "count"), [(149.0, 250.0, 1), (150.0, 250.0, 0), (149.0, 190.0, 0)]
)
def test_low_power_counts_where_the_peers_draw_the_same(watts: float, other: float, count: int) -> None:
    change = all_of(gpu(1, power_w={"draw": watts}), gpu(3, power_w={"draw": other}))
    assert len(low(change)) == count


@pytest.mark.parametrize(
    "other",
    [
        {"utilization_percent": {"gpu": 80}},
        {"pstate": "P5"},
        {"name": "Tesla V100-PCIE-16GB"},
    ],
)
def test_at_another_load_it_is_not_compared(other: dict[str, Any]) -> None:
    assert low(gpu(1, **LOW, **other)) == []


def test_idle_gpus_are_not_compared() -> None:
    assert low(all_of(every_gpu(**IDLE), gpu(1, **LOW))) == []
