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
        ("desktop", ["local", 0], ("local", 0, 0)),
        ("four", ["p2p", 0, 1], ("p2p", 0, 1)),
        ("7gforce", ["p2p", 5, 6], ("p2p", 5, 6)),
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


def test_a_stream_that_was_idle_or_waited_begins_its_first_copy_some_us_later() -> None:
    spec = derived("four")
    start = (spec.settings.start_us + spec.routes["h2d", 0, 0].latency_us) * 1e-6
    (rate,) = seen(spec, ["h2d", 0], size=MIB)
    assert MIB / rate == pytest.approx(MIB / spec.rate("h2d", 0) + start, rel=1e-6)


@pytest.mark.parametrize(("size", "times"), [(16, 4.0), (40, 1.6), (128, 1.0)])
def test_a_local_copy_that_fits_the_cache_outruns_the_memory(size: int, times: float) -> None:
    spec = derived("four", "start=0", f"cache={16 * MIB}")
    taken = (
        size * MIB / seen(spec, ["local", 0], size=size * MIB)[0]
        - spec.routes["local", 0, 0].latency_us * 1e-6
    )
    assert size * MIB / taken == pytest.approx(times * spec.rate("local", 0), rel=1e-3)
    assert seen(spec, ["h2d", 0], size=size * MIB)[0] == pytest.approx(spec.rate("h2d", 0), rel=1e-2)
