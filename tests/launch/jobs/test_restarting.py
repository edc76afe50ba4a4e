"""The rest of a run after a failure of its worker."""

from gputopo.launch.jobs import SavedSteps, continued, is_of_nccl, may_restart
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import BUILDING, NCCL_TEST, CheckpointSaved, RankFailed, Step
from tests.launch.specs import cpu_spec


def step(number: int) -> Step:
    return Step(time_s=0.0, step=number, seconds=0.1, images=8, loss=1.0, marks=())


def saved(steps: int) -> CheckpointSaved:
    return CheckpointSaved(time_s=0.0, path="c", steps=steps, bytes=1, seconds=0.1)


def test_only_counted_steps_before_a_checkpoint_are_kept_also_over_restarts() -> None:
    kept = SavedSteps()
    for event in (step(0), step(1), step(2), saved(3), step(3)):
        kept.add(event)
    assert (kept.counted, kept.trained) == (2, 3)
    kept.begin_again()
    for event in (step(0), step(1), saved(5)):
        kept.add(event)
    assert (kept.counted, kept.trained) == (4, 5), "of a worker that goes on the warm-up counts, too"


def test_the_rest_trains_as_many_steps_as_an_uninterrupted_run() -> None:
    cases: list[tuple[int, tuple[int, int] | None]] = [
        (0, (3, 10)),
        (8, (1, 1)),
        (9, (0, 1)),
        (10, None),
    ]
    for counted, steps in cases:
        rest = continued(cpu_spec(num_batches=10, num_warmup_batches=3), counted)
        assert (None if rest is None else (rest.num_warmup_batches, rest.num_batches)) == steps
        assert rest is None or rest.lifecycle.resume_or_start


def test_what_comes_again_is_not_tried_again() -> None:
    cases: list[tuple[str, int, bool]] = [
        ("killed", 137, True),
        ("hung", 3, True),
        ("error", 3, True),
        ("error", 2, False),
        ("out_of_memory", 3, False),
        ("interrupted", 130, False),
    ]
    for kind, code, again in cases:
        failed = RankFailed(time_s=0.0, kind=kind, cause="c", remedy="r", exit_code=code)
        assert may_restart(failed) == again


def test_nccl_failed_where_its_test_ended_by_an_error_a_crash_or_a_hang() -> None:
    cases: list[tuple[str, str | None, bool]] = [
        ("placement", None, True),  # a wrong sum, or an error of TensorFlow's
        ("error", None, True),  # of Python, or of the loader
        ("killed", "SIGSEGV", True),
        ("hung", None, True),
        ("killed", "SIGKILL", False),  # by somebody
        ("out_of_memory", None, False),
        ("interrupted", "SIGINT", False),
    ]
    for kind, signal, of_nccl in cases:
        failed = RankFailed(time_s=0.0, kind=kind, cause="c", remedy="r", exit_code=3, signal=signal)
        assert is_of_nccl(failed, NCCL_TEST) == of_nccl, kind
        assert not is_of_nccl(failed, BUILDING)
        assert not is_of_nccl(failed, None)


def test_a_drill_that_happened_does_not_happen_again_and_a_slow_gpu_stays_slow_from_the_same_step_on() -> (
    None
):
    drills = read_drills("--drill", ["slow-gpu=1:0.9@10", "slow-gpu=1:0.8@50", "hang@20", "lost-gpu=0@21"])
    rest = continued(cpu_spec(num_batches=100, drills=drills), 20)
    assert rest is not None
    assert [one.typed for one in rest.drills] == ["slow-gpu=1:0.9", "slow-gpu=1:0.8@30"]
