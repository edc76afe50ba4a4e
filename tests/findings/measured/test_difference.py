"""A saved session against one of now: changes beyond noise, and nothing within it."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.findings import bandwidth_difference
from gputopo.values.bandwidth import Bandwidth, CopyLatency, Failure, Sample, Samples, TransferRate
from gputopo.values.difference import BandwidthDifference
from gputopo.values.ends import End
from tests.findings.boxes import sound
from tests.findings.measured.machines import sample, seen


def session(*samples: Sample, **more: Any) -> Bandwidth:
    return Bandwidth(source="live", samples=Samples(samples), **more)


def h2d(gb_per_s: float, index: int = 0, **more: Any) -> Sample:
    return sample("h2d", "host", f"gpu:{index}", gb_per_s, **({"pinned": True} | more))


def compared(old: Sample, new: Sample) -> BandwidthDifference:
    return bandwidth_difference(session(old), session(new))


def test_a_loss_is_reported_with_the_number_it_was_and_what_noise_would_be() -> None:
    (change,) = compared(h2d(12.2), h2d(6.1)).changes
    assert (change.was, change.is_, change.percent, change.better) == (12.2, 6.1, -50.0, False)
    assert change.noise_percent == 3.0
    assert "gpu:0" in change.what


def test_noisy_repeats_hide_what_steady_ones_show() -> None:
    noisy = h2d(12.0, repeats_gb_per_s=(10.5, 11.2, 12.0, 12.9, 13.4))
    assert compared(h2d(13.2), noisy).changes == ()
    assert len(compared(h2d(13.2), h2d(12.0)).changes) == 1


def test_what_the_link_did_otherwise_stands_beside_the_change() -> None:
    (change,) = compared(
        h2d(12.2, conditions=(seen(0),)), h2d(3.1, conditions=(seen(0, pcie_gen=1),))
    ).changes
    assert change.conditions == ("GPU 0: PCIe generation 1, was 3",)


def test_a_lower_latency_is_better_and_small_changes_of_it_are_none() -> None:
    def latency(us: float) -> Sample:
        return CopyLatency(
            kind="latency", source=End("gpu:0"), destination=End("gpu:1"), bytes=4, median_us=us
        )

    (change,) = compared(latency(15.0), latency(7.0)).changes
    assert (change.better, change.microseconds) == (True, True)
    assert compared(latency(15.0), latency(14.0)).changes == ()


def test_numbers_of_different_tools_between_hosts_are_never_compared() -> None:
    def transfer(**how: Any) -> Sample:
        fields: dict[str, Any] = {"median_gb_per_s": 3.0, "tool": "iperf3", "transport": "TCP", "streams": 4}
        return TransferRate(
            kind="network", source=End("host:n0"), destination=End("host:n1"), **{**fields, **how}
        )

    (change,) = compared(transfer(), transfer(median_gb_per_s=1.0)).changes
    assert change.what == "network host:n0 to host:n1 (iperf3 TCP 4 streams)"
    for other in ({"tool": "TCP probe"}, {"transport": "UDP"}, {"streams": 1}):
        found = compared(transfer(), transfer(median_gb_per_s=1.0, **other))
        assert (found.changes, found.compared) == ((), 0)
        assert len(found.gone) == len(found.appeared) == 1


def test_failures_that_came_and_went_are_reported() -> None:
    failure = Failure(
        kind="p2p_direct", source=End("gpu:0"), destination=End("gpu:1"), reason="WRONG_DATA", says=""
    )
    good, bad = session(), session(failures=(failure,))
    assert "WRONG_DATA" in bandwidth_difference(good, bad).failing[0]
    assert "gpu:0 to gpu:1" in bandwidth_difference(bad, good).working[0]
    same = bandwidth_difference(bad, bad)
    assert (same.failing, same.working) == ((), ())


def test_a_gpu_that_is_gone_is_compared_with_none_that_has_its_number_now() -> None:
    before = sound(3)
    left = (before.gpus[0], replace(before.gpus[2], index=1))
    after = replace(before, gpus=left, links=())
    all_three, two = {"group": "h2d gpus:0,1,2"}, {"group": "h2d gpus:0,1"}
    failure = Failure(kind="h2d", source=End("host"), destination=End("gpu:1"), reason="WRONG_DATA", says="")
    old = session(
        *(h2d(10.0 + index, index) for index in range(3)),
        h2d(5.0, 0, **all_three),
        h2d(6.0, 0, group="all_to_host"),
        failures=(failure,),
    )
    new = session(h2d(10.0, 0), h2d(6.0, 1), h2d(7.0, 0, **two), h2d(9.0, 0, group="all_to_host"))
    found = bandwidth_difference(old, new, before, after)
    assert [(change.was, change.is_) for change in found.changes] == [(12.0, 6.0)]
    assert (found.missing_gpus, found.new_gpus) == ((1,), ())
    assert (found.compared, found.not_compared, found.gone, found.working) == (2, 4, (), ())
    assert len(found.appeared) == 1
    back = bandwidth_difference(new, old, after, before)
    assert (back.missing_gpus, back.new_gpus, back.appeared) == ((), (1,), ())
    assert [change.is_ for change in back.changes] == [12.0]


@given(seed=st.integers(0, 10**6), spread=st.floats(0, 0.05))
def test_two_runs_of_one_machine_differ_in_nothing_and_a_fifth_less_is_always_seen(
    seed: int, spread: float
) -> None:
    chance = random.Random(seed)

    def run(rate: float) -> Sample:
        repeats = tuple(rate * (1 + chance.uniform(-spread, spread) / 5) for _ in range(7))
        return h2d(sorted(repeats)[3], repeats_gb_per_s=repeats)

    assert compared(run(12.0), run(12.0)).changes == ()
    assert len(compared(run(12.0), run(9.6)).changes) == 1
