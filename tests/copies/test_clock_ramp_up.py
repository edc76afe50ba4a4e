"""Clock ramp-up, on published numbers."""

from gputopo.copies import ramp_ups
from gputopo.values.bandwidth import Bandwidth, CopyRate, Samples
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine


def local(rates: dict[int, list[float]], source: str = "p2pBandwidthLatencyTest") -> Bandwidth:
    """Local copies, matrix after matrix, as the tools print them."""
    samples = tuple(
        CopyRate(
            kind="d2d_local", source=End(f"gpu:{gpu}"), destination=End(f"gpu:{gpu}"), median_gb_per_s=rate
        )
        for gpu, values in rates.items()
        for rate in values
    )
    return Bandwidth(source=source, samples=Samples(samples))


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
    assert [(one.gpu, one.low_gb_per_s, one.full_gb_per_s) for one in found] == [
        (0, (84.88, 86.46), 193.04),
        (2, (87.19, 86.92), 194.15),
    ]
    assert all(one.sure and one.full_from == "the same GPU" for one in found)


def test_a_gpu_that_never_reaches_its_peers_may_have_been_in_ramp_up() -> None:
    (found,) = ramp_ups(local({0: [84.98], 1: [189.78]}, "bandwidthTest"), SEVEN)
    assert (found.gpu, found.sure, found.full_gb_per_s) == (0, False, 189.78)


def test_a_single_low_number_is_judged_by_the_memory_of_the_model() -> None:
    (found,) = ramp_ups(local({0: [170.44]}, "bandwidthTest"), box("GeForce GTX 1080 Ti"))
    assert not found.sure
    assert ramp_ups(local({0: [353.5]}, "bandwidthTest"), box("GeForce GTX 1080 Ti")) == ()


def test_numbers_that_were_taken_after_a_warm_up_are_not_judged_as_ramp_up() -> None:
    assert ramp_ups(local(SEVEN_RATES, "live"), SEVEN) == ()
    assert ramp_ups(local(SEVEN_RATES, "nvbandwidth"), SEVEN) == ()
