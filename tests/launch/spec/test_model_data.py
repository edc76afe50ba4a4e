import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.model_data import data_of, model_for
from gputopo.values.errors import UsageError
from gputopo.workload import workloads as workload


@pytest.mark.parametrize(
    ("model", "data", "full"),
    [
        ("alexnet", None, "alexnet"),
        ("alexnet", "imagenet", "alexnet"),
        ("alexnet", "cifar10", "alexnet-cifar10"),
        ("trivial", "cifar10", "trivial-cifar10"),
        ("alexnet-cifar10", "imagenet", "alexnet"),
        ("resnet20", "cifar10", "resnet20"),
        ("keras:ResNet50", "cifar10", "keras:ResNet50"),
        ("mine.models:build", "imagenet", "mine.models:build"),
    ],
)
def test_a_model_has_its_form_for_the_data(model: str, data: str | None, full: str) -> None:
    assert model_for(model, data) == full


def test_a_model_without_that_form_is_refused_with_one_that_has_it() -> None:
    with pytest.raises(UsageError, match="it takes imagenet only") as refused:
        model_for("resnet50", "cifar10")
    assert "--model resnet5" in refused.value.hint


@given(model=st.sampled_from(workload.names()), data=st.sampled_from(["imagenet", "cifar10"]))
def test_what_is_given_takes_that_data(model: str, data: str) -> None:
    try:
        full = model_for(model, data)
    except UsageError:
        return
    assert data_of(full) == data


def test_of_models_that_are_not_ours_the_data_are_not_known() -> None:
    assert data_of("keras:ResNet50") is None
