"""Which examples come, in which order."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.inputs.cases.order import FAR

pytestmark = pytest.mark.tensorflow


def test_one_pass_holds_every_image_once_over_all_towers(given: dict[str, Any]) -> None:
    order = given["order"]
    assert len(order["first"]) == len(set(order["first"])) == 60
    assert sorted(order["second_pass"]) == sorted(order["first"])
    assert order["second_pass"] != order["first"]


def test_going_on_is_exact_where_bad_records_are_left_out_and_towers_have_other_batches(
    given: dict[str, Any],
) -> None:
    found = given["gone_on"]
    assert found["rest"] == found["whole"]
    assert found["notice"].startswith("3 bad records were skipped")


def test_going_on_with_other_batches_passes_over_no_image_and_takes_none_twice(given: dict[str, Any]) -> None:
    sums = {}
    for run in ("parts", "whole"):
        examples, losses = np.array(given["other_batches"][run]).T
        sums[run] = dict(zip(examples.cumsum().tolist(), (examples * losses).cumsum().tolist(), strict=True))
    assert list(sums["parts"]) == [10, 20, 25, 30]
    assert given["other_batches"]["images"] == 30, "the next run continues there"
    assert sums["parts"] == pytest.approx({taken: sums["whole"][taken] for taken in sums["parts"]}, rel=1e-5)


def test_what_is_too_far_to_read_up_to_begins_in_another_order_and_reports_it(given: dict[str, Any]) -> None:
    order = given["order"]
    assert len(set(order["far"])) == 10
    assert order["far"] not in (order["first"][:10], order["first"][30:40])
    assert f"continues at image {FAR} in another order" in order["restarted"][-1]


def test_the_last_batch_is_filled_up_and_after_it_there_is_nothing(given: dict[str, Any]) -> None:
    # Six pictures in joint batches of four: step 0 and, filled up, step 1.
    assert given["order"]["judged"] == [[5, 6, -1, -1], None, None]


def test_records_that_memory_cannot_hold_are_refused_before_they_are_read(given: dict[str, Any]) -> None:
    found = given["cached"]
    assert found["raw fits"] is found["decoded fits"] is None
    says = "--cache raw needs about 0.0 GiB of memory, and 0.0 GiB are free on host n1 (rank 1)"
    assert found["raw"][0] == says
    assert "use --cache raw" in found["decoded"][1]
    assert "remove --cache" in found["raw"][1]
