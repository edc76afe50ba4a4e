from typing import Any

import pytest

from tests.kit.cuda import build
from tests.kit.cuda.calling import box as derived
from tests.kit.cuda.calling import driven
from tests.kit.cuda.scenario import CudaSpec

pytestmark = pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")
MIB = 1 << 20


def box(name: str, *words: str) -> CudaSpec:
    """Return a machine whose copies begin at once and pass no cache."""
    return derived(name, "start=0", "cache=0", *words)


def seen(spec: CudaSpec, *ways: list[Any], size: int = 32 * MIB, **more: Any) -> list[float]:
    rates: list[list[float]] = driven(spec, "rates", ways=ways, size=size, **more)
    return rates[0] if "times" not in more else [rate for one in rates for rate in one]


@pytest.mark.parametrize(
    ("machine", "way", "key"),
    [
        ("four", ["h2d", 2], ("h2d", 2, 0)),
        ("four", ["d2h", 3], ("d2h", 3, 0)),
        ("desktop", ["local", 0], ("local", 0, 0)),
        ("four", ["p2p", 0, 1], ("p2p", 0, 1)),
        ("7gforce", ["p2p", 5, 6], ("p2p", 5, 6)),
        ("7gforce", ["p2p", 6, 5], ("p2p", 6, 5)),
        ("dual_socket_4_4", ["p2p", 0, 7], ("staged", 0, 7)),
    ],
)
def test_a_copy_alone_has_the_rate_that_was_set(
    machine: str, way: list[Any], key: tuple[Any, int, int]
) -> None:
    spec = box(machine)
    size = 32 * MIB
    route = spec.routes[key]
    set_time = size / spec.rate(*key) + route.latency_us * 1e-6
    assert seen(spec, way) == [pytest.approx(size / set_time, rel=1e-6)]
    # Only the latency is between this and the rate itself, for copies that are large enough for it.
    if spec.rate(*key) < 20e9:
        assert seen(spec, way)[0] == pytest.approx(spec.rate(*key), rel=5e-3)


def test_a_rate_set_in_words_is_measured_within_a_thousandth() -> None:
    spec = box("four", "rate@h2d:1=9.5", "rate@p2p:2-3=3.25")
    assert seen(spec, ["h2d", 1]) == [pytest.approx(9.5e9, rel=1e-3)]
    assert seen(spec, ["p2p", 2, 3]) == [pytest.approx(3.25e9, rel=1e-3)]


def test_two_copies_through_one_uplink_share_it_and_others_do_not() -> None:
    spec = box("2x4")
    alone = spec.rate("h2d", 0, 0)
    assert seen(spec, ["h2d", 0], ["h2d", 3]) == [pytest.approx(alone / 2, rel=1e-3)] * 2
    assert seen(spec, ["h2d", 0], ["h2d", 4]) == [pytest.approx(alone, rel=1e-3)] * 2
    eight = seen(spec, *(["h2d", gpu] for gpu in range(8)), size=4 * MIB)
    assert eight == [pytest.approx(alone / 4, rel=2e-3)] * 8


def test_a_copy_that_is_limited_elsewhere_leaves_the_rest_to_the_others() -> None:
    spec = box("8switch", "rate@h2d:1=2")
    rates = seen(spec, ["h2d", 0], ["h2d", 1], ["h2d", 2], size=8 * MIB)
    rest = (spec.rate("h2d", 0, 0) - 2e9) / 2
    # The two others end first, so that they never have more than the rest.
    assert rates == [
        pytest.approx(rest, rel=1e-3),
        pytest.approx(2e9, rel=1e-3),
        pytest.approx(rest, rel=1e-3),
    ]


def test_the_chipset_link_is_narrow_and_shared_and_the_cards_at_the_cpu_are_not_on_its_path() -> None:
    spec = box("chipset")
    wide, narrow = spec.rate("h2d", 0, 0), spec.rate("h2d", 2, 0)
    assert narrow < wide / 3
    assert seen(spec, *(["h2d", gpu] for gpu in range(4))) == [
        pytest.approx(rate, rel=1e-3) for rate in (wide, wide, narrow / 2, narrow / 2)
    ]


def test_both_directions_of_a_link_do_not_disturb_one_another() -> None:
    spec = box("four")
    assert seen(spec, ["h2d", 0], ["d2h", 0]) == [
        pytest.approx(spec.rate("h2d", 0, 0), rel=1e-3),
        pytest.approx(spec.rate("d2h", 0, 0), rel=1e-3),
    ]


