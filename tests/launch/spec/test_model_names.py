import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec import ModelName, model_for, model_recipe, read_model_name
from gputopo.values.errors import UsageError
from gputopo.values.run.spec import Schedule
from gputopo.workload import workload_names


def test_a_network_keeps_its_name_and_one_of_keras_applications_is_known_by_its_own() -> None:
    assert read_model_name("alexnet") == ModelName("network", "alexnet")
    assert read_model_name("KERAS:ResNet50") == ModelName("keras", "ResNet50")


def test_what_is_no_name_is_refused_with_the_nearest_that_is() -> None:
    cases: list[tuple[str, str]] = [
        ("models/net.py:build", "models.net:build"),
        (":build", "mypackage.models:build"),
        ("keras:Res Net", "keras:ResNet50"),
        ("alexnt", "alexnet"),
        ("tfbench", "use resnet50:"),
    ]
    for name, hint in cases:
        with pytest.raises(UsageError) as refused:
            read_model_name(name)
        assert hint in refused.value.hint


def test_a_model_has_its_form_for_the_data() -> None:
    cases: list[tuple[str, str | None, str]] = [
        ("alexnet", None, "alexnet"),
        ("alexnet", "cifar10", "alexnet-cifar10"),
        ("alexnet-cifar10", "imagenet", "alexnet"),
        ("resnet20", "cifar10", "resnet20"),
        ("mine.models:build", "imagenet", "mine.models:build"),
    ]
    for model, data, full in cases:
        assert model_for(model, data) == full


def test_a_model_without_that_form_is_refused_with_one_that_has_it() -> None:
    with pytest.raises(UsageError, match="its data set is imagenet") as refused:
        model_for("resnet50", "cifar10")
    assert "--model resnet5" in refused.value.hint


def factor(schedule: Schedule, step: int) -> float:
    """The factor of a step, by the words of `Schedule`."""
    now = 1.0
    if schedule.kind == "piecewise":
        now = schedule.factors[sum(step >= boundary for boundary in schedule.boundaries)]
    if schedule.kind == "exponential":
        now = schedule.decay ** (step // schedule.decay_steps)
    return now * (step / schedule.warmup_steps if step < schedule.warmup_steps else 1.0)


def test_the_resnets_of_imagenet_warm_up_five_epochs_and_fall_at_30_60_80_and_90() -> None:
    for name in ["resnet50", "resnet152_v2"]:
        rate, schedule = model_recipe(name, 256)
        assert rate == 0.128
        per_epoch = 1_281_167 / 256  # 5004.56 steps
        assert schedule.warmup_steps == 25_022
        rates = [rate * factor(schedule, int(epoch * per_epoch)) for epoch in (0, 2.5, 6)]
        assert rates == pytest.approx([0.0, 0.064, 0.128], rel=1e-3)
        after = [factor(schedule, int(epoch * per_epoch) + 1) for epoch in (29, 30, 60, 80, 90, 500)]
        assert after == [1.0, 0.1, 0.01, 0.001, 0.0001, 0.0001]


def test_the_rate_of_the_resnets_grows_with_the_batch_and_falls_with_what_is_added_up() -> None:
    assert model_recipe("resnet50", 512)[0] == 0.256
    assert model_recipe("resnet50", 512, added=8)[0] == 0.032
    assert model_recipe("resnet20", 512, added=8)[0] == 0.1


def test_the_resnets_of_cifar_fall_after_82_123_and_300_epochs() -> None:
    rate, schedule = model_recipe("resnet110_v2", 128)  # 390 whole steps an epoch
    assert rate == 0.1
    # tf_cnn_benchmarks keeps a rate for the step of the boundary itself.
    steps = (0, 82 * 390, 82 * 390 + 1, 123 * 390, 123 * 390 + 1, 300 * 390, 300 * 390 + 1)
    rates = [rate * factor(schedule, step) for step in steps]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0002])


@given(
    st.sampled_from(workload_names()), st.integers(1, 200_000), st.integers(1, 64), st.integers(0, 10_000_000)
)
def test_every_schedule_is_whole_for_any_batch(name: str, batch: int, added: int, step: int) -> None:
    rate, schedule = model_recipe(name, batch, added=added)
    assert rate > 0
    assert list(schedule.boundaries) == sorted(schedule.boundaries)
    assert schedule.kind != "piecewise" or len(schedule.factors) == len(schedule.boundaries) + 1
    assert schedule.kind != "exponential" or schedule.decay_steps >= 1
    assert 0.0 <= factor(schedule, step) <= 1.0
