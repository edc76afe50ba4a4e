"""Clock ramp-up, on repeats of a card that ramps up, and on published numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.copies.settling import RampUp, ramp_ups, settle
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine

NOISE = st.floats(0.99, 1.01)


def test_the_first_repeats_of_a_card_in_ramp_up_are_discarded_and_replaced() -> None:
    found = settle([85.0, 87.0, 194.0, 195.0, 194.5])
    assert found.discarded == (85.0, 87.0)
    assert found.counted == (194.0, 195.0, 194.5)
    assert (found.more, found.settled) == (True, False)


def test_a_card_that_ramps_up_with_the_last_repeat_is_measured_again() -> None:
    assert settle([85.0, 85.0, 85.0, 85.0, 195.0]).more
    found = settle([85.0, 85.0, 85.0, 85.0, 195.0, 194.0])
    assert (found.discarded, found.counted) == ((85.0,) * 4, (195.0, 194.0))


def test_one_slow_slip_in_the_middle_counts_and_needs_one_repeat_more() -> None:
    slip = [10.0, 10.1, 8.0, 10.0, 10.1]
    assert settle(slip).more
    found = settle([*slip, 10.0])
    assert 8.0 in found.counted
    assert (found.more, found.settled) == (False, True)


def test_repeats_end_at_the_maximum_and_the_number_is_called_unsettled() -> None:
    swinging = [10.0, 14.0, 7.0, 12.0, 5.0] * 3
    found = settle(swinging)
    assert (found.more, found.settled) == (False, False)


@pytest.mark.parametrize(("wanted", "most"), [(0, 5), (6, 5)])
def test_a_wrong_number_of_repeats_is_refused(wanted: int, most: int) -> None:
    with pytest.raises(ValueError, match="wanted"):
        settle([1.0], wanted, most)


@given(
    low=st.lists(NOISE, max_size=5),
    high=st.lists(NOISE, min_size=5, max_size=9),
    share=st.floats(0.02, 0.85),
)
def test_whatever_the_step_all_low_repeats_go_and_all_high_ones_stay(
    low: list[float], high: list[float], share: float
) -> None:
    found = settle([share * 195 * one for one in low] + [195 * one for one in high])
    assert len(found.discarded) == len(low)
    assert found.settled


@given(st.lists(st.floats(0.01, 1000), max_size=20))
def test_every_repeat_either_counts_or_is_discarded_in_order(values: list[float]) -> None:
    found = settle(values)
    assert [*found.discarded, *found.counted] == values
    assert not (found.more and found.settled)
    if found.discarded:
        assert max(found.discarded) < max(found.counted)


def local(rates: dict[int, list[float]], source: str = "p2pBandwidthLatencyTest") -> Bandwidth:
    """Local copies, matrix after matrix, as the tools print them."""
    samples = tuple(
        Sample(
            kind="d2d_local", source=End(f"gpu:{gpu}"), destination=End(f"gpu:{gpu}"), median_gb_per_s=rate
        )
        for gpu, values in rates.items()
        for rate in values
    )
    return Bandwidth(source=source, samples=samples)


def box(*names: str | None) -> Machine:
    return Machine(
        source="a test", gpus=tuple(Gpu(index=place, name=name) for place, name in enumerate(names))
    )


SEVEN = box(*["GeForce GTX 1070"] * 6, "GeForce GTX 1080")
SEVEN_RATES = {
    0: [84.88, 86.46, 193.04, 190.97],
    1: [194.83, 194.92, 194.44, 193.86],
    2: [87.19, 86.92, 194.15, 193.14],
    6: [255.64, 254.83, 256.40, 256.91],
}


def test_low_copies_of_a_gpu_that_later_reaches_its_peers_were_during_ramp_up() -> None:
    found = ramp_ups(local(SEVEN_RATES), SEVEN)
    assert found == (
        RampUp(gpu=0, low_gb_per_s=(84.88, 86.46), full_gb_per_s=193.04, full_from="the same GPU", sure=True),
        RampUp(gpu=2, low_gb_per_s=(87.19, 86.92), full_gb_per_s=194.15, full_from="the same GPU", sure=True),
    )


def test_a_gpu_that_never_reaches_its_peers_may_have_been_in_ramp_up() -> None:
    (found,) = ramp_ups(local({0: [84.98], 1: [189.78]}, "bandwidthTest"), SEVEN)
    assert (found.gpu, found.sure, found.full_gb_per_s) == (0, False, 189.78)


def test_a_single_low_number_is_judged_by_the_memory_of_the_model() -> None:
    (found,) = ramp_ups(local({0: [170.44]}, "bandwidthTest"), box("GeForce GTX 1080 Ti"))
    assert not found.sure
    assert ramp_ups(local({0: [353.5]}, "bandwidthTest"), box("GeForce GTX 1080 Ti")) == ()


def test_where_all_peers_are_low_the_model_shows_it() -> None:
    rates = {0: [170.44, 168.0], 1: [168.33], 2: [214.95]}
    found = ramp_ups(local(rates, "bandwidthTest"), box(*["GeForce GTX 1080 Ti"] * 3))
    assert [(one.gpu, one.sure) for one in found] == [(0, False), (1, False), (2, False)]


def test_a_card_without_name_numbers_or_peers_is_not_judged() -> None:
    assert ramp_ups(local({0: [85.0]}), box(None)) == ()
    assert ramp_ups(local({0: [85.0], 1: [195.0]}), box("Unheard Of 1", "Unheard Of 2")) == ()


def test_numbers_that_were_taken_after_a_warm_up_are_not_judged_as_ramp_up() -> None:
    assert ramp_ups(local(SEVEN_RATES, "live"), SEVEN) == ()
    assert ramp_ups(local(SEVEN_RATES, "nvbandwidth"), SEVEN) == ()
