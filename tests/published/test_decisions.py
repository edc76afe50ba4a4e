"""What `plan` chooses where others measured several placements: `decisions.csv`."""

from statistics import fmean

import pytest

from gputopo.captures import read_bundled
from gputopo.planner import Request, plan
from tests.published.decisions import RULES, choice_of, kind_of, published_decisions


def test_there_are_forty_decisions_and_in_ten_of_them_nccl_is_not_the_fastest() -> None:
    rows = published_decisions()
    assert len(rows) >= 40
    slower = [one for one in rows if "nccl" in one.speeds and one.loss("nccl") > 0]
    assert len(slower) >= 10
    assert all(one.source.startswith("https://") for one in rows)


def test_the_choice_loses_no_more_than_the_rule() -> None:
    """In a paired comparison: no decision is worse by more than another one is better."""
    apart = [one.loss(choice_of(one)) - one.loss(RULES["the rule"](one)) for one in published_decisions()]
    assert fmean(apart) <= 0


@pytest.mark.parametrize(("gpus", "images_per_sec"), [((0, 1), 1863.78), ((4, 5), 1830.2), ((0, 5), 1572.61)])
def test_the_pair_table_of_7gforce_is_chosen_as_its_owner_measured(
    gpus: tuple[int, ...], images_per_sec: float
) -> None:
    choice = plan(read_bundled("7gforce"), Request(gpus=gpus, model="alexnet")).choice
    assert kind_of(choice) == "spread"
    assert (choice.evidence, choice.images_per_sec) == ("measured", images_per_sec)
    assert "measured with tf_cnn_benchmarks" in choice.reasons[0]


def test_of_all_pairs_of_7gforce_the_fastest_is_chosen_and_never_independent_training() -> None:
    choice = plan(read_bundled("7gforce"), Request(num_gpus=2, model="alexnet")).choice
    assert (choice.gpus, choice.ps_device, choice.images_per_sec) == ((0, 1), "gpu:spread", 1863.78)