def test_who_does_not_hold_the_streams_measures_the_launch() -> None:
    spec = box("four")
    small = 64 * 1024
    held, hasty = seen(spec, ["h2d", 0], size=small)[0], seen(spec, ["h2d", 0], size=small, held=False)[0]
    launch = spec.settings.launch_us * 1e-6
    assert small / hasty == pytest.approx(small / held + launch, rel=1e-3)


def test_a_hold_releases_all_streams_at_the_same_time() -> None:
    spec = box("8switch")
    rates = seen(spec, *(["h2d", gpu] for gpu in range(8)), size=MIB)
    assert max(rates) == pytest.approx(min(rates), rel=1e-6)


def test_a_card_in_ramp_up_is_slow_for_the_first_copies_only() -> None:
    spec = box("four", "wakeup@2=3")
    full = spec.rate("local", 2, 0)
    rates = seen(spec, ["local", 2], size=64 * MIB, times=5)
    assert rates == [pytest.approx(full * part, rel=1e-2) for part in (0.4, 0.4, 0.4, 1, 1)]
    assert seen(spec, ["h2d", 2], times=1) == [pytest.approx(spec.rate("h2d", 2, 0) / 4, rel=1e-3)]
    assert seen(spec, ["h2d", 1]) == [pytest.approx(spec.rate("h2d", 1, 0), rel=1e-3)]


def test_a_ramp_up_may_be_given_in_milliseconds() -> None:
    spec = box("four", "wakeup@0=12ms")
    slow = spec.rate("h2d", 0, 0) / 4
    rates = seen(spec, ["h2d", 0], times=4)  # 11 ms each while it is slow
    assert rates[:2] == [pytest.approx(slow, rel=1e-3)] * 2
    assert rates[2:] == [pytest.approx(4 * slow, rel=1e-3)] * 2


def test_memory_is_near_or_far_as_the_thread_that_asked_for_it_was_bound() -> None:
    spec = box("dual_socket_4_4", "far=0.4")
    near = spec.rate("h2d", 0, 0)
    rates = driven(spec, "nodes", size=32 * MIB, cpus=[[0, 1], [18, 60], [40]])
    assert rates == [pytest.approx(near * part, rel=1e-3) for part in (1, 0.4, 1)]
    # Near memory of a card of the other socket is node 1, from which GPU 4 is not slowed down.
    assert spec.rate("h2d", 4, 1) == near
    assert spec.rate("h2d", 4, 0) == pytest.approx(0.4 * near)


def test_the_clock_may_go_far() -> None:
    spec = box("desktop", "rate@h2d:0=0.01")
    rates = driven(spec, "long_run", size=5_000_011, times=600)  # half a second each
    assert rates == [pytest.approx(0.01e9, rel=1e-4)] * 2


def test_pageable_memory_is_slower_and_cannot_be_behind_a_hold() -> None:
    spec = box("four", "block=0.05")
    result = driven(spec, "pageable", size=32 * MIB)
    assert result["rate"] == pytest.approx(spec.rate("h2d_pageable", 0, 0), rel=5e-3)
    assert result["rate"] < 0.6 * spec.rate("h2d", 0, 0)
    assert result["held"] == 702  # CUDA_ERROR_LAUNCH_TIMEOUT


def test_a_stream_that_was_idle_or_waited_begins_its_first_copy_some_us_later() -> None:
    spec = derived("four")
    start = (spec.settings.start_us + spec.routes["h2d", 0, 0].latency_us) * 1e-6
    (rate,) = seen(spec, ["h2d", 0], size=MIB)
    assert MIB / rate == pytest.approx(MIB / spec.rate("h2d", 0) + start, rel=1e-6)


@pytest.mark.parametrize(("size", "times"), [(8, 4.0), (16, 4.0), (40, 1.6), (64, 1.0), (128, 1.0)])
def test_a_local_copy_that_fits_the_cache_outruns_the_memory(size: int, times: float) -> None:
    spec = derived("four", "start=0", f"cache={16 * MIB}")
    taken = (
        size * MIB / seen(spec, ["local", 0], size=size * MIB)[0]
        - spec.routes["local", 0, 0].latency_us * 1e-6
    )
    assert size * MIB / taken == pytest.approx(times * spec.rate("local", 0), rel=1e-3)
    assert seen(spec, ["h2d", 0], size=size * MIB)[0] == pytest.approx(spec.rate("h2d", 0), rel=1e-2)
