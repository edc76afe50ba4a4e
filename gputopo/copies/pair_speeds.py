"""How fast pairs of GPUs are as measured, and which speeds are the same but for noise. Pure."""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from math import inf
from typing import NamedTuple

from gputopo.copies.numbers import is_large
from gputopo.values.bandwidth import Bandwidth, Method, Path, Sample, gpu_of

# Two pairs count as equally fast within 10 %: a pair measured twice differs by a few percent, and the slowest
# step between two kinds of link (one generation, one NVLink of three) is a third. Ours.
SAME_SPEED = 1.10
# A row of pairs that are each within that of the next is cut where its ends differ by this much. Ours: half
# of what separates one PCIe generation, or one width, from the next.
WIDEST_CLASS = 1.5
# Direct is called slower than staged from 3 % on, as the finding p2p.direct_slower_than_staged does: below,
# published pairs measured twice differ as much.
CLEARLY_SLOWER = 1.03

# TensorFlow copies between GPUs by the driver's copies, not by kernels that read the peer.
_METHODS: tuple[tuple[Method | None, ...], ...] = (
    ("copy_engine", "driver", None),
    ("kernel_read", "kernel_write"),
)

Pair = tuple[int, int]


class PairSpeed(NamedTuple):
    """What a pair does in its worse direction by the faster path; `direct` and `staged` in that direction."""

    gb_per_s: float
    path: Path
    direct: float | None
    staged: float | None

    @property
    def says(self) -> str:
        """Return `measured 11.3 GB/s, direct`, or what direct copies do where it is clearly slower."""
        words = f"measured {gb(self.gb_per_s)} GB/s, {self.path}"
        if self.path == "staged" and self.direct is not None and self.direct_is_slower:
            return f"{words}; direct is slower: {gb(self.direct)} GB/s"
        return words

    @property
    def direct_is_slower(self) -> bool:
        """Whether copying through the host is clearly faster than copying directly."""
        return (
            self.direct is not None and self.staged is not None and self.staged > self.direct * CLEARLY_SLOWER
        )


def gb(value: float) -> str:
    """Write GB/s with three figures: `0.73`, `11.3`, `195`."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def pair_speeds(bandwidth: Bandwidth | None) -> dict[Pair, PairSpeed]:
    """Return the speed of every pair that was measured in both directions, low index first.

    Of each direction the better of direct and staged, of the two directions the worse. Only copies that ran
    alone count, of several the fastest large one, of several methods the driver's copies before kernels.
    """
    paths: dict[tuple[int, int, Path], float] = {}
    for source, destination, path, speed in single_paths(bandwidth.samples if bandwidth else ()):
        paths[source, destination, path] = speed
    pairs = {(min(a, b), max(a, b)) for a, b, _ in paths}
    found: dict[Pair, PairSpeed] = {}
    for a, b in sorted(pairs):
        both = [_direction(paths, a, b), _direction(paths, b, a)]
        if None not in both:
            found[a, b] = min((one for one in both if one is not None), key=lambda one: one.gb_per_s)
    return found


def speed_classes(speeds: Mapping[Pair, PairSpeed]) -> dict[Pair, int]:
    """Return each pair the number of its class, the fastest 0. Within a class only noise separates pairs."""
    classes: dict[float, int] = {}
    ordered = sorted({speed.gb_per_s for speed in speeds.values()}, reverse=True)
    for number, members in enumerate(_classes(ordered)):
        classes |= dict.fromkeys(members, number)
    return {pair: classes[speed.gb_per_s] for pair, speed in speeds.items()}


def unmeasured(speeds: Mapping[Pair, PairSpeed], gpus: Sequence[int]) -> list[Pair]:
    """Return the pairs of these GPUs that have no measured speed."""
    return [pair for pair in combinations(sorted(gpus), 2) if pair not in speeds]


def single_paths(samples: Sequence[Sample]) -> list[tuple[int, int, Path, float]]:
    """Return (source.

    Destination, path, GB/s) of each direction and path, of the sample that stands for it.
    """
    best: dict[tuple[int, int, Path], Sample] = {}
    for sample in samples:
        source, destination = gpu_of(sample.source), gpu_of(sample.destination)
        if (
            sample.kind not in ("p2p_direct", "p2p_staged")
            or sample.group is not None
            or source is None
            or destination is None
            or source == destination
            or not 0.0 < (sample.median_gb_per_s or 0.0) < inf
        ):
            continue
        key: tuple[int, int, Path] = (
            source,
            destination,
            "direct" if sample.kind == "p2p_direct" else "staged",
        )
        if key not in best or _rank(sample) > _rank(best[key]):
            best[key] = sample
    return [(*key, sample.median_gb_per_s or 0.0) for key, sample in best.items()]


def _rank(sample: Sample) -> tuple[int, bool, float]:
    place = next((-number for number, methods in enumerate(_METHODS) if sample.method in methods), -9)
    return place, is_large(sample), sample.median_gb_per_s or 0.0


def _direction(
    paths: Mapping[tuple[int, int, Path], float], source: int, destination: int
) -> PairSpeed | None:
    direct = paths.get((source, destination, "direct"))
    staged = paths.get((source, destination, "staged"))
    if direct is None and staged is None:
        return None
    if staged is None or (direct is not None and direct >= staged):
        return PairSpeed(direct or 0.0, "direct", direct, staged)
    return PairSpeed(staged, "staged", direct, staged)


def _classes(falling: Sequence[float]) -> list[Sequence[float]]:
    """Cut speeds, fastest first, at their largest gaps until each part is one class."""
    if len(falling) < 2:
        return [falling] if falling else []
    gaps = [fast / slow for fast, slow in pairwise(falling)]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    if gaps[widest] <= SAME_SPEED and falling[0] / falling[-1] <= WIDEST_CLASS:
        return [falling]
    return [*_classes(falling[: widest + 1]), *_classes(falling[widest + 1 :])]
