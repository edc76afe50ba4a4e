import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.spec import Lifecycle
from gputopo.launch.supervision import batch_search
from tests.launch.specs import cpu_spec


@given(asked=st.integers(1, 4096), room=st.integers(0, 4096))
def test_the_first_half_that_fits_is_given_and_none_is_tried_twice(asked: int, room: int) -> None:
    tried: list[int] = []

    def fits(batch_size: int) -> bool:
        tried.append(batch_size)
        return batch_size <= room

    found = batch_search.search(asked, fits)
    assert tried == sorted(set(tried), reverse=True)
    assert all(1 <= batch_size < asked for batch_size in tried)
    assert all(batch_size > room for batch_size in tried[:-1])
    if found is None:
        assert asked == 1 or room < 1
    else:
        assert found == tried[-1] <= room


def test_a_trial_that_tells_nothing_ends_the_search() -> None:
    tried: list[int] = []
    assert batch_search.search(64, lambda size: tried.append(size)) is None
    assert tried == [32]


def test_a_trial_keeps_nothing_and_takes_two_steps() -> None:
    spec = cpu_spec(
        lifecycle=Lifecycle(checkpoints="/c", export="/e", training_accuracy=True),
        num_batches=500,
        num_warmup_batches=20,
        detect_warmup=True,
    )
    trial = batch_search.trial_of(spec, 2)
    assert (trial.batch_size, trial.num_batches, trial.num_warmup_batches) == (2, 1, 0)
    assert trial.lifecycle == Lifecycle(training_accuracy=True)
    assert batch_search.trial_of(msgspec.structs.replace(spec, task="eval"), 2).task == "forward"


@pytest.mark.parametrize(
    ("found", "tried", "said"),
    [
        (32, 64, "use --batch-size 32"),
        (None, 1, "even --batch-size 1 does not fit"),
        (None, None, "use a smaller --batch-size (now 4 per device)"),
    ],
)
def test_the_remedy_names_what_fits(found: int | None, tried: int | None, said: str) -> None:
    assert batch_search.remedy(cpu_spec(), found, tried).startswith(said)
