"""A run whose plan chose NCCL, and a worker in whose test NCCL fails in one respect at a time."""

import os
import shlex
import signal
from pathlib import Path

import pytest

from gputopo.launch.jobs import RunJob, supervise
from gputopo.launch.spec import Fallback
from gputopo.launch.supervise import HangLimits, RunFolder, WorkerLimits
from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.run.events import PhaseBegun, RankFailed, Replanned, RunStarted, Step
from gputopo.values.run.plan import Candidate
from gputopo.values.run.verdict import Expected, Known
from tests import there
from tests.kit_workers.stand_in import WORKER, in_place_of
from tests.launch.forks import forked_workers
from tests.launch.jobs.supervised import Ended, Run, failure
from tests.launch.specs import cpu_spec
from tests.launch.train.worker_process import environment, trivial_spec

PLANNED = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="nccl", images_per_sec=200.0)
COPIES = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="copy", images_per_sec=100.0)
BY_NCCL = cpu_spec(variable_update="replicated", ps_device=None, all_reduce="nccl")
BY_COPIES = cpu_spec(variable_update="replicated", ps_device=None, all_reduce="copy")
FALLBACK = Fallback(PLANNED, COPIES, BY_COPIES)
IMPATIENT = WorkerLimits(after_term=60, patience=HangLimits(nccl_s=0.2))


def planned(run: Run, behaviour: str, **more: object) -> Ended:
    schema.write(run.folder.spec, BY_NCCL)
    return run(behaviour, **{"spec": BY_NCCL, "fallback": FALLBACK, "limits": IMPATIENT, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        ("is_refused_by_nccl", "the reduction 'nccl' failed: NCCL: unhandled system error."),
        ("crashes_in_nccl", "the worker was ended by SIGSEGV"),
    ],
)
def test_another_worker_trains_by_copies_and_both_placements_are_recorded(
    run: Run, behaviour: str, cause: str
) -> None:
    outcome = planned(run, behaviour)
    assert (outcome.exit_code, outcome.result.status, outcome.result.steps) == (0, "complete", 3)
    kinds = [type(event) for event in run.written()]
    assert kinds[:4] == [RunStarted, PhaseBegun, Replanned, Step]
    assert RankFailed not in kinds
    result = summarise(run.written())
    replanned = there(result.replanned)
    assert (replanned.planned, replanned.choice) == (PLANNED, COPIES)
    assert cause in replanned.cause
    assert (result.spec["all_reduce"], result.ran["all_reduce"]) == ("copy", "copy")
    assert result.failure is None
    assert any("replicated copy instead of replicated nccl" in said for said in result.says)


def test_what_nccl_printed_stays_in_the_log(run: Run) -> None:
    planned(run, "is_refused_by_nccl")
    assert "NCCL WARN" in run.folder.log.read_text()


def test_a_run_without_nccl_is_not_judged_by_the_speed_of_nccl(run: Run) -> None:
    known = Known(expected=Expected(images_per_sec=1e6, low=1e6, high=1e6, source="the plan"))
    verdict = there(planned(run, "is_refused_by_nccl", known=known).result.run_verdict)
    assert verdict.word == "cannot tell"
    assert "the plan chose NCCL" in verdict.says


def test_nccl_that_the_user_asked_for_has_no_substitute(run: Run) -> None:
    outcome = planned(run, "crashes_in_nccl", fallback=None)
    assert (outcome.exit_code, outcome.result.replanned) == (139, None)
    assert failure(outcome).remedy.startswith("use --all-reduce copy; ")


def test_what_fails_after_the_test_is_no_fault_of_nccl(run: Run) -> None:
    outcome = planned(run, "crashes_after_nccl")
    assert (outcome.exit_code, failure(outcome).kind) == (139, "killed")
    assert not any(isinstance(event, Replanned) for event in outcome.events)


def test_a_run_that_trains_without_nccl_goes_on_without_it_after_a_failure_by_chance(run: Run) -> None:
    outcome = planned(run, "fails_in_nccl_and_in_training", restarts=1)
    assert outcome.result.spec["all_reduce"] == "copy"
    assert sum(isinstance(event, PhaseBegun) for event in outcome.events) == 1, "NCCL is tried once"
    assert (run.folder.path / "restart-1.json").is_file()
    assert (outcome.exit_code, failure(outcome).kind) == (137, "killed"), "of the second run"
    assert there(outcome.result.replanned).choice == COPIES


@pytest.mark.tensorflow
@pytest.mark.usefixtures("ends_in_time")
def test_the_core_trains_to_the_end_where_tensorflow_has_no_kernel_of_nccl(tmp_path: Path) -> None:
    """CPU devices have none: what a worker says of it there, the launcher takes for NCCL's failure."""
    copies = {"variable_update": "replicated", "ps_device": None}
    spec = trivial_spec(towers=2, all_reduce="nccl_op", **copies)
    instead = trivial_spec(towers=2, all_reduce="copy", **copies)
    folder = RunFolder(tmp_path)
    schema.write(folder.spec, spec)
    with forked_workers(tmp_path) as command:
        forked = shlex.join(command(Path("SPEC"), 0)).replace("SPEC", '"$1"').replace("fd/0", "fd/$2")
        job = RunJob(
            spec=spec,
            folder=folder,
            on_event=lambda event: None,
            environment=environment(),
            fallback=Fallback(PLANNED, COPIES, instead),
        )
        with in_place_of(WORKER, f"exec {forked}", tmp_path / "stand-in"):
            outcome = supervise(job)
    result = outcome.result
    assert (outcome.exit_code, result.status, result.steps) == (0, "complete", 3), folder.log.read_text()
    assert "No OpKernel was registered to support Op 'NcclAllReduce'" in there(result.replanned).cause
    assert (result.ran["all_reduce"], result.replica_difference) == ("copy", 0.0)
    assert result.parameters
    assert "Traceback" in folder.log.read_text(), "of TensorFlow's error"


def test_ctrl_c_in_the_test_ends_the_run(run: Run) -> None:
    run.on_phase = lambda: os.kill(os.getpid(), signal.SIGINT)
    outcome = planned(run, "hangs_in_nccl", limits=WorkerLimits(after_term=60))
    assert (outcome.exit_code, outcome.result.status, outcome.result.replanned) == (130, "interrupted", None)
