"""When a warm-up is over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train.warmup import is_warm, longest_warmup
from gputopo.runs.steadiness import MAX_STEPS
from tests.launch.specs import cpu_spec


@given(st.integers(0, 300), st.booleans(), st.lists(st.floats(0.001, 1.0), max_size=300))
def test_no_warmup_is_shorter_than_asked_or_longer_than_its_limit(
    least: int, detect: bool, seconds: list[float]
) -> None:
    spec = cpu_spec(num_warmup_batches=least, detect_warmup=detect)
    assert not is_warm(spec, seconds[: least - 1]) or least == 0
    assert is_warm(spec, [0.1] * longest_warmup(spec))


@pytest.mark.parametrize("done", [0, 1, 4, 5])
def test_a_counted_warmup_ends_with_its_last_step(done: int) -> None:
    assert is_warm(cpu_spec(num_warmup_batches=5, detect_warmup=False), [0.1] * done) == (done == 5)


def test_a_detected_warmup_ends_early_where_times_are_steady_and_never_where_they_fall() -> None:
    spec = cpu_spec(num_warmup_batches=0, detect_warmup=True)
    steady = [1.0] * 5 + [0.1] * 55
    falling = [1.0 / (number + 1) for number in range(MAX_STEPS - 1)]
    assert any(is_warm(spec, steady[:done]) for done in range(1, len(steady) + 1))
    assert not any(is_warm(spec, falling[:done]) for done in range(1, len(falling) + 1))
