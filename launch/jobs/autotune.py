"""`--autotune K`: measures the K best placements, then plans for the fastest or trains with it."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from gputopo.launch.checks import runnable
from gputopo.launch.job import Job
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.claims import ClaimedError, claimed, claims_folder
from gputopo.launch.jobs.race import contenders
from gputopo.launch.jobs.trials import Trial, trial_of, tune
from gputopo.launch.plans import EXPLAINS
from gputopo.launch.site import Site
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.target import Target
from gputopo.planner import LISTED, Request, plan_environment, require_prediction
from gputopo.report import autotune_document, autotune_note, document_text, to_stderr
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.plan import Autotune, Candidate, Plan
from gputopo.values.run.spec import RunSpec

Train = Callable[[Target, RunSpec, OutputOptions], int]
"""Trains on a target, shows the result, and returns the exit code."""


def train_fastest(job: Job, target: Target, options: OutputOptions, train: Train) -> int:
    """Measure the best placements of the target's plan, `train` with the fastest; return the exit code."""
    spec = runnable(job, target, options)
    with contextlib.ExitStack() as claims:
        trials = _trials(job, target, options.autotune or 0, claims)
        folder = runs.folder_for(options.output, trials[0].spec.model)
        tuning, code = tune(trials, folder)
        to_stderr(document_text(autotune_document(tuning), 80))
        to_stderr(f"{autotune_note(tuning)}\n")
        if code:
            return code
        winner = trials[tuning.winner or 0]
        if set(winner.candidate.gpus) <= set(target.plan.choice.gpus):
            claims.close()
        tuned = replace(target, plan=_plan_with(winner, tuning, target.plan))
        # If all placements fail, the run itself reports the failure, because it then fails too.
        final = spec if tuning.winner is None else runnable(job, tuned, options)
        final = msgspec.structs.replace(final, says=(*final.says, autotune_note(tuning)))
        return train(tuned, final, msgspec.structs.replace(options, output=str(folder)))


def plan_by_runs(
    job: Job, site: Site, request: Request, *, candidates: int | None, count: int
) -> tuple[Plan, int]:
    """Return the plan of a request after short runs of its `count` best placements, and an exit code.

    The code is 0, or 128 + n if signal n ended the runs. Like `run`, it uses CPU devices if there is no GPU.
    Raises UsageError if there is nothing to compare, and HardwareError if no placement could be run.
    """
    site.keep = None if candidates is None or candidates < LISTED else candidates
    with contextlib.ExitStack() as claims:
        target = job.planned_on(site, claims, request)
        plan = before = target.plan
        if request.explain:
            require_prediction(plan, EXPLAINS)
        runnable(job, target, OutputOptions())
        trials = _trials(job, target, count, claims)
        folder = runs.folder_for(None, trials[0].spec.model)
        tuning, code = tune(trials, folder)
    if tuning.winner is not None:
        plan = _plan_with(trials[tuning.winner], tuning, before)
    elif not code:
        cause = next(
            measurement.failure for measurement in tuning.measured if measurement.failure is not None
        )
        raise HardwareError(f"no placement could be run: {cause}", f"see the logs of the runs in {folder}")
    if request.explain and plan.choice != before.choice:
        site.keep = 1
        only = _only(site.with_costs(request), plan.choice)
        plan = msgspec.structs.replace(plan, line=site.target(only).plan.line)
    return plan, code


def _only(request: Request, choice: Candidate) -> Request:
    """Return the request for exactly one candidate."""
    return msgspec.structs.replace(
        request,
        gpus=choice.gpus,
        num_gpus=None,
        gain=None,
        ps=choice.ps_device or "auto",
        variable_update=choice.variable_update,
        all_reduce=choice.all_reduce,
    )


def _trials(job: Job, target: Target, count: int, claims: contextlib.ExitStack) -> list[Trial]:
    """Return the `count` best candidates as short runs, with their GPUs claimed until `claims` closes.

    Raises UsageError if there is only one candidate.
    """
    if target.counted < 2:
        raise UsageError(
            "--autotune has nothing to compare: with one device, every placement is the same",
            "remove --autotune, or use more devices: --num-gpus 2",
        )
    trials, past = [], past_of(target)
    for candidate in claimable(contenders(target.plan, count), target, claims):
        plan = msgspec.structs.replace(target.plan, choice=candidate)
        if target.machine is not None:
            plan = msgspec.structs.replace(plan, environment=plan_environment(target.machine, candidate.gpus))
        planned = replace(target, plan=plan)
        with contextlib.suppress(UsageError):  # the other options do not allow this placement
            short = trial_of(job.spec_of(planned))
            trials.append(Trial(planned, short, known_of(planned, short, past)))
    if len(trials) < 2:
        raise UsageError(
            "--autotune has nothing to compare: the options allow only one placement",
            "remove --autotune, or some of --variable-update, --ps and --all-reduce",
        )
    return trials


def claimable(
    candidates: Sequence[Candidate], target: Target, claims: contextlib.ExitStack
) -> Iterator[Candidate]:
    """Yield the candidates whose GPUs can be claimed now, claimed until `claims` closes; skip the others.

    The GPUs of the target's choice are already claimed.
    """
    ours = set(target.plan.choice.gpus)
    for candidate in candidates:
        more = set(candidate.gpus) - ours
        gpus = [gpu for gpu in target.site.machine.gpus if gpu.index in more]
        with contextlib.suppress(ClaimedError):
            claims.enter_context(claimed(gpus, claims_folder(os.environ), "gputopo run"))
            ours |= more
            yield candidate


def _plan_with(winner: Trial, outcome: Autotune, before: Plan) -> Plan:
    """Return the plan with the fastest placement as its choice. `before`: the plan that was measured."""
    plan = winner.target.plan
    alike = winner.candidate.gpus == before.choice.gpus
    reasons = before.choice.reasons if alike else winner.candidate.reasons
    choice = msgspec.structs.replace(winner.candidate, reasons=(autotune_note(outcome), *reasons))
    others = tuple(candidate for candidate in before.candidates if candidate != winner.candidate)
    prediction = plan.prediction
    if prediction is not None:
        prediction = msgspec.structs.replace(prediction, margin=None)
    return msgspec.structs.replace(
        plan, choice=choice, candidates=(choice, *others), prediction=prediction, autotune=outcome
    )
