"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there.

On several hosts it is started on each of them, exported for other starters, or one of them.
"""

import contextlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gputopo.cli.hosts.asking import hosts_to_start, start_hosts
from gputopo.cli.hosts.joining import excuse
from gputopo.cli.placement import PlanOptions
from gputopo.cli.printing import note
from gputopo.cli.run import start
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.run.prepare import (
    AskedJob,
    PlannedOn,
    planned_on,
    prepare,
    runnable,
    warn,
    warn_of_tensorflow,
)
from gputopo.cli.source import planned_machine
from gputopo.launch.hosts.allocation import Allocation, HostOptions, find
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.option import Given, OptionsOf, parameters_of

if TYPE_CHECKING:
    from gputopo.launch.spec.target import Target

# Those that a program of the user can be run with, too.
_OF_A_PROGRAM = (
    *("require_gpu", "cpu", "format", "dry_run", "no_affinity", "sbatch_option"),
    *("output", "prometheus", "fail_on", "on_anomaly", "stall_timeout"),
)


def run(
    *,
    program: tuple[str, ...] = (),
    model: str | None = None,
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    sources: tuple[str, ...] = (),
    training: Annotated[Given, OptionsOf(RunSpec)],
    hosts: Annotated[Given, OptionsOf(HostOptions)],
    showing: Annotated[Given, OptionsOf(OutputOptions)],
) -> int:
    """Train a model on the best GPUs, monitor each of them, and report; or run a program on these GPUs.

    Without an NVIDIA device, or with --cpu, it trains on CPU devices, which every output shows; with --from
    it rehearses the plan of another machine on them. A program after -- runs with the GPUs of the plan.

    The flags of tf_cnn_benchmarks are understood where they mean the same, with dashes or underscores:
    --use_fp16, --local_parameter_device=gpu, --all_reduce_spec=xring, --nouse_nccl.

    Exit codes: 0 fine; 1 --fail-on and an anomaly, a NaN loss, or what is wrong with the GPUs
    of a program; 2 bad input; 3 the hardware, the driver, memory or disk cannot do it; 130, 143 ended by
    Ctrl-C, SIGTERM; a program's own code, 128 + n for signal n, 3 where --stall-timeout ended it.
    """
    asked = Asked(program, AskedJob(model, placement, training), sources, hosts, showing)
    if program:
        _refuse_for_program(asked)
    elif model is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program after --")
    code = _run_on_hosts(asked)
    return _run_here(asked) if code is None else code


@dataclass(frozen=True)
class Asked:
    """One call of `gputopo run`; `program`: of the user, () for the core."""

    program: tuple[str, ...]
    job: AskedJob
    sources: tuple[str, ...]
    hosts: Given
    showing: Given

    @cached_property
    def options(self) -> OutputOptions:
        """What is shown and written, and how it ends."""
        return OutputOptions(**self.showing.fields)

    @cached_property
    def host_options(self) -> HostOptions:
        """The other hosts, and how they meet."""
        return HostOptions(**self.hosts.fields)

    def check_output(self) -> None:
        """Raise InputError for a folder that cannot be written to."""
        from gputopo.launch.supervise import run_folder as runs

        runs.check_output(None if self.options.output is None else Path(self.options.output))


def _run_here(asked: Asked) -> int:
    """Plan for this machine, and run there or show what would run. Raises GputopoError."""
    options, program, job = asked.options, asked.program, asked.job
    with contextlib.ExitStack() as claims:
        request = job.request
        asked.check_output()
        on = planned_on(
            request,
            asked.sources,
            cpu=options.cpu,
            require_gpu=options.require_gpu,
            affinity=not options.no_affinity,
            trains=not (program or options.dry_run),
        )
        chosen = prepare(job, on, None if options.dry_run else claims)
        if not options.dry_run:
            warn(chosen.plan)
            if not program:
                warn_of_tensorflow(chosen)
            for line in chosen.host_place.says if chosen.backend == "gpu" else ():
                note(line)
        named = bool({"gpus", "exclude"} & job.placement.typed.keys())
        if program:
            if options.shape in start.STARTS:
                words = start.words_of(parameters_of(run), asked.showing.typed)
                return start.show_start(
                    chosen,
                    options.shape,
                    words,
                    program=program,
                    output=options.output,
                    named=named,
                    sbatch_options=options.sbatch_options,
                )
            from gputopo.cli.run.program import run_own

            return run_own(program, chosen, options)
        if options.autotune is not None:
            from gputopo.cli.run.autotune import train_fastest

            return train_fastest(job, chosen, options)
        spec = runnable(job, chosen, options)
        if options.shape in start.STARTS:
            declared = parameters_of(run)
            words = ["--model", str(job.model)]
            words += start.words_of(declared, {**job.training.typed, **asked.showing.typed})
            words += [] if job.is_predicted else start.placement_words(declared, job.placement.typed)
            return start.show_start(
                chosen,
                options.shape,
                words,
                spec=spec,
                output=options.output,
                mode=job.is_predicted,
                named=named,
                sbatch_options=options.sbatch_options,
            )
        from gputopo.cli.run import training as core

        return (core.show_only if options.dry_run else core.train)(chosen, spec, options)


def _refuse_for_program(asked: Asked) -> None:
    """Raise UsageError for what cannot be combined with a program of the user."""
    placed = PlanOptions.__struct_fields__
    strays = [
        name for name in (*asked.job.typed, *asked.showing.typed) if name not in (*placed, *_OF_A_PROGRAM)
    ]
    strays += ["all_reduce"] if "all_reduce" in asked.job.typed else []
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


def _run_on_hosts(asked: Asked) -> int | None:
    """Do what is asked of several hosts and return the exit code; None where it is for this one alone.

    Raises GputopoError.
    """
    options = asked.host_options
    if start.exports_hosts(asked.options.shape, options):
        return _export(asked)
    if starting := hosts_to_start(options):
        _require_several(asked)
        typed = {
            **asked.job.placement.typed,
            **asked.job.training.typed,
            **asked.hosts.typed,
            **asked.showing.typed,
        }
        typed |= {} if asked.job.model is None else {"model": asked.job.model}
        return start_hosts(run, starting, options, typed, program=asked.program)
    if (found := find(options, os.environ)) is not None:
        _require_several(asked)
        return _run_program(asked, found) if asked.program else _train(asked, found)
    for name in sorted({*asked.hosts.typed} - {"num_hosts"}):
        note(f"--{name.replace('_', '-')} has no effect: this run has one host")
    return None


def _train(asked: Asked, allocation: Allocation) -> int:
    from gputopo.cli.hosts.training import HostOfRun, train_on_hosts

    request, options = asked.job.request, asked.options
    try:
        asked.check_output()
        on = _this_host(options, trains=not options.dry_run)
        request = on.with_costs(request)
    except GputopoError as error:
        return excuse(allocation, asked.host_options, error)
    typed = {"model": asked.job.model, **asked.job.typed}
    return train_on_hosts(HostOfRun(allocation, asked.host_options, on, options, typed), asked.job, request)


def _this_host(options: OutputOptions, *, trains: bool = False) -> PlannedOn:
    return PlannedOn(
        planned_machine(()),
        cpu=options.cpu,
        require_gpu=options.require_gpu,
        affinity=not options.no_affinity,
        alone=False,
        trains=trains,
    )


def _run_program(asked: Asked, allocation: Allocation) -> int:
    from gputopo.cli.hosts.program import run_program_on_hosts
    from gputopo.cli.hosts.training import HostOfRun
    from gputopo.launch.user_program.program import check_program

    hosts, program, options = asked.host_options, asked.program, asked.options
    try:
        asked.check_output()
        check_program(program, os.environ)
        on = _this_host(options)
    except GputopoError as error:
        return excuse(allocation, asked.host_options, error)
    return run_program_on_hosts(
        HostOfRun(allocation, hosts, on, options, asked.job.typed), program, asked.job.request
    )


def _export(asked: Asked) -> int:
    from gputopo.cli.run.start import show_hosts_start

    options, shape = asked.options, asked.options.shape

    def of_core(target: "Target") -> "tuple[Target, RunSpec]":
        return asked.job.on_hosts(asked.job.placed(target), asked.job.spec_of)

    _require_several(asked, is_exported=True)
    typed = {**asked.job.training.typed, **asked.hosts.typed, **asked.showing.typed}
    words = start.words_of(declared := parameters_of(run), typed)
    if asked.job.model is not None:
        words = [
            "--model",
            asked.job.model,
            *words,
            *start.placement_words(declared, asked.job.placement.typed),
        ]
    return show_hosts_start(
        shape,
        asked.host_options,
        asked.job.request,
        planned_machine(asked.sources),
        words,
        program=asked.program,
        sbatch_options=options.sbatch_options,
        spec_of=None if asked.job.model is None else of_core,
    )


def _require_several(asked: Asked, *, is_exported: bool = False) -> None:
    """Raise UsageError for what one host can do alone only."""
    options, request = asked.options, asked.job.request
    is_program = bool(asked.program)
    nothing_predicted = is_program or is_exported  # that is of the core, when the hosts have met
    alone = {
        "--from": bool(asked.sources) and not is_exported,
        f"--format {options.shape}": options.shape in start.STARTS and not is_exported,
        "--dry-run": options.dry_run and is_program and not is_exported,
        "--num-gpus auto": request.num_gpus == "auto" and nothing_predicted,
        "--autotune": options.autotune is not None,
        "--repeats": options.repeats > 1,
        "--restart": options.restart > 0,
        "--single-gpu-images-per-sec with several numbers": len(request.single_gpu_images_per_sec) > 1,
    }
    found = next((flag for flag, is_asked in alone.items() if is_asked), None)
    again = "; after a failure start the job again with --resume auto" if found == "--restart" else ""
    if found is not None:
        raise UsageError(
            f"{found} is for one host, and this is a training of several",
            f"leave {found} out, or add --num-hosts 1{again}",
        )
