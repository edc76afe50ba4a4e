"""How synthetic examples come to the towers, and what all feeds have in common."""

from typing import Any

import pytest

from tests.launch.train.inputs.cases.feeding import STEPS, TRAINED
from tests.launch.train.inputs.cases.sources import FEEDS
from tests.launch.train.inputs.process import CASES

pytestmark = pytest.mark.tensorflow

# float32 sums of eight rows in another order
SAME_LOSS = 1e-5


@pytest.mark.parametrize(
    ("way", "towers"),
    [("gpu", 1), ("cpu", 1), ("sync", 1), *((way, 2) for way in ("gpu", "cpu", *FEEDS))],
)
def test_every_source_and_feed_has_its_batches_where_it_reports_and_gives_them_to_every_device(
    given: dict[str, Any], way: str, towers: int
) -> None:
    found = given["ways"][f"{way}-{towers}"]
    devices = [f"/CPU:{tower}" for tower in range(towers)]
    on_devices = way in ("gpu", "cpu", "staged")
    assert found["input"]["ready_on"] == (", ".join(devices) if on_devices else "/CPU:0")
    assert found["input"].get("feed", way) == way
    staged = [device for device in devices for _ in ("images", "labels")]
    assert found["fed"] == ([] if way == "gpu" else staged if on_devices else ["/CPU:0"] * 2 * towers)
    if way in FEEDS:
        assert found["sums"] == pytest.approx(given["ways"][f"sync-{towers}"]["sums"], rel=1e-9)
    if (way, towers) in TRAINED:
        assert found["losses"] == pytest.approx(given["ways"]["sync-1"]["losses"], rel=SAME_LOSS)
        assert len(set(found["losses"])) == STEPS


def test_python_batches_let_the_model_learn_and_host_batches_are_new_each_step(given: dict[str, Any]) -> None:
    python, host = given["ways"]["sync-1"]["losses"], given["ways"]["cpu-1"]["sums"]
    assert python[-1] < python[0] / 2  # the same examples come again
    assert len(set(host[0::2])) == STEPS  # of the images; every other sum is of labels


def test_no_thread_is_left_after_close(given: dict[str, Any]) -> None:
    assert given["threads"] == {case: [] for case in CASES}


def test_no_pipeline_has_a_tuner_whose_sleep_its_end_would_wait_for(given: dict[str, Any]) -> None:
    for case in ("ways", "forms", "gone_on", "cifar"):  # of Python, of ImageNet, with care, of CIFAR-10
        assert set(given["tuned"][case]) == {False}
