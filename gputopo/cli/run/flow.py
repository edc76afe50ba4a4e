"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there.

For several hosts, a call starts the run on each of them, exports it for another launcher, or is one of them.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gputopo.cli.hosts.asking import hosts_to_start, start_hosts
from gputopo.cli.run import start
from gputopo.cli.source import planned_machine, site_for
from gputopo.launch import Job, Site, Target, runnable
from gputopo.launch.hosts.allocation import Allocation, HostOptions, find
from gputopo.launch.hosts.joining import excuse
from gputopo.launch.site import warn
from gputopo.launch.supervise import run_folder
from gputopo.report import note
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.option import Typed, options_of, parameters_of
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import RunSpec

if TYPE_CHECKING:
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer

# Formats that also work for a program of the user.
_OF_A_PROGRAM = (
    "require_gpu",
    "cpu",
    "format",
    "dry_run",
    "no_affinity",
    "sbatch_option",
    "output",
    "prometheus",
    "fail_on",
    "on_anomaly",
    "stall_timeout",
)


class Asked(NamedTuple):
    """One call of `gputopo run`. `typed`: its options as typed, by name."""

    job: Job
    sources: tuple[str, ...]
    hosts: HostOptions
    options: OutputOptions
    typed: Typed
    command: Callable[..., int]  # declares the options

    def check_output(self) -> None:
        """Raise InputError for a folder that cannot be written to."""
        run_folder.check_output(None if self.options.output is None else Path(self.options.output))

    def words(self) -> list[str]:
        """Return the options as typed, without the options of plan, hosts and output."""
        words = start.words_of(parameters_of(self.command), self.typed)
        if self.job.program or self.job.is_predicted:
            return words
        return words + start.placement_words(parameters_of(self.command), self.typed)


def do(asked: Asked) -> int:
    """Do one call of `gputopo run` and return the exit code. Raises GputopoError."""
    if asked.job.program:
        _refuse_for_program(asked)
    elif asked.job.model is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program after --")
    code = _run_on_hosts(asked)
    return _run_here(asked) if code is None else code


def _run_here(asked: Asked) -> int:
    """Plan for this machine, then run there or show what would run. Raises GputopoError."""
    options, job = asked.options, asked.job
    with contextlib.ExitStack() as claims:
        request = job.request
        asked.check_output()
        site = site_for(
            request,
            asked.sources,
            cpu=options.cpu,
            require_gpu=options.require_gpu,
            affinity=not options.no_affinity,
            trains=not (job.program or options.dry_run),
        )
        target = job.planned_on(site, None if options.dry_run else claims)
        if not options.dry_run:
            warn(target, trains=not job.program)
            for line in target.host_place.says if target.backend == "gpu" else ():
                note(line)
        if job.program and options.shape not in start.STARTS:
            if options.dry_run:
                from gputopo.cli.run.showing import show_program_only

                return show_program_only(job.program, target, options.shape)
            from gputopo.launch.user_program.running import run_own

            return run_own(job.program, target, options)
        if options.autotune is not None:
            from gputopo.cli.run.training import train
            from gputopo.launch import train_fastest

            return train_fastest(job, target, options, train)
        spec = None if job.program else runnable(job, target, options)
        if spec is None or options.shape in start.STARTS:
            return start.show_start(
                target,
                options.shape,
                asked.words(),
                program=job.program,
                spec=spec,
                output=options.output,
                mode=bool(job.program) or job.is_predicted,
                named=bool({"gpus", "exclude"} & asked.typed.keys()),
                sbatch_options=options.sbatch_options,
            )
        if options.dry_run:
            from gputopo.cli.run.showing import show_only

            return show_only(target, spec, options)
        from gputopo.cli.run.training import train

        return train(target, spec, options)


def _refuse_for_program(asked: Asked) -> None:
    """Raise UsageError for options that cannot be combined with a program of the user."""
    own = {one.name for one in options_of(HostOptions)} | {"program", "model", "from"}
    mine = (*PlanOptions.__struct_fields__, *_OF_A_PROGRAM, *own)
    strays = [name for name in asked.typed if name not in mine]
    strays += ["all_reduce"] if "all_reduce" in asked.typed else []
    if strays:
        raise UsageError(
            f"--{strays[0].replace('_', '-')} works with the built-in training only, not with your own "
            "program",
            "remove it, or put it after the program: everything after -- belongs to the program",
        )
    if asked.options.shape == "json" and not asked.options.dry_run:
        raise UsageError(
            "--json cannot be combined with a program, which uses stdout itself",
            "remove --json: the result is result.json in the run folder (--output DIR); --dry-run prints "
            "the plan as JSON",
        )
    if asked.sources and not asked.options.dry_run:
        raise UsageError(
            "--from plans for another machine, but the program would run on this one",
            "remove --from, or add --dry-run to see the plan only",
        )


