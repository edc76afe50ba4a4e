"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there.

For several hosts, a call starts the run on each of them, exports it for another launcher, or is one of them.
"""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gputopo import launch
from gputopo.cli.parsing import typed_words
from gputopo.cli.printing import emit
from gputopo.cli.refusals import refuse_typed
from gputopo.cli.run.showing import show_dry_run
from gputopo.launch import Allocation, HostOptions, Job, Target, find_hosts, planned_machine, site_for
from gputopo.report import note
from gputopo.values.errors import UsageError
from gputopo.values.option import Typed, options_of, parameters_of
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import RunSpec

if TYPE_CHECKING:
    from gputopo.launch import RendezvousServer

_STARTS = ("env", "sbatch", "docker")  # formats that say how to start the run on one host
# Options that are about the output here or about hosts, which the launcher knows, not about the run.
_NOT_OF_THE_RUN = (
    *("program", "from", "format", "dry_run", "require_gpu", "autotune", "sbatch_option"),
    *("hosts", "hostfile", "num_hosts"),
)
# Options that a driver does not pass on: it starts the hosts, and gives each its rank.
_OF_THE_DRIVER = ("program", "hosts", "hostfile", "num_hosts", "remote_python")
_PLACEMENT = ("ps", "variable_update", "all_reduce")


class Asked(NamedTuple):
    """One call of `gputopo run`. `typed`: its options as typed, by name."""

    job: Job
    sources: tuple[str, ...]
    hosts: HostOptions
    options: OutputOptions
    typed: Typed
    command: Callable[..., int]  # declares the options

    def words(self, *, with_placement: bool) -> list[str]:
        """Return the options as typed, without the options of plan, hosts and output.

        `with_placement`: with the options of the placement, for a training that is not predicted.
        """
        declared = parameters_of(self.command)
        others = [option for option in declared if option.field not in PlanOptions.__struct_fields__]
        placed = [option for option in declared if option.name in _PLACEMENT] if with_placement else []
        return typed_words([*others, *placed], self.typed, _NOT_OF_THE_RUN)


def do(asked: Asked) -> int:
    """Do one call of `gputopo run` and return the exit code. Raises GputopoError."""
    if asked.job.program:
        refuse_typed("run -- PROGRAM", asked.typed)
    elif asked.job.model is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program after --")
    code = _run_on_hosts(asked)
    return _run_here(asked) if code is None else code


def _run_here(asked: Asked) -> int:
    """Plan for this machine, then run there or show what would run. Raises GputopoError."""
    options, job = asked.options, asked.job
    with contextlib.ExitStack() as claims:
        request = job.request
        launch.check_output(options.output)
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
            for line in target.host_place.says if target.backend == "gpu" else ():
                note(line)
        if job.program and options.shape not in _STARTS:
            if options.dry_run:
                dry = launch.dry_run_of_program(target, job.program)
                return show_dry_run(dry, options.shape)
            return launch.run_program(job.program, target, options)
        if options.autotune is not None:
            from gputopo.cli.run.training import train

            return launch.train_fastest(job, target, options, train)
        spec = None if job.program else launch.runnable(job, target, options)
        if spec is None or options.shape in _STARTS:
            with_placement = not (job.program or job.is_predicted)
            words = asked.words(with_placement=with_placement)
            emit(launch.export_run(job, target, options, words, spec))
            return 0
        if options.dry_run:
            return show_dry_run(launch.dry_run(target, spec, options.output), options.shape)
        from gputopo.cli.run.training import train

        return train(target, spec, options)


def _run_on_hosts(asked: Asked) -> int | None:
    """Handle a call for several hosts and return the exit code; None if it is for this host only.

    Raises GputopoError.
    """
    options, job = asked.options, asked.job
    is_of_hosts = bool(asked.hosts.hosts or asked.hosts.hostfile or (asked.hosts.num_hosts or 1) > 1)
    if options.shape == "hostfile" or (options.shape == "sbatch" and is_of_hosts):
        from gputopo.launch import export_hosts

        refuse_typed("run --format of several hosts", asked.typed)
        words = asked.words(with_placement=job.model is not None)
        emit(export_hosts(job, asked.hosts, planned_machine(asked.sources), options, words))
        return 0
    hosts = find_hosts(asked.hosts, os.environ)
    if hosts is None:
        typed = sorted({option.name for option in options_of(HostOptions)} & asked.typed.keys())
        for name in typed:
            if name != "num_hosts":
                note(f"--{name.replace('_', '-')} has no effect: this run has one host")
        return None
    refuse_typed(f"run on several hosts{' -- PROGRAM' if job.program else ''}", asked.typed)
    if isinstance(hosts, Allocation):
        from gputopo.launch import run_on_hosts

        return run_on_hosts(hosts, asked.hosts, job, options, _lead)
    from gputopo.launch import start_hosts

    words = ["run", *typed_words(parameters_of(asked.command), asked.typed, _OF_THE_DRIVER)]
    words += ["--", *job.program] if job.program else []
    return start_hosts(hosts, asked.hosts, words)


def _lead(
    target: Target, spec: RunSpec, options: OutputOptions, rendezvous: "RendezvousServer | None"
) -> int:
    """Train with the hosts that have joined; without a rendezvous, show what would be trained."""
    if rendezvous is None:
        return show_dry_run(launch.dry_run(target, spec, options.output), options.shape)
    from gputopo.cli.run.training import train

    return train(target, spec, options, rendezvous=rendezvous)
