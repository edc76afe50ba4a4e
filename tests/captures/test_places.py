from gputopo.captures import matching, merge
from gputopo.captures.matching import ListedGpu
from gputopo.values.bandwidth import (
    Bandwidth,
    Conditions,
    CopyRate,
    Failure,
    NotMeasured,
    Samples,
    UplinkGroup,
)
from gputopo.values.ends import End, renumbered
from gputopo.values.machine import Gpu, Machine
from tests import there

MEASURED = Bandwidth(
    source="test",
    samples=Samples(
        (
            CopyRate(
                kind="h2d",
                source=End("host"),
                destination=End("gpu:1"),
                group="all gpu:1 gpu:0",
                conditions=(Conditions(gpu=1), Conditions(gpu=0)),
            ),
            CopyRate(kind="p2p_direct", source=End("gpu:1"), destination=End("gpu:2"), median_gb_per_s=2.5),
            CopyRate(kind="host_memory", source=End("node:1"), destination=End("node:1")),
        )
    ),
    failures=(
        Failure(kind="d2h", source=End("gpu:2"), destination=End("host"), reason="TIMED_OUT", says="x"),
    ),
    not_measured=(NotMeasured(what="gpu:2 to gpu:1", reason="x"), NotMeasured(what="gpu:1", reason="x")),
    uplink_groups=(
        UplinkGroup(gpus=(0, 1), from_kind="h2d"),
        UplinkGroup(gpus=(1, 2), from_kind="h2d"),
    ),
)


def test_every_place_is_renumbered_and_what_is_of_a_missing_gpu_is_left_out() -> None:
    moved = matching.renumbered_bandwidth(MEASURED, {0: 6, 1: 4})
    assert [(s.source, s.destination, s.group) for s in moved.samples] == [
        ("host", "gpu:4", "all gpu:4 gpu:6"),
        ("node:1", "node:1", None),
    ]
    assert [c.gpu for c in moved.samples[0].conditions] == [4, 6]
    assert moved.failures == ()
    assert [one.what for one in moved.not_measured] == ["gpu:4"]
    assert [group.gpus for group in moved.uplink_groups] == [(4, 6)]


def test_two_numbers_that_change_places_do_not_run_into_one_another() -> None:
    moved = matching.renumbered_bandwidth(MEASURED, {1: 2, 2: 1, 0: 0})
    assert (moved.samples[1].source, moved.samples[1].destination) == ("gpu:2", "gpu:1")
    assert moved.failures[0].source == "gpu:1"


def test_a_merge_renumbers_the_numbers_with_the_gpus() -> None:
    leader = Machine(
        source="live", gpus=tuple(Gpu(index=i, pci_address=f"0000:0{9 - i}:00.0") for i in range(3))
    )
    other = Machine(
        source="test",
        gpus=tuple(Gpu(index=i, pci_address=f"0000:0{7 + i}:00.0") for i in range(3)),
        bandwidth=MEASURED,
    )
    bandwidth = there(merge.merge([leader, other]).bandwidth)
    assert (bandwidth.samples[1].source, bandwidth.samples[1].destination) == ("gpu:1", "gpu:0")
    assert [c.gpu for c in bandwidth.samples[0].conditions] == [1, 2]
    assert bandwidth.uplink_groups[0].gpus == (1, 2)


def test_numbers_that_one_capture_has_twice_stay_twice_and_two_captures_count_once() -> None:
    twice = Bandwidth(source="test", samples=Samples((MEASURED.samples[1],) * 2))
    gpus = tuple(Gpu(index=i) for i in range(3))
    merged = there(
        merge.merge([Machine(source=name, gpus=gpus, bandwidth=twice) for name in ("test", "copy")]).bandwidth
    )
    assert len(merged.samples) == 2


def test_gpus_keep_cudas_numbers_where_an_address_is_missing_or_reported_twice() -> None:
    for second in (None, "0:9:0.0"):
        gpus, index_of = matching.gpus_in_pci_order({0: ListedGpu("A", "0:9:0.0"), 1: ListedGpu("B", second)})
        assert index_of == {0: 0, 1: 1}
        assert [gpu.name for gpu in gpus] == ["A", "B"]


def test_gpus_that_work_together_are_renumbered_together() -> None:
    assert renumbered("gpu:0,1,3", {0: 5, 1: 2, 3: 0}) == "gpu:0,2,5"
    assert renumbered("allreduce over gpu:1,0 of 2", {0: 0, 1: 1}) == "allreduce over gpu:0,1 of 2"
