from collections import Counter
from itertools import combinations, permutations

from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.copy_jobs import Copy, CopyJob, Setting, describe, path_of
from gputopo.probes.session.jobs import LOCAL_BYTES, MAX_PEERS, jobs, next_jobs, not_possible, pairs, without
from gputopo.values.bandwidth import CopyRate
from gputopo.values.ends import HOST, End
from tests import there

EIGHT = Setting(gpus=tuple(range(8)), peers=frozenset(permutations(range(8), 2)))


def test_every_direction_of_every_pair_is_a_job_of_its_own() -> None:
    found = Counter(
        (job.copies[0].source, job.copies[0].destination) for job in jobs(EIGHT) if job.kind == "p2p_staged"
    )
    assert found == Counter((f"gpu:{a}", f"gpu:{b}") for a, b in permutations(range(8), 2))


def test_what_counts_most_comes_first() -> None:
    order = [describe(job).partition(" ")[0] for job in jobs(EIGHT)]
    firsts = [order.index(kind) for kind in ("h2d", "d2d_local", "p2p_direct", "latency", "p2p_staged")]
    assert firsts == sorted(firsts)
    assert jobs(EIGHT)[-1].copies[0].method == "kernel_write"


def test_the_path_that_a_pair_has_comes_before_the_one_that_it_does_not_need() -> None:
    some = Setting(gpus=(0, 1, 2), peers=frozenset({(0, 1), (1, 0)}))
    order = [describe(job) for job in jobs(some)]
    assert order.index("p2p_staged gpu:0 -> gpu:2") < order.index("latency host -> gpu:0")
    assert order.index("p2p_direct gpu:0 -> gpu:1") < order.index("latency host -> gpu:0")
    assert order.index("p2p_staged gpu:0 -> gpu:1") > order.index("bidirectional gpu:0 <-> gpu:1 direct")


@given(st.integers(2, 9), st.integers(1, 8))
def test_the_first_pairs_hold_each_gpu_equally_often(count: int, rounds: int) -> None:
    order = pairs(range(count))
    assert set(order) == set(permutations(range(count), 2))
    seen = Counter(gpu for pair in order[: 2 * count * rounds] for gpu in pair)
    assert max(seen.values()) - min(seen.values()) <= 2


def test_sixteen_gpus_change_their_peers_seldom() -> None:
    peers: dict[int, list[int]] = {gpu: [] for gpu in range(16)}  # as the driver has them, the oldest first
    enabled = 0
    for a, b in pairs(range(16)):
        if b in peers[a]:
            peers[a].remove(b)
        else:
            enabled += 1
        peers[a] = [*peers[a], b][-MAX_PEERS:]
    assert enabled == 16 * 15


def test_copies_within_memory_are_larger_than_the_caches() -> None:
    large = Setting(gpus=(0, 1, 2), l2_bytes={0: 2 << 20, 1: 126 << 20}, no_local={2: "too little is free"})
    found = {job.copies[0].source: job.min_bytes for job in jobs(large) if job.kind == "d2d_local"}
    assert found == {"gpu:0": LOCAL_BYTES, "gpu:1": 4 * (126 << 20)}
    assert any(one.reason == "too little is free" for one in not_possible(large))


def test_direct_copies_are_made_only_where_the_acting_gpu_reaches_the_other() -> None:
    one_way = jobs(Setting(gpus=(0, 1), peers=frozenset({(0, 1)})))
    direct = {
        (job.copies[0].source, job.copies[0].destination, job.copies[0].method)
        for job in one_way
        if job.kind == "p2p_direct"
    }
    assert direct == {
        ("gpu:0", "gpu:1", "copy_engine"),
        ("gpu:0", "gpu:1", "kernel_write"),
        ("gpu:1", "gpu:0", "copy_engine_read"),
        ("gpu:1", "gpu:0", "kernel_read"),
    }
    assert "1->0" in not_possible(Setting(gpus=(0, 1), peers=frozenset({(0, 1)})))[0].what


def test_both_directions_of_a_pair_are_one_job_with_its_path() -> None:
    found = [job for job in jobs(EIGHT) if job.kind == "bidirectional" and path_of(job) == "direct"]
    assert sorted(job.copies[0].gpus for job in found) == list(combinations(range(8), 2))
    assert all(job.copies[1].gpus == job.copies[0].gpus[::-1] for job in found)


