import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.model_names import model_recipe
from gputopo.launch.spec.run_spec import Schedule
from gputopo.workload import workloads as workload


def factor(schedule: Schedule, step: int) -> float:
    """The factor of a step, by the words of `Schedule`."""
    now = 1.0
    if schedule.kind == "piecewise":
        now = schedule.factors[sum(step >= boundary for boundary in schedule.boundaries)]
    if schedule.kind == "exponential":
        now = schedule.decay ** (step // schedule.decay_steps)
    return now * (step / schedule.warmup_steps if step < schedule.warmup_steps else 1.0)


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "resnet152", "resnet50_v1.5", "resnet152_v2"])
def test_the_resnets_of_imagenet_warm_up_five_epochs_and_fall_at_30_60_80_and_90(name: str) -> None:
    recipe = model_recipe(name, 256)
    assert recipe.learning_rate == 0.128
    per_epoch = 1_281_167 / 256  # 5004.56 steps
    assert recipe.schedule.warmup_steps == 25_022
    rates = [recipe.learning_rate * factor(recipe.schedule, int(epoch * per_epoch)) for epoch in (0, 2.5, 6)]
    assert rates == pytest.approx([0.0, 0.064, 0.128], rel=1e-3)
    after = [factor(recipe.schedule, int(epoch * per_epoch) + 1) for epoch in (29, 30, 60, 80, 90, 500)]
    assert after == [1.0, 0.1, 0.01, 0.001, 0.0001, 0.0001]


def test_the_rate_of_the_resnets_grows_with_the_batch_and_falls_with_what_is_added_up() -> None:
    assert model_recipe("resnet50", 512).learning_rate == 0.256
    assert model_recipe("resnet50", 512, added=8).learning_rate == 0.032
    assert model_recipe("resnet20", 512, added=8).learning_rate == 0.1


@pytest.mark.parametrize("name", ["resnet20", "resnet110_v2"])
def test_the_resnets_of_cifar_fall_after_82_123_and_300_epochs(name: str) -> None:
    recipe = model_recipe(name, 128)  # 390 whole steps an epoch
    assert recipe.learning_rate == 0.1
    # tf_cnn_benchmarks keeps a rate for the step of the boundary itself.
    steps = (0, 82 * 390, 82 * 390 + 1, 123 * 390, 123 * 390 + 1, 300 * 390, 300 * 390 + 1)
    rates = [recipe.learning_rate * factor(recipe.schedule, step) for step in steps]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0002])


@pytest.mark.parametrize("name", ["densenet40_k12", "densenet100_k24"])
def test_the_densenets_fall_after_150_225_and_300_epochs(name: str) -> None:
    schedule = model_recipe(name, 64).schedule  # 781 whole steps an epoch
    steps = (150 * 781, 150 * 781 + 1, 225 * 781 + 1, 300 * 781 + 1)
    assert [factor(schedule, step) for step in steps] == [1.0, 0.1, 0.01, 0.001]


def test_alexnet_of_cifar_falls_to_a_tenth_every_hundred_epochs() -> None:
    recipe = model_recipe("alexnet-cifar10", 128)
    steps = 100 * 50_000 // 128
    assert [factor(recipe.schedule, step) for step in (steps - 1, steps, 2 * steps)] == pytest.approx(
        [1.0, 0.1, 0.01]
    )


@given(
    st.sampled_from(workload.names()), st.integers(1, 200_000), st.integers(1, 64), st.integers(0, 10_000_000)
)
def test_every_schedule_is_whole_for_any_batch(name: str, batch: int, added: int, step: int) -> None:
    recipe = model_recipe(name, batch, added=added)
    schedule = recipe.schedule
    assert recipe.learning_rate > 0
    assert list(schedule.boundaries) == sorted(schedule.boundaries)
    assert schedule.kind != "piecewise" or len(schedule.factors) == len(schedule.boundaries) + 1
    assert schedule.kind != "exponential" or schedule.decay_steps >= 1
    assert 0.0 <= factor(schedule, step) <= 1.0
