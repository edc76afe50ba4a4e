"""Specs of short runs."""

from gputopo.launch.jobs.trials import trial_of
from gputopo.launch.spec.run_spec import Lifecycle
from tests.launch.specs import cpu_spec


def test_a_trial_counts_seconds_and_saves_nothing() -> None:
    spec = trial_of(cpu_spec(lifecycle=Lifecycle(checkpoints="/c", resume=True, trace_steps=(5,))))
    assert (spec.lifecycle, spec.num_batches) == (Lifecycle(), None)
    assert spec.time_budget_s is not None


def test_a_trial_counts_steps_where_they_are_asked_for() -> None:
    spec = trial_of(cpu_spec(), num_batches=7)
    assert (spec.num_batches, spec.time_budget_s, spec.max_batches) == (7, None, 7)
