"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there."""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

from gputopo.cli.plan.before import Before, measured_before, warn, with_costs
from gputopo.cli.plan.options import PlanOptions
from gputopo.cli.printing import note
from gputopo.cli.run import start
from gputopo.cli.run.asked import Asked
from gputopo.cli.run.hosts.command import run_on_hosts
from gputopo.cli.run.implied import as_strategy_reduces, implied_update
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.source import FROM, planned_machine
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.option import Given, Option, OptionsOf, parameters_of

if TYPE_CHECKING:
    from gputopo.launch.spec.target import Target
    from gputopo.values.machine import Machine

# Those that a program of the user can be run with, too.
_OF_A_PROGRAM = (
    *("require_gpu", "cpu", "format", "json", "dry_run", "no_affinity"),
    *("output", "prometheus", "fail_on", "on_anomaly", "stall_timeout"),
)


def run(
    *,
    program: Annotated[
        tuple[str, ...],
        Option(
            "[-- PROGRAM ARGS...]", "Program to run on the planned GPUs instead of the core", repeated=True
        ),
    ] = (),
    model: Annotated[
        str | None,
        Option(
            "--model",
            "Model to train: a built-in name such as alexnet, keras:NAME, or your module:function",
            value="NAME",
        ),
    ] = None,
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    sources: Annotated[tuple[str, ...], FROM] = (),
    training: Annotated[Given, OptionsOf(RunSpec)],
    hosts: Annotated[Given, OptionsOf(HostOptions)],
    showing: Annotated[Given, OptionsOf(OutputOptions)],
) -> int:
    """Train a model on the best GPUs, monitor each of them, and report; or run a program on these GPUs.

    Without an NVIDIA device, or with --cpu, it trains on CPU devices, which every output shows; with --from
    it rehearses the plan of another machine on them. A program after -- runs with the GPUs of the plan.

    The flags of tf_cnn_benchmarks are understood where they mean the same, with dashes or underscores:
    --use_fp16, --local_parameter_device=gpu, --all_reduce_spec=xring, --nouse_nccl.

    Exit codes: 0 fine; 1 --fail-on and an anomaly, a loss that is no number, or what is wrong with the GPUs
    of a program; 2 bad input; 3 the hardware, the driver, memory or disk cannot do it; 130, 143 ended by
    Ctrl-C, SIGTERM; a program's own code, 128 + n for signal n, 3 where --stall-timeout ended it.
    """
    asked = Asked(program, model, placement, sources, training, hosts, showing)
    options = asked.options
    if program:
        _refuse_for_program(asked)
    elif model is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program after --")
    start.require_dry(options.shape, dry_run=options.dry_run)
    code = run_on_hosts(asked, run)
    return _run_here(asked) if code is None else code


def _run_here(asked: Asked) -> int:
    """Plan for this machine, and run there or show what would run. Raises GputopoError."""
    options, program, typed = asked.options, asked.program, asked.typed
    with contextlib.ExitStack() as claims:
        chosen = _target_of(asked, claims)
        if not options.dry_run:
            warn(chosen.plan)
            for line in chosen.host_place.says if chosen.backend == "gpu" else ():
                note(line)
        declared = parameters_of(run) if options.shape in start.STARTS else ()
        if program and declared:
            words = start.words_of(declared, asked.showing.typed)
            return start.show_start(chosen, options.shape, words, program=program, output=options.output)
        if program:
            from gputopo.cli.run.program import run_own

            return run_own(program, chosen, options)
        from gputopo.cli.run import training as core
        from gputopo.cli.run.required import require_runnable

        spec = asked.spec_of(chosen)
        if declared:
            require_runnable(chosen, spec, options)
            words = ["--model", str(asked.model)]
            words += start.words_of(declared, {**asked.training.typed, **asked.showing.typed})
            words += [] if asked.is_predicted else start.placement_words(declared, asked.placement.typed)
            return start.show_start(
                chosen, options.shape, words, spec=spec, output=options.output, mode=asked.is_predicted
            )
        if options.autotune is not None:
            from gputopo.cli.run.autotune import train_fastest

            training, update = asked.training.fields, implied_update(typed)
            return train_fastest(chosen, spec, options, asked=typed, training=training, update=update)
        return (core.show_only if options.dry_run else core.train)(chosen, spec, options)


def _target_of(asked: Asked, claims: contextlib.ExitStack) -> "Target":
    """Plan for the machine and, unless it is a dry run, claim the GPUs until `claims` closes.

    Raises GputopoError.
    """
    from gputopo import planner
    from gputopo.launch.spec import target
    from gputopo.launch.supervise.cgroup import usable_cpus

    request, options, sources = asked.request, asked.options, asked.sources
    asked.check_output()
    needs_bandwidth = not (planner.is_of_one_gpu(request) or request.no_history)
    machine = planned_machine(sources, pairs=needs_bandwidth)
    if machine.gpus and not options.cpu:
        # The worker reports in full what keeps a model from being built.
        with contextlib.suppress(GputopoError):
            request = with_costs(request)

    before = Before() if sources or options.cpu else measured_before(machine, request)

    def choose(others: Mapping[int, str]) -> "Target":
        return target.target_of(
            machine,
            request,
            environ=os.environ,
            claimed=others,
            **before._asdict(),
            rehearsal_of=target.rehearsal_name(sources),
            require_gpu=options.require_gpu,
            cpu=options.cpu,
            usable=usable_cpus(),
            affinity=not options.no_affinity,
        )

    chosen = choose_and_claim(machine, choose, None if options.dry_run else claims)
    return as_strategy_reduces(chosen, asked.typed)


def choose_and_claim(
    machine: "Machine", choose: "Callable[[Mapping[int, str]], Target]", claims: contextlib.ExitStack | None
) -> "Target":
    """Choose GPUs that no other process has claimed, and claim them until `claims` closes (None: do not).

    Where another process is quicker, choose again. Raises GputopoError.
    """
    from gputopo.launch.jobs import claims as jobs

    return jobs.choose_and_claim(machine, choose, claims, os.environ, "gputopo run", on_problem=note)


def _refuse_for_program(asked: Asked) -> None:
    """Raise UsageError for what cannot be combined with a program of the user."""
    placed = PlanOptions.__struct_fields__
    strays = [name for name in (*asked.typed, *asked.showing.typed) if name not in (*placed, *_OF_A_PROGRAM)]
    strays += ["all_reduce"] if "all_reduce" in asked.typed else []
    if strays:
        raise UsageError(
            f"--{strays[0].replace('_', '-')} is for the built-in core, not for your own program",
            "leave it out, or give it to the program: what follows -- is the program's",
        )
    if asked.options.shape == "json" and not asked.options.dry_run:
        raise UsageError(
            "stdout is your own program's, so no JSON can be printed there",
            "leave --json out: result.json in the run folder is the result, and --output DIR names that; "
            "--dry-run prints the plan as JSON",
        )
    if asked.sources and not asked.options.dry_run:
        raise UsageError(
            "--from plans for another machine, and a program runs on this one",
            "leave --from out, or add --dry-run to see the plan only",
        )
