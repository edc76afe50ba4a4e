"""What the planner gets of the model that a script names: sizes, without TensorFlow in this process."""

from typing import Any

import pytest

from gputopo.launch.script.sized import Sized, in_child, sized
from gputopo.values.errors import UsageError
from gputopo.workload import workloads

ALEXNET = workloads.require("alexnet")


def test_a_name_of_the_table_is_a_name_and_another_one_is_looked_up() -> None:
    assert sized("resnet50", {}) == Sized("resnet50")
    assert sized("keras:ResNet50", {}, by_name=lambda name, _: ALEXNET) == Sized("keras:ResNet50", ALEXNET)
    assert sized(None, {}) == Sized()


def test_a_number_of_parameters_is_planned_for_as_the_nearest_model_which_is_stated() -> None:
    found = sized(62_000_000, {})
    assert (found.name, found.workload) == ("alexnet", None)
    assert found.says == "62,000,000 parameters are planned for as alexnet with 61,842,345"


def test_a_function_is_counted_by_building() -> None:
    assert sized(lambda: None, {}, by_building=lambda build: ALEXNET).workload == ALEXNET
    assert sized(lambda: None, {}, by_building=lambda build: 25_000_000).name is not None


@pytest.mark.parametrize(
    ("model", "what"),
    [(0, "no number of parameters"), (True, "cannot be a bool"), (1.5, "cannot be a float")],
)
def test_what_is_no_model_is_refused(model: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        sized(model, {})


def test_a_function_that_fails_or_returns_no_model_or_ends_is_refused_with_its_reason() -> None:
    def raises() -> None:
        raise KeyError("weights")

    def ends() -> None:
        import os

        os._exit(3)

    for build, what in (
        (raises, "KeyError: 'weights'"),
        (lambda: 7, "returns a int, no Keras model"),
        (ends, "its process ended with 3"),
    ):
        with pytest.raises(UsageError, match=what):
            in_child(build)
