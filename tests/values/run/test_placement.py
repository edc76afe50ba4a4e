from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request
from gputopo.values.errors import UsageError
from gputopo.values.option import Text, given_of
from gputopo.values.run.placement import PlanOptions, parse_gpu_list, parse_ps, parse_speeds


@given(st.lists(st.integers(0, 1023), unique=True, min_size=1))
def test_any_list_of_indices_reads_back(indices: list[int]) -> None:
    assert parse_gpu_list("--gpus", ",".join(map(str, indices))) == tuple(indices)
    assert parse_gpu_list("--gpus", " 0 , 2-3 ") == (0, 2, 3)


@pytest.mark.parametrize(("read", "last", "beyond"), [
    (parse_gpu_list, "1023", "1024"), (parse_speeds, "0.1", "0"), (parse_speeds, "1,2.5", "1,-2.5"),
])  # fmt: skip
def test_a_number_beyond_what_can_be_is_refused(read: Callable[..., object], last: str, beyond: str) -> None:
    assert read("--option", last)
    with pytest.raises(UsageError, match="--option"):
        read("--option", beyond)


def test_a_place_for_the_variables_is_given_in_its_plain_form() -> None:
    cases: list[tuple[str, str]] = [("auto", "auto"), ("cpu", "cpu"), ("gpu:0", "gpu:0"), ("gpu:07", "gpu:7")]
    for text, plain in cases:
        assert parse_ps("--ps", text) == plain


def test_a_place_written_otherwise_gets_the_right_form_as_a_hint() -> None:
    cases: list[tuple[str, str]] = [("GPU:1", "gpu:1"), ("/device:gpu:2", "gpu:2"), ("gpu", "gpu:0")]
    for text, hint in cases:
        with pytest.raises(UsageError) as caught:
            parse_ps("--ps", text)
        assert hint in caught.value.hint


def test_the_request_holds_what_was_asked() -> None:
    typed: dict[str, Text] = {"num_gpus": "2", "gpus": "0-3", "exclude": "1", "prefer_pix": True, "ps": "cpu"}
    given_ = given_of(PlanOptions, typed)
    assert Request(model="alexnet", **given_.fields) == Request(
        model="alexnet",
        num_gpus=2,
        gpus=(0, 1, 2, 3),
        exclude=(1,),
        prefer_pix=True,
        ps="cpu",
        variable_update="auto",
    )
    assert given_.typed == {**typed, "num_gpus": 2}
    assert Request(**given_of(PlanOptions, {}).fields) == Request()
