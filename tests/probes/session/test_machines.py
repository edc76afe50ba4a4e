"""Quick sessions on machines as there are, in virtual time: what they copy, how long they take."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import pytest

from gputopo.probes import SessionRequest, describe
from gputopo.values.bandwidth import LARGE_BYTES, Bandwidth, CopyRate, Sample
from tests.probes.session.double import EngineDouble, doors, machine, measure

MIB = 2**20
MAX_BYTES = 1024 * MIB
MIN_WINDOW_S = 0.001  # a hundred times the start of a copy
WITHIN_S = 50.0  # of the minute; the rest is for the start of the program and the report


@dataclass(frozen=True)
class Box:
    """GB/s of single copies; `local`: each byte once. `uplink`: GPUs that share one, and what it carries."""

    gpus: int
    host: float
    local: float
    l2_mib: float
    direct: float | None = None
    uplink: tuple[int, float] | None = None

    def engine(self, slower: float) -> EngineDouble:
        rates = {"d2d_local": self.local, "p2p_direct": self.direct, "p2p_staged": 0.9 * self.host}
        size, carries = self.uplink or (self.gpus, float("inf"))
        return EngineDouble(
            gpus=self.gpus,
            rate=lambda copy: (0.4 if copy.pinned is False else 1.0) * (rates.get(copy.kind) or self.host),
            uplinks=[
                (frozenset(range(first, first + size)), carries / slower)
                for first in range(0, self.gpus, size)
                if self.uplink
            ],
            peers=frozenset(permutations(range(self.gpus), 2)) if self.direct else frozenset(),
            each_s=0.004,
            host_gb_per_s=15.0,
            peer_s=0.015,
            slower=slower,
            l2=int(self.l2_mib * MIB),
        )


BOXES = {
    "8 H100, NVSwitch": Box(8, 55.0, 1300.0, 50, 390.0),
    "8 cards, Gen4 x16, no P2P": Box(8, 25.0, 400.0, 72),
    "7 cards on one lane": Box(7, 0.8, 150.0, 2, None, (7, 3.2)),
    "4 cards, P2P, slow": Box(4, 0.5, 85.0, 1.5, 0.5, (2, 0.5)),
}


@cache
def quick(name: str, slower: float) -> tuple[Bandwidth, Counter[str]]:
    """Return what a quick session measures, and the copies that it starts, in words."""
    box, started = BOXES[name], Counter[str]()
    found = measure(
        machine(box.gpus),
        SessionRequest(),
        doors=doors(box.engine(slower)),
        on_job=lambda job: started.update([describe(job)]),
    )
    return found, started


def is_large_enough(sample: Sample, box: Box) -> bool:
    if not isinstance(sample, CopyRate):
        return True
    assert sample.bytes
    assert sample.median_gb_per_s
    counted = 2 if sample.kind == "d2d_local" else 1
    seconds = counted * sample.bytes / sample.median_gb_per_s / 1e9
    if sample.kind == "d2d_local" and sample.bytes < max(256, 4 * box.l2_mib) * MIB:
        return False
    return sample.bytes >= MAX_BYTES - MIB or (sample.bytes >= LARGE_BYTES and seconds >= MIN_WINDOW_S)


# Each box as it is, or with copies that take three times as long.
EVERY = pytest.mark.parametrize(
    ("name", "slower"),
    [
        ("8 H100, NVSwitch", 1.0),
        ("8 cards, Gen4 x16, no P2P", 3.0),
        ("7 cards on one lane", 1.0),
        ("4 cards, P2P, slow", 3.0),
    ],
)


@EVERY
def test_a_quick_session_keeps_its_sizes_within_its_time(name: str, slower: float) -> None:
    found, _ = quick(name, slower)
    assert found.duration_s is not None
    assert found.duration_s < WITHIN_S
    assert [one for one in found.samples if not is_large_enough(one, BOXES[name])] == []


# What a session measures, the most important first, as `describe` has it.
STAGES = (
    r"h2d host -> gpu:\d+|d2h gpu:\d+ -> host|[hd]2[hd] gpus:.*",
    r"d2d_local .*",
    r"p2p_direct gpu:\d+ -> gpu:\d+",
    r"bidirectional host .*",
    r"bidirectional .* direct",
    r"bidirectional .* staged|latency .* staged",
    r"p2p_direct .*",
)


def stage_of(what: str) -> int | None:
    return next((place for place, words in enumerate(STAGES) if re.fullmatch(words, what)), None)


@EVERY
def test_what_is_left_out_is_the_less_important(name: str, slower: float) -> None:
    box, (found, started) = BOXES[name], quick(name, slower)
    left_out = Counter(stage_of(one.what) for one in found.not_measured if one.reason == "time")
    wanted = left_out + Counter(map(stage_of, started.elements()))
    done = [1 - left_out[stage] / wanted[stage] for stage in range(len(STAGES)) if wanted[stage]]
    assert done[:2] == [1.0, 1.0]
    assert done == sorted(done, reverse=True)
    if slower == 1.0:
        assert done[-2] == 1.0
    kind = "p2p_direct" if box.direct else "p2p_staged"
    found_pairs = {(one.source, one.destination) for one in found.samples if one.kind == kind}
    assert len(found_pairs) == box.gpus * (box.gpus - 1)
