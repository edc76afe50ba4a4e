"""How synthetic examples come to the towers, and what all feeds have in common."""

from typing import Any

import pytest

from tests.launch.train.inputs.cases.feeding import SOURCES, STEPS
from tests.launch.train.inputs.cases.sources import FEEDS
from tests.launch.train.inputs.process import CASES

pytestmark = pytest.mark.tensorflow

# float32 sums of eight rows in another order
SAME_LOSS = 1e-5


@pytest.mark.parametrize("way", SOURCES)
def test_every_source_and_feed_has_its_batches_where_it_reports_and_gives_them_to_every_device(
    given: dict[str, Any], way: str
) -> None:
    found = given["ways"][way]
    on_devices = way in ("gpu", "cpu", "staged")
    assert found["input"]["ready_on"] == ("/CPU:0, /CPU:1" if on_devices else "/CPU:0")
    assert found["input"].get("feed", way) == way
    staged = ["/CPU:0", "/CPU:0", "/CPU:1", "/CPU:1"]  # images and labels of each tower
    assert found["fed"] == ([] if way == "gpu" else staged if on_devices else ["/CPU:0"] * 4)
    if way in FEEDS:
        assert found["sums"] == pytest.approx(given["ways"]["sync"]["sums"], rel=1e-9)


def test_python_batches_let_the_model_learn_however_they_come_and_host_batches_are_new_each_step(
    given: dict[str, Any],
) -> None:
    losses = given["ways"]["single"]["losses"]
    assert given["ways"]["staged"]["losses"] == pytest.approx(losses, rel=SAME_LOSS)
    assert losses[-1] < losses[0] / 2  # the same examples come again
    assert len(set(given["ways"]["cpu"]["sums"][0::2])) == 2 * STEPS  # of images; the others are of labels


def test_no_thread_is_left_after_close(given: dict[str, Any]) -> None:
    assert given["threads"] == {case: [] for case in CASES}


def test_no_pipeline_has_a_tuner_whose_sleep_its_end_would_wait_for(given: dict[str, Any]) -> None:
    for case in ("ways", "forms", "gone_on", "cifar"):  # of Python, of ImageNet, with care, of CIFAR-10
        assert set(given["tuned"][case]) == {False}
