"""A run whose plan chose NCCL, and a worker in whose test NCCL fails in one respect at a time."""

import os
import signal

import pytest

from gputopo.launch.spec import Fallback
from gputopo.launch.supervise import HangLimits, WorkerLimits
from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.run.events import PhaseBegun, RankFailed, Replanned, RunStarted, Step
from gputopo.values.run.plan import Candidate
from gputopo.values.run.verdict import Expected, Known
from tests import there
from tests.launch.jobs.supervised import Ended, Run, failure
from tests.launch.specs import cpu_spec

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
    known = Known(expected=Expected(images_per_sec=1e6, low=1e6, high=1e6, source="the plan"))
    outcome = planned(run, behaviour, known=known)
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
    assert ("NCCL WARN" in run.folder.log.read_text()) == (behaviour == "is_refused_by_nccl")
    verdict = there(outcome.result.run_verdict)
    assert (verdict.word, "the plan chose NCCL" in verdict.says) == ("cannot tell", True)


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


def test_ctrl_c_in_the_test_ends_the_run(run: Run) -> None:
    run.on_phase = lambda: os.kill(os.getpid(), signal.SIGINT)
    outcome = planned(run, "hangs_in_nccl", limits=WorkerLimits(after_term=60))
    assert (outcome.exit_code, outcome.result.status, outcome.result.replanned) == (130, "interrupted", None)
