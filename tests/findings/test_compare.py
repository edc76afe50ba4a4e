"""Majorities: more than half agree, within the noise; the others are the odd ones."""

import pytest
from msgspec.structs import replace

from gputopo.findings.compare import differences
from gputopo.values.machine import Gpu, PowerW
from tests import there

LIMIT = "power_w.limit"


def gpus(*limits: float | None) -> list[Gpu]:
    return [Gpu(index=index, power_w=PowerW(limit=limit)) for index, limit in enumerate(limits)]


@pytest.mark.parametrize(
    ("limits", "common", "odd"),
    [
        ((300.0, 300.0, 250.0), 300.0, [2]),
        ((300.0, 250.0, 250.0, 250.0, 300.0, 250.0, 250.0, 250.0), 250.0, [0, 4]),
        ((300.0, None, 250.0, 300.0), 300.0, [2]),  # one does not report it
        ((300.0, 250.0), None, [0, 1]),
        ((300.0, 300.0, 250.0, 250.0), None, [0, 1, 2, 3]),
        ((300.0, 250.0, 200.0), None, [0, 1, 2]),
    ],
)
def test_those_are_odd_that_differ_from_more_than_half(
    limits: tuple[float | None, ...], common: float | None, odd: list[int]
) -> None:
    found = there(differences(gpus(*limits), LIMIT))
    assert (found.common, sorted(found.odd)) == (common, odd)


@pytest.mark.parametrize("limits", [(), (300.0,), (300.0, 300.0), (300.0, None), (None, None)])
def test_without_two_values_there_is_nothing_to_compare(limits: tuple[float | None, ...]) -> None:
    assert differences(gpus(*limits), LIMIT) is None


def test_values_within_the_noise_are_the_same() -> None:
    assert differences(gpus(300.0, 298.0, 302.0), LIMIT, 0.02) is None
    found = there(differences(gpus(300.0, 298.0, 302.0, 280.0), LIMIT, 0.02))
    assert list(found.odd) == [3]


def test_the_words_have_both_values_and_their_gpus() -> None:
    found = there(differences([*gpus(300.0, 300.0), replace(gpus(250.0)[0], index=2)], LIMIT))
    assert found.words(2) == "power limit 250 W (300 W on 2 GPUs of this model)"
    both = there(differences(gpus(300.0, 250.0), LIMIT))
    assert both.all_words() == "power limit 300 W (GPU 0), 250 W (GPU 1)"