def _run_on_hosts(asked: Asked) -> int | None:
    """Handle a call for several hosts and return the exit code; None if it is for this host only.

    Raises GputopoError.
    """
    hosts = asked.hosts
    if start.exports_hosts(asked.options.shape, hosts):
        return _export(asked)
    if starting := hosts_to_start(hosts):
        _require_several(asked)
        typed = {name: value for name, value in asked.typed.items() if name != "program"}
        return start_hosts(asked.command, starting, hosts, typed, program=asked.job.program)
    if (found := find(hosts, os.environ)) is not None:
        _require_several(asked)
        return _run_program(asked, found) if asked.job.program else _train(asked, found)
    for name in sorted({one.name for one in options_of(HostOptions)} & asked.typed.keys() - {"num_hosts"}):
        note(f"--{name.replace('_', '-')} has no effect: this run has one host")
    return None


def _train(asked: Asked, allocation: Allocation) -> int:
    from gputopo.launch.hosts.training import HostOfRun, train_on_hosts

    request, options = asked.job.request, asked.options
    try:
        asked.check_output()
        site = _this_host(options, trains=not options.dry_run)
        request = site.with_costs(request)
    except GputopoError as error:
        return excuse(allocation, asked.hosts, error)
    typed = {"model": asked.job.model, **asked.job.typed}
    host = HostOfRun(allocation, asked.hosts, site, options, typed)
    return train_on_hosts(host, asked.job, request, _lead)


def _lead(
    target: Target, spec: RunSpec, options: OutputOptions, *, rendezvous: "RendezvousServer | None" = None
) -> int:
    """Train with the hosts that have joined; without a rendezvous, show what would be trained."""
    if rendezvous is None:
        from gputopo.cli.run.showing import show_only

        return show_only(target, spec, options)
    from gputopo.cli.run.training import train

    return train(target, spec, options, rendezvous=rendezvous)


def _this_host(options: OutputOptions, *, trains: bool = False) -> Site:
    return Site(
        planned_machine(()),
        cpu=options.cpu,
        require_gpu=options.require_gpu,
        affinity=not options.no_affinity,
        alone=False,
        trains=trains,
    )


def _run_program(asked: Asked, allocation: Allocation) -> int:
    from gputopo.launch.hosts.training import HostOfRun
    from gputopo.launch.user_program.on_hosts import run_program_on_hosts
    from gputopo.launch.user_program.program import check_program

    job = asked.job
    try:
        asked.check_output()
        check_program(job.program, os.environ)
        site = _this_host(asked.options)
    except GputopoError as error:
        return excuse(allocation, asked.hosts, error)
    host = HostOfRun(allocation, asked.hosts, site, asked.options, job.typed)
    return run_program_on_hosts(host, job.program, job.request)


def _export(asked: Asked) -> int:
    job = asked.job

    def of_core(target: Target) -> tuple[Target, RunSpec]:
        return job.on_hosts(job.placed(target), job.spec_of)

    _require_several(asked, is_exported=True)
    words = start.words_of(parameters_of(asked.command), asked.typed)
    if job.model is not None:
        words += start.placement_words(parameters_of(asked.command), asked.typed)
    return start.show_hosts_start(
        asked.options.shape,
        asked.hosts,
        job.request,
        planned_machine(asked.sources),
        words,
        program=job.program,
        sbatch_options=asked.options.sbatch_options,
        spec_of=None if job.model is None else of_core,
    )


def _require_several(asked: Asked, *, is_exported: bool = False) -> None:
    """Raise UsageError for options that need several hosts or a single one."""
    options, request = asked.options, asked.job.request
    is_program = bool(asked.job.program)
    nothing_predicted = is_program or is_exported  # the core predicts after the hosts have met
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
            f"{found} is for one host, but this run has several",
            f"remove {found}, or add --num-hosts 1{again}",
        )
