"""Facts that last: one finding for each cause, against the minority or against nobody."""

from collections.abc import Sequence

import pytest

from gputopo.values.finding import Finding
from tests.findings.boxes import Change, all_of, find, gpu, sound

IDS = {
    *("clocks.memory_differs", "clocks.core_differs", "card.differs"),
    *("configuration.differs", "pcie.slot_differs", "nvlink.differs"),
}


def differing(change: Change, count: int = 4) -> list[Finding]:
    return [one for one in find(change(sound(count))) if one.id in IDS]


def found(change: Change, count: int = 4) -> list[tuple[str, str]]:
    return [(one.id, one.subject.text) for one in differing(change, count)]


OTHER_BUILD = gpu(
    1,
    vbios_version="88.00.13.00.01",
    clocks_mhz={"sm": {"max": 1380}, "graphics": {"max": 1380}, "memory": {"max": 810, "application": None}},
    power_w={"default_limit": 250.0, "limit": 250.0, "enforced_limit": 250.0, "max": 250.0},
)


def test_a_card_of_another_build_is_reported_once() -> None:
    assert found(OTHER_BUILD) == [("clocks.memory_differs", "gpu:1")]
    (one,) = differing(OTHER_BUILD)
    assert one.evidence["vbios_version"] == "88.00.13.00.01"
    assert one.evidence["peers"]["power_w.default_limit"] == 300.0
    assert "graphics" not in one.says  # set with the clock of the SMs


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (gpu(1, persistence_mode=False), "configuration.persistence_off"),
        (
            gpu(1, power_w={"limit": 200.0, "enforced_limit": 200.0, "draw": 199.0}),
            "power.limit_below_default",
        ),
        (gpu(1, pcie={"width_now": 4, "width_max": 4}), "pcie.slot_narrow"),
    ],
)
def test_a_cause_with_a_finding_of_its_own_is_no_second_one(change: Change, cause: str) -> None:
    assert found(change) == []
    assert [one.id for one in find(change(sound()))] == [cause]


# Which of so many GPUs are named, by the versions of their VBIOS; None: it is not reported.
@pytest.mark.parametrize(
    ("versions", "named"),
    [
        ("aab", ["gpu:2"]),
        ("abbbabbb", ["gpus:0,4"]),
        (("a", None, "b", "a"), ["gpu:2"]),
        ("ab", ["gpus:0-1"]),
        ("aabb", ["gpus:0-3"]),  # no half is more than half
        ("a", []),
        ((None, None), []),
    ],
)
def test_those_are_odd_that_differ_from_more_than_half(
    versions: Sequence[str | None], named: list[str]
) -> None:
    change = all_of(*(gpu(n, vbios_version=version) for n, version in enumerate(versions)))
    assert [subject for _, subject in found(change, len(versions))] == named


def test_values_within_the_noise_are_the_same_and_others_are_said_with_those_of_the_peers() -> None:
    limits = (298.0, 302.0, 300.0, 280.0)
    change = all_of(*(gpu(n, power_w={"max": limit}) for n, limit in enumerate(limits)))
    (one,) = differing(change)
    assert one.subject.text == "gpu:3"
    assert "power max 280 W (302 W on 3 GPUs of this model)" in one.says
    two = all_of(*(gpu(n, power_w={"max": limit}) for n, limit in enumerate((300.0, 250.0))))
    (both,) = differing(two, 2)
    assert both.says == "power max 300 W (GPU 0), 250 W (GPU 1)"
