import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec.cpu_plan import MOST_CPU_DEVICES, cpu_plan
from gputopo.values.errors import UsageError


def test_variables_may_be_spread_over_the_devices() -> None:
    choice = cpu_plan("alexnet", ps="gpu:spread", devices=3).choice
    assert (choice.variable_update, choice.ps_device) == ("parameter_server", "gpu:spread")


def test_a_reduction_asks_for_copies() -> None:
    choice = cpu_plan("alexnet", all_reduce="xring#2").choice
    assert (choice.variable_update, choice.all_reduce, choice.ps_device) == ("replicated", "ring#2", None)


@pytest.mark.parametrize("update", ["parameter_server", "independent"])
def test_a_reduction_where_nothing_is_reduced_is_refused(update: str) -> None:
    with pytest.raises(UsageError, match="nothing is reduced") as refused:
        cpu_plan("alexnet", all_reduce="ring", variable_update=update)
    assert "--variable-update replicated" in refused.value.hint


@given(
    devices=st.integers(1, MOST_CPU_DEVICES),
    ps=st.sampled_from(["auto", "cpu", "gpu:0", "gpu:spread", "gpu:63"]),
    update=st.sampled_from(["auto", "parameter_server", "replicated", "independent"]),
    reduction=st.sampled_from([None, "copy", "ring#2"]),
)
def test_a_plan_is_of_one_piece_or_refused(devices: int, ps: str, update: str, reduction: str | None) -> None:
    try:
        choice = cpu_plan(None, devices=devices, ps=ps, variable_update=update, all_reduce=reduction).choice
    except UsageError:
        return
    assert (choice.ps_device is not None) == (choice.variable_update == "parameter_server")
    assert (choice.all_reduce is not None) == (choice.variable_update == "replicated")
