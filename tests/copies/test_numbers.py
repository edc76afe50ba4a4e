"""Which samples are judged, and how much of a number is noise."""

from typing import Any

from gputopo.values.bandwidth import CopyRate
from gputopo.values.rates import host_copies, pair_copies
from tests.findings.boxes import sound
from tests.findings.measured.machines import sample


def h2d(gb_per_s: float, **more: Any) -> CopyRate:
    return sample("h2d", "host", "gpu:0", gb_per_s, **({"pinned": True} | more))


def test_the_fastest_pinned_copy_with_near_memory_stands_for_a_link() -> None:
    samples = [h2d(11.0), h2d(12.0), h2d(30.0, pinned=False), h2d(20.0, numa_node=1), h2d(9.0, numa_node=0)]
    assert host_copies(samples, "h2d", sound())[0].rate == 12.0


def test_both_directions_of_different_paths_are_not_mixed() -> None:
    direct = sample("bidirectional", "gpu:0", "gpu:1", 20.0, path="direct")
    staged = sample("bidirectional", "gpu:0", "gpu:1", 15.0, path="staged")
    assert pair_copies([direct, staged], "bidirectional", "staged") == {(0, 1): staged}
    assert direct.host_gpu is None