def test_full_has_all_of_quick() -> None:
    full = set(jobs(Setting(gpus=(0, 1), level="full", nodes={0: 0, 1: 1}, far_nodes={0: 1, 1: 0})))
    quick = set(jobs(Setting(gpus=(0, 1), nodes={0: 0, 1: 1}, far_nodes={0: 1, 1: 0})))
    assert quick < full
    sizes = {job.bytes for job in full - quick if job.bytes is not None}
    assert (min(sizes), max(sizes)) == (4096, 512 * 2**20)
    far = {
        (copy.destination, copy.numa_node) for job in full - quick for copy in job.copies if job.bytes is None
    }
    assert ("gpu:0", 1) in far


def test_gpus_that_slow_one_another_down_are_copied_to_in_pairs() -> None:
    rates = {None: 12.0, "h2d gpus:0,1,2": 4.0}
    done = [
        CopyRate(
            kind="h2d",
            source=HOST,
            destination=End.of_gpus(gpu),
            pinned=True,
            group=group,
            median_gb_per_s=rate,
        )
        for group, rate in rates.items()
        for gpu in range(3)
    ]
    setting = Setting(gpus=(0, 1, 2), nodes={0: 0, 1: 1, 2: 1}, sizes=(1 << 20, 1 << 24))
    wanted = next_jobs(done, setting, [("h2d", (0, 2))])
    assert [(job.group, job.bytes) for job in wanted] == [
        (group, size) for group in ("h2d gpus:0,1", "h2d gpus:1,2") for size in (1 << 20, 1 << 24)
    ]
    assert [copy.numa_node for copy in wanted[0].copies] == [0, 1]


def ends(job: CopyJob) -> list[tuple[int, ...]]:
    return [copy.gpus for copy in job.copies]


def test_all_gpus_at_once_are_a_ring_and_two_halves() -> None:
    found = {job.group: job for job in jobs(EIGHT) if job.kind == "p2p_direct" and job.group}
    assert list(found) == ["ring gpus:0,1,2,3,4,5,6,7", "bisection gpus:0,1,2,3,4,5,6,7"]
    ring, halves = map(ends, found.values())
    assert ring == [(gpu, (gpu + 1) % 8) for gpu in range(8)]
    assert sorted(halves) == sorted((a, (a + 4) % 8) for a in range(8))


def test_gpus_at_once_go_through_the_host_where_a_pair_has_no_direct_path() -> None:
    some = Setting(gpus=(0, 1, 2), peers=frozenset({(0, 1), (1, 0)}))
    assert [job.kind for job in jobs(some) if (job.group or "").startswith("ring")] == ["p2p_staged"]
    assert not [job for job in jobs(Setting(gpus=(0, 1), peers=EIGHT.peers)) if "ring" in (job.group or "")]


def test_one_to_all_and_all_to_one_are_for_as_many_gpus_as_have_peer_access() -> None:
    def groups(count: int) -> set[str]:
        gpus = tuple(range(count))
        full = Setting(gpus=gpus, level="full", peers=frozenset(permutations(gpus, 2)))
        return {(job.group or "").partition(" gpus:")[0] for job in jobs(full)}

    assert {"gpu:2 to all", "all to gpu:2"} < groups(3)
    assert "gpu:2 to all" not in groups(10)
    ten = Setting(gpus=tuple(range(10)), level="full", peers=frozenset(permutations(range(10), 2)))
    assert any("to all others at once" in one.what for one in not_possible(ten))


def test_a_chosen_size_stands_for_the_one_by_speed_and_for_the_sweep() -> None:
    two = Setting(gpus=(0, 1), level="full", peers=EIGHT.peers, sizes=(1 << 20, 1 << 29))
    assert {job.bytes for job in jobs(two) if job.kind != "latency"} == {1 << 20, 1 << 29}
    words = [describe(job) for job in jobs(two)]
    assert len(set(words)) == len(words)


def test_a_group_without_a_gpu_has_the_name_of_the_others() -> None:
    whole = next(job for job in jobs(EIGHT) if job.group is not None)
    left = there(without(whole, {2, 5}))
    assert left.group == "h2d gpus:0,1,3,4,6,7"
    assert without(whole, range(7)) is None
    assert without(whole, set()) == whole


def test_one_of_two_directions_is_no_longer_both() -> None:
    both = next(job for job in jobs(EIGHT) if job.kind == "bidirectional")
    assert without(both, set(), [both.copies[0]]) is None


def test_a_job_is_described_so_that_no_two_are_alike() -> None:
    for level in ("quick", "full"):
        every = jobs(Setting(gpus=(0, 1, 2), level=level, peers=EIGHT.peers))
        words = [describe(job) for job in every]
        assert len(set(words)) == len(words)
    copy = Copy(kind="h2d", source=End("host"), destination=End("gpu:0"), pinned=False)
    assert describe(CopyJob(kind="h2d", copies=(copy,))) == "h2d host -> gpu:0 pageable"
