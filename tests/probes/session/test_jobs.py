"""Which copies a session makes, and in which order."""

from collections import Counter
from functools import cache
from itertools import combinations, permutations
from typing import NamedTuple

import pytest

from gputopo.probes import CopyJob, SessionRequest, describe
from gputopo.values.bandwidth import Bandwidth, Level
from tests.probes.session.double import EngineDouble, doors, machine, measure

MIB = 2**20


class Session(NamedTuple):
    jobs: tuple[CopyJob, ...]
    found: Bandwidth

    def of(self, kind: str) -> list[CopyJob]:
        return [job for job in self.jobs if job.kind == kind]

    @property
    def words(self) -> list[str]:
        return [describe(job) for job in self.jobs]


def measured(engine: EngineDouble, request: SessionRequest, nodes: int = 1) -> Session:
    jobs: list[CopyJob] = []
    found = measure(machine(engine.gpus, nodes=nodes), request, doors=doors(engine), on_job=jobs.append)
    return Session(tuple(jobs), found)


@cache
def session(
    gpus: int,
    level: Level = "quick",
    peers: frozenset[tuple[int, int]] | None = None,
    nodes: int = 1,
    sizes: tuple[int, ...] = (),
) -> Session:
    """Measure with one window of each copy; `peers` None: all GPUs reach one another."""
    peers = frozenset(permutations(range(gpus), 2)) if peers is None else peers
    return measured(
        EngineDouble(gpus=gpus, peers=peers), SessionRequest(level=level, loops=1, sizes=sizes), nodes
    )


SIZE = (1 << 20,)
ONE_PAIR = frozenset({(0, 1), (1, 0)})


def test_every_direction_of_every_pair_is_a_job_of_its_own() -> None:
    found = Counter(job.copies[0].gpus for job in session(6).of("p2p_staged"))
    assert found == Counter(permutations(range(6), 2))


def test_what_counts_most_comes_first() -> None:
    order = [words.partition(" ")[0] for words in session(6).words]
    firsts = [order.index(kind) for kind in ("h2d", "d2d_local", "p2p_direct", "latency", "p2p_staged")]
    assert firsts == sorted(firsts)
    assert session(6).jobs[-1].copies[0].method == "kernel_write"


def test_the_path_that_a_pair_has_comes_before_the_one_that_it_does_not_need() -> None:
    order = session(3, peers=ONE_PAIR).words
    assert order.index("p2p_staged gpu:0 -> gpu:2") < order.index("latency host -> gpu:0")
    assert order.index("p2p_direct gpu:0 -> gpu:1") < order.index("latency host -> gpu:0")
    assert order.index("p2p_staged gpu:0 -> gpu:1") > order.index("bidirectional gpu:0 <-> gpu:1 direct")


@pytest.mark.parametrize("count", [3, 6])
def test_the_first_pairs_hold_each_gpu_equally_often(count: int) -> None:
    order = [job.copies[0].gpus for job in session(count).of("p2p_staged")]
    for rounds in range(1, count):
        seen = Counter(gpu for pair in order[: 2 * count * rounds] for gpu in pair)
        assert max(seen.values()) - min(seen.values()) <= 2


@pytest.mark.parametrize(
    ("l2_bytes", "min_bytes"), [(2 * MIB, 256 * MIB), (126 * MIB, 4 * 126 * MIB)], ids=["small", "B200"]
)
def test_copies_within_memory_are_larger_than_the_caches(l2_bytes: int, min_bytes: int) -> None:
    (job,) = measured(EngineDouble(gpus=1, l2=l2_bytes), SessionRequest(loops=1)).of("d2d_local")
    assert job.min_bytes == min_bytes


def test_direct_copies_are_made_only_where_the_acting_gpu_reaches_the_other() -> None:
    one_way = session(2, peers=frozenset({(0, 1)}))
    direct = {(job.copies[0].gpus, job.copies[0].method) for job in one_way.of("p2p_direct")}
    assert direct == {
        ((0, 1), "copy_engine"),
        ((0, 1), "kernel_write"),
        ((1, 0), "copy_engine_read"),
        ((1, 0), "kernel_read"),
    }
    assert "1->0" in one_way.found.not_measured[0].what


def test_both_directions_of_a_pair_are_one_job_with_its_path() -> None:
    found = [job for job in session(6).of("bidirectional") if describe(job).endswith(" direct")]
    assert sorted(job.copies[0].gpus for job in found) == list(combinations(range(6), 2))
    assert all(job.copies[1].gpus == job.copies[0].gpus[::-1] for job in found)


def test_full_has_all_of_quick() -> None:
    quick, full = (set(session(2, level, nodes=2).jobs) for level in ("quick", "full"))
    assert quick < full
    sizes = {job.bytes for job in full - quick if job.bytes is not None}
    assert (min(sizes), max(sizes)) == (4096, 512 * MIB)
    far = {
        (copy.destination, copy.numa_node) for job in full - quick for copy in job.copies if job.bytes is None
    }
    assert ("gpu:0", 1) in far


def test_gpus_that_slow_one_another_down_are_copied_to_in_pairs_of_each_size() -> None:
    engine = EngineDouble(gpus=3, uplinks=[(frozenset(range(3)), 13.0)])
    found = measured(engine, SessionRequest(sizes=(1 << 20, 1 << 24)), nodes=3)
    groups = [(job.group, job.bytes) for job in found.of("h2d") if job.group]
    pairs = ("h2d gpus:0,1", "h2d gpus:0,2", "h2d gpus:1,2")
    assert groups[2:] == [(group, size) for group in pairs for size in (1 << 20, 1 << 24)]
    last = next(job for job in found.jobs if job.group == pairs[-1])
    assert [copy.numa_node for copy in last.copies] == [1, 2]


def test_all_gpus_at_once_are_a_ring_and_two_halves() -> None:
    found = {job.group: job for job in session(6).of("p2p_direct") if job.group}
    assert list(found) == ["ring gpus:0,1,2,3,4,5", "bisection gpus:0,1,2,3,4,5"]
    ring, halves = ([copy.gpus for copy in job.copies] for job in found.values())
    assert ring == [(gpu, (gpu + 1) % 6) for gpu in range(6)]
    assert sorted(halves) == sorted((a, (a + 3) % 6) for a in range(6))


def test_one_to_all_and_all_to_one_are_for_as_many_gpus_as_have_peer_access() -> None:
    few, many = (session(count, "full", frozenset(), sizes=SIZE) for count in (3, 10))
    groups_of_few, groups_of_many = (
        {(job.group or "").partition(" gpus:")[0] for job in one.jobs} for one in (few, many)
    )
    assert {"gpu:2 to all", "all to gpu:2"} < groups_of_few
    assert "gpu:2 to all" not in groups_of_many
    assert any("to all others at once" in one.what for one in many.found.not_measured)


def test_a_job_is_described_so_that_no_two_are_alike() -> None:
    found = session(3, "full")
    assert len(set(found.words)) == len(found.words)
    assert any(words.startswith("h2d host -> gpu:0 pageable") for words in found.words)
