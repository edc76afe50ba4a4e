from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.values.errors import UsageError
from gputopo.values.run.drill import FORMS, Drill, labels, read_drills, says


def test_a_drill_is_shown_as_it_was_typed_and_read_from_the_spec_of_a_run() -> None:
    cases: list[str] = [form.example for form in FORMS.values()] + ["slow-gpu=1:0.85@300"]
    for typed in cases:
        drills = read_drills("--drill", [typed])
        assert [one.typed for one in drills] == [typed]
        assert labels({"drills": msgspec.to_builtins(drills)}) == (typed,)


@given(
    device=st.integers(0, 99),
    thousandths=st.integers(1, 1000),
    step=st.integers(0, 10**8),
    fault=st.sampled_from(["slow-gpu", "slow-weights"]),
)
def test_what_is_typed_is_what_is_injected(device: int, thousandths: int, step: int, fault: Any) -> None:
    drill = Drill(fault=fault, device=device, factor=thousandths / 1000, step=step)
    assert read_drills("--drill", [drill.typed]) == (drill,)


def test_what_is_no_drill_is_refused_with_its_form() -> None:
    cases: list[tuple[list[str], str, str]] = [
        (["slow-gpu=1"], "cannot be 'slow-gpu=1'", "write it as slow-gpu=1:0.85"),
        (["slow-gpu=1:1.2"], "has the factor 1.2", "0.85 is 15% slower"),
        (["nan@0"], "cannot be", "write it as nan@50"),
        (["hang@3", "hang@3"], "hang@3 is given twice", "once"),
    ]
    for typed, what, hint in cases:
        with pytest.raises(UsageError, match=what) as refused:
            read_drills("--drill", typed)
        assert hint in refused.value.hint


def test_the_label_names_each_fault_with_its_device_and_step() -> None:
    drills = read_drills("--drill", ["slow-gpu=1:0.85@300", "slow-input=0.8", "lost-gpu=0@9"])
    assert says(drills, "GPU") == (
        "DRILL (a fault injected on purpose): GPU 1 computes at 85% of its own speed from step 300; the "
        "input delivers 80% of what the devices could use; GPU 0 is lost at step 9. This run is not used "
        "for comparisons."
    )
