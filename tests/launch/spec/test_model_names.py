import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec import model_names
from gputopo.launch.spec.model_names import ModelName, model_for
from gputopo.values.errors import UsageError
from gputopo.workload import workloads as workload

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


def test_a_network_keeps_its_name_and_its_defaults() -> None:
    assert model_names.read("alexnet") == ModelName("network", "alexnet")
    known = workload.require("alexnet")
    assert model_names.defaults("alexnet") == model_names.Defaults(
        known.gpu_batch, known.cpu_batch, known.learning_rate
    )


@pytest.mark.parametrize("name", ["keras:ResNet50", "KERAS:ResNet50"])
def test_a_model_of_keras_applications_is_known_by_name_alone(name: str) -> None:
    assert model_names.read(name) == ModelName("keras", "ResNet50")
    assert model_names.defaults(name).gpu_batch == 32


@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=2))
def test_any_import_path_is_taken_apart_at_its_colon(module: list[str], attribute: list[str]) -> None:
    read = model_names.read(f"{'.'.join(module)}:{'.'.join(attribute)}")
    if module[0].lower() != "keras" or len(module) > 1:
        assert read == ModelName("own", ".".join(attribute), ".".join(module))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("models/net.py:build", "models.net:build"),
        ("net.py", "net:build"),
        ("mypkg:", "mypackage.models:build"),
        (":build", "mypackage.models:build"),
        ("keras:", "keras:ResNet50"),
        ("keras:Res Net", "keras:ResNet50"),
        ("alexnt", "alexnet"),
        ("tfbench", "write resnet50,"),
        ("TensorPack", "write resnet50,"),
    ],
)
def test_what_is_no_name_is_refused_with_the_nearest_that_is(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        model_names.read(name)
    assert hint in refused.value.hint


def test_reading_a_name_does_not_load_tensorflow() -> None:
    if "tensorflow" in sys.modules:
        pytest.skip("another test of this process loaded TensorFlow")
    model_names.read("keras:VGG16")
    model_names.read("mypkg.nets:build")
    assert not {"tensorflow", "keras"} & set(sys.modules)


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
    with pytest.raises(UsageError, match="its data set is imagenet") as refused:
        model_for("resnet50", "cifar10")
    assert "--model resnet5" in refused.value.hint
