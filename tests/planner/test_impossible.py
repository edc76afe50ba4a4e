"""A request that cannot be met names the option that is in the way and the best plan without it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.run.plan import mode_words
from tests.matrices import SEVEN, machine_of

MACHINE = machine_of(SEVEN)
SPEEDS = (1560.0,)


@given(st.integers(8, 12), st.sampled_from([(), (0,), (0, 3, 6)]))
def test_the_best_plan_without_the_number_is_that_without_the_option(
    count: int, exclude: tuple[int, ...]
) -> None:
    asked = Request(model="alexnet", num_gpus=count, exclude=exclude, single_gpu_images_per_sec=SPEEDS)
    best = plan(MACHINE, msgspec.structs.replace(asked, num_gpus=None)).choice
    with pytest.raises(GputopoError) as caught:
        plan(MACHINE, asked)
    assert f"without --num-gpus {count}: GPUs " in caught.value.hint
    assert f", {mode_words(best)}, {best.images_per_sec:,.0f} images/sec" in caught.value.hint


def test_where_two_options_are_in_the_way_none_is_named() -> None:
    with pytest.raises(GputopoError) as caught:
        plan(MACHINE, Request(num_gpus=9, ps="gpu:9"))
    assert "without" not in caught.value.hint


def test_an_error_of_another_kind_stays_as_it_is() -> None:
    with pytest.raises(UsageError) as caught:
        plan(MACHINE, Request(model="alexnet", num_gpus=2, program="other"))
    assert "without" not in caught.value.hint
