import msgspec

from gputopo.launch.jobs import own_spec
from gputopo.values.run.spec import Lifecycle, Optimization
from tests.launch.specs import cpu_spec


def test_a_host_that_serves_has_the_spec_of_rank_0() -> None:
    spec = cpu_spec(lifecycle=Lifecycle(export="/out"))
    assert own_spec(spec, 1) is spec


def test_a_host_that_trains_goes_on_until_rank_0_has_ended_and_saves_nothing() -> None:
    saved = Lifecycle(checkpoints="/kept", export="/out", resume=True, trace="/t", trace_steps=(3,))
    spec = cpu_spec(rank=0, num_batches=9, seed=7, lifecycle=saved, optimization=Optimization(nesterov=True))
    own = own_spec(spec, 1)
    assert (own.rank, own.batch_limit, own.time_budget_s) == (1, None, None)
    assert own.lifecycle == Lifecycle(resume=True)
    assert own.optimization == Optimization(nesterov=True, on_nan="warn")
    changed = {name: getattr(spec, name) for name in ("rank", "num_batches", "max_batches")}
    changed |= {"lifecycle": saved, "optimization": spec.optimization}
    assert msgspec.structs.replace(own, **changed) == spec
