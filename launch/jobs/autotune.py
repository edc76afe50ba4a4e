"""`--autotune K`: measures the K best placements, then plans for the fastest or trains with it."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from gputopo.launch.checks import runnable
from gputopo.launch.job import Job
from gputopo.launch.jobs.before import known_of, past_of
from gputopo.launch.jobs.claims import ClaimedError, claimed, claims_folder
from gputopo.launch.jobs.race import contenders
from gputopo.launch.jobs.trials import Trial, trial, trial_of, tune
from gputopo.launch.plans import EXPLAINS
from gputopo.launch.site import Site, warn
from gputopo.launch.supervise import run_folder as runs
from gputopo.launch.target import Target
from gputopo.planner import LISTED, Request, plan_environment, require_prediction
from gputopo.report import autotune_document, autotune_note, autotune_run_line, document_text, note, to_stderr
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.plan import Autotune, Candidate, Plan, TimedRun
from gputopo.values.run.spec import RunSpec

Train = Callable[[Target, RunSpec, OutputOptions], int]
"""Trains on a target, shows the result, and returns the exit code."""


def train_fastest(job: Job, target: Target, options: OutputOptions, train: Train) -> int:
    """Measure the best placements of the target's plan, `train` with the fastest; return the exit code."""
    spec = runnable(job, target, options)
    with contextlib.ExitStack() as claims:
        trials = _trials(job, target, spec, options, claims)
        found, code, folder = _measured(target, trials, options)
        to_stderr(document_text(autotune_document(found), 80))
        to_stderr(f"{autotune_note(found)}\n")
        if code:
            return code
        winner = trials[found.winner or 0]
        if set(winner.candidate.gpus) <= set(target.plan.choice.gpus):
            claims.close()
        tuned = replace(target, plan=_plan_with(winner, found, target.plan))
        # If all placements fail, the run itself reports the failure, because it then fails too.
        final = spec if found.winner is None else job.spec_of(tuned)
        final = msgspec.structs.replace(final, says=(*final.says, autotune_note(found)))
        return train(tuned, final, msgspec.structs.replace(options, output=str(folder)))


def plan_by_runs(
    job: Job, site: Site, request: Request, *, candidates: int | None, count: int
) -> tuple[Plan, int]:
    """Return the plan of a request after short runs of its `count` best placements, and the code of a signal.

    Like `run`, it uses CPU devices if there is no GPU. Raises GputopoError.
    """
    request = site.with_costs(request)
    site.keep = None if candidates is None or candidates < LISTED else candidates
    with contextlib.ExitStack() as claims:
        chosen = site.claimed(request, claims)
        warn(chosen)
        if request.explain:
            require_prediction(chosen.plan, EXPLAINS)
        found, code = plan_fastest(job, chosen, count)
    if request.explain and found.choice != chosen.plan.choice:
        site.keep = 1
        found = msgspec.structs.replace(found, line=site.target(_only(request, found.choice)).plan.line)
    return found, code


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


def plan_fastest(job: Job, target: Target, count: int) -> tuple[Plan, int]:
    """Measure the best placements of the target's plan; return the plan of the fastest, and an exit code.

    The code is 0, or 128 + n if signal n ended the runs. Raises UsageError if there is nothing to compare,
    and HardwareError if no placement could be run.
    """
    plan, options = target.plan, OutputOptions(autotune=count)
    spec = runnable(job, target, options)
    with contextlib.ExitStack() as claims:
        trials = _trials(job, target, spec, options, claims)
        found, code, folder = _measured(target, trials, options)
    if found.winner is not None:
        return _plan_with(trials[found.winner], found, plan), code
    if not code:
        cause = next(one.failure for one in found.measured if one.failure is not None)
        raise HardwareError(f"no placement could be run: {cause}", f"see the logs of the runs in {folder}")
    return plan, code


def _measured(target: Target, trials: Sequence[Trial], options: OutputOptions) -> tuple[Autotune, int, Path]:
    """Run the trials; return the measurements, the exit code of a signal, and the folder of the runs."""
    home = runs.runs_home(os.environ)
    folder = (
        runs.new_folder(home, datetime.now(), trials[0].spec.model)
        if options.output is None
        else Path(options.output)
    )
    found, code = tune(trials, folder, machine=target.machine, on_run=_show_run)
    return found, code, folder


def _trials(
    job: Job,
    target: Target,
    spec: RunSpec,
    options: OutputOptions,
    claims: contextlib.ExitStack,
) -> list[Trial]:
    """Return the candidates as short runs; claim the GPUs that the plan's choice does not use.

    Raises UsageError if there is only one candidate.
    """
    if len(spec.devices) < 2:
        raise UsageError(
            "--autotune has nothing to compare: with one device, every placement is the same",
            "remove --autotune, or use more devices: --num-gpus 2",
        )
    found = contenders(target.plan, options.autotune or 0)
    trials, past = [], past_of(target)
    for one in _claimed(found, target, claims):
        plan = msgspec.structs.replace(target.plan, choice=one)
        if target.machine is not None:
            plan = msgspec.structs.replace(plan, environment=plan_environment(target.machine, one.gpus))
        planned = replace(target, plan=plan)
        try:
            short = trial_of(job.spec_of(planned))
        except UsageError:
            continue  # the other options do not allow this placement
        trials.append(trial(planned, short, os.environ, known_of(planned, short, past)))
    if len(trials) < 2:
        raise UsageError(
            "--autotune has nothing to compare: the options allow only one placement",
            "remove --autotune, or some of --variable-update, --ps and --all-reduce",
        )
    return trials


def _claimed(found: Sequence[Candidate], target: Target, claims: contextlib.ExitStack) -> Iterator[Candidate]:
    """Yield the candidates whose GPUs can be claimed now; skip candidates with GPUs of other processes."""
    ours = set(target.plan.choice.gpus)
    for one in found:
        more = set(one.gpus) - ours
        gpus = [gpu for gpu in (target.machine.gpus if target.machine else ()) if gpu.index in more]
        try:
            claims.enter_context(claimed(gpus, claims_folder(os.environ), "gputopo run", on_problem=note))
        except ClaimedError:
            continue
        ours |= more
        yield one


def _plan_with(winner: Trial, found: Autotune, before: Plan) -> Plan:
    """Return the plan with the fastest placement as its choice. `before`: the plan that was measured."""
    plan = winner.plan
    alike = winner.candidate.gpus == before.choice.gpus
    reasons = before.choice.reasons if alike else winner.candidate.reasons
    choice = msgspec.structs.replace(winner.candidate, reasons=(autotune_note(found), *reasons))
    others = tuple(one for one in before.candidates if one != winner.candidate)
    prediction = plan.prediction
    if prediction is not None:
        prediction = msgspec.structs.replace(prediction, margin=None)
    return msgspec.structs.replace(
        plan, choice=choice, candidates=(choice, *others), prediction=prediction, autotune=found
    )


def _show_run(number: int, trial: Trial, found: TimedRun | str) -> None:

    to_stderr(f"{autotune_run_line(number, trial.candidate, found)}\n")
