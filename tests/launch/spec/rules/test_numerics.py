from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.model_names import model_recipe
from gputopo.launch.spec.rules import remarks, require_numerics
from gputopo.launch.spec.run_spec import Optimization, Precision, RunSpec, Schedule
from gputopo.values.errors import UsageError
from gputopo.workload import workloads as workload
from tests.launch.specs import cpu_spec

NO_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0"}


def with_schedule(**fields: Any) -> RunSpec:
    return cpu_spec(optimization=Optimization(schedule=Schedule(**fields)))


def refused(spec: RunSpec, environment: dict[str, str]) -> str | None:
    """Return why a spec is refused; None where it is not."""
    try:
        require_numerics(spec, environment)
    except UsageError as error:
        return error.what
    return None


def test_the_defaults_go_together() -> None:
    assert refused(cpu_spec(), {}) is None


@pytest.mark.parametrize("off", ["0", "false", "False"])
def test_channels_first_on_the_cpu_without_onednn_is_refused_with_both_alternatives(off: str) -> None:
    with pytest.raises(UsageError, match="NCHW needs oneDNN") as refused:
        require_numerics(cpu_spec(data_format="NCHW"), {"TF_ENABLE_ONEDNN_OPTS": off})
    assert "NHWC" in refused.value.hint
    assert "unset TF_ENABLE_ONEDNN_OPTS" in refused.value.hint


@pytest.mark.parametrize(
    ("spec", "environment"),
    [
        (cpu_spec(data_format="NCHW"), {}),
        (cpu_spec(data_format="NCHW"), {"TF_ENABLE_ONEDNN_OPTS": "1"}),
        (cpu_spec(data_format="NHWC"), NO_ONEDNN),
        (cpu_spec(data_format="NCHW", backend="gpu"), NO_ONEDNN),
        (cpu_spec(data_format="NCHW", precision=Precision(xla=True)), NO_ONEDNN),
    ],
)
def test_channels_first_is_fine_elsewhere(spec: RunSpec, environment: dict[str, str]) -> None:
    assert refused(spec, environment) is None


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_loss_scale_is_a_finite_number_above_zero(scale: float) -> None:
    with pytest.raises(UsageError, match="--loss-scale cannot be"):
        require_numerics(cpu_spec(precision=Precision(loss_scale=scale)), {})


def test_a_scale_that_never_may_grow_is_refused() -> None:
    with pytest.raises(UsageError, match="0 good steps"):
        require_numerics(cpu_spec(precision=Precision(auto_loss_scale=True, loss_scale_steps=0)), {})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"warmup_steps": -1}, "-1 steps"),
        ({"kind": "exponential"}, "0 steps"),
        ({"kind": "cosine", "decay_steps": 0}, "0 steps"),
        ({"kind": "piecewise", "boundaries": (5,), "factors": (1.0,)}, "1 boundaries and 1 factors"),
        ({"kind": "piecewise", "boundaries": (5, 4), "factors": (1.0, 0.1, 0.01)}, "decrease: 5, 4"),
    ],
)
def test_a_schedule_that_is_not_whole_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        require_numerics(with_schedule(**fields), {})


def test_nesterov_belongs_to_momentum() -> None:
    with pytest.raises(UsageError, match="cannot be combined with --optimizer adam") as refused:
        require_numerics(cpu_spec(optimization=Optimization(optimizer="adam", nesterov=True)), {})
    assert "--optimizer momentum" in refused.value.hint


@pytest.mark.parametrize("name", ["gradient_clip", "gradient_clip_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_gradients_are_clipped_at_a_number_above_zero(name: str, value: float) -> None:
    reported = msgspec.convert({name: value}, Optimization)
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} cannot be"):
        require_numerics(cpu_spec(optimization=reported), {})


def test_a_result_in_fp16_on_the_cpu_states_that_it_is_emulated_and_no_other_does() -> None:
    (said,) = remarks(cpu_spec(precision=Precision(compute="fp16")))
    assert "emulated" in said
    assert remarks(cpu_spec(precision=Precision(compute="bf16"))) == ()
    assert remarks(cpu_spec(precision=Precision(compute="fp16"), backend="gpu")) == ()
    assert remarks(cpu_spec(precision=Precision(compute="fp16", xla=True))) == ()


@given(st.sampled_from(workload.names()), st.integers(1, 10**9))
def test_the_models_own_schedules_go_through_whatever_the_batch(name: str, batch: int) -> None:
    recipe = model_recipe(name, batch)
    spec = cpu_spec(learning_rate=recipe.learning_rate, optimization=Optimization(schedule=recipe.schedule))
    assert refused(spec, {}) is None
