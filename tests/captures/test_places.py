from gputopo.captures import merge
from gputopo.values.bandwidth import (
    Bandwidth,
    Conditions,
    CopyRate,
    Failure,
    NotMeasured,
    Samples,
    UplinkGroup,
)
from gputopo.values.ends import End
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


def moved(*places: int | None) -> Bandwidth:
    """The measurement beside a capture in which its GPUs have these numbers; None: it does not list one."""
    listed = {
        place: Gpu(index=place, uuid=f"GPU-{gpu}") for gpu, place in enumerate(places) if place is not None
    }
    others = {number: Gpu(index=number, uuid=f"other {number}") for number in range(max(listed))}
    leader = Machine(
        source="live", gpus=tuple((others | listed)[number] for number in sorted(others | listed))
    )
    gpus = tuple(Gpu(index=gpu, uuid=f"GPU-{gpu}") for gpu in range(len(places)))
    return there(merge([leader, Machine(source="test", gpus=gpus, bandwidth=MEASURED)]).bandwidth)


def test_every_place_is_renumbered_and_what_is_of_a_missing_gpu_is_left_out() -> None:
    bandwidth = moved(6, 4, None)
    assert [(s.source, s.destination, s.group) for s in bandwidth.samples] == [
        ("host", "gpu:4", "all gpu:4 gpu:6"),
        ("node:1", "node:1", None),
    ]
    assert [c.gpu for c in bandwidth.samples[0].conditions] == [4, 6]
    assert bandwidth.failures == ()
    assert [one.what for one in bandwidth.not_measured] == ["gpu:4"]
    assert [group.gpus for group in bandwidth.uplink_groups] == [(4, 6)]


def test_numbers_that_one_capture_has_twice_stay_twice_and_two_captures_count_once() -> None:
    twice = Bandwidth(source="test", samples=Samples((MEASURED.samples[1],) * 2))
    gpus = tuple(Gpu(index=i) for i in range(3))
    merged = there(
        merge([Machine(source=name, gpus=gpus, bandwidth=twice) for name in ("test", "copy")]).bandwidth
    )
    assert len(merged.samples) == 2
