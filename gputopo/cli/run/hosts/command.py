"""`gputopo run` for several hosts: started on each of them, exported for other starters, or one of them."""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from gputopo.cli.hosts.driving import hosts_to_start, start_hosts
from gputopo.cli.hosts.exporting import exports_hosts
from gputopo.cli.hosts.meeting import PORT, excuse
from gputopo.cli.plan.before import with_costs
from gputopo.cli.printing import note
from gputopo.cli.run import start
from gputopo.cli.run.asked import Asked
from gputopo.cli.run.implied import as_strategy_reduces
from gputopo.cli.source import planned_machine
from gputopo.launch.hosts.allocation import Allocation, find
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.option import parameters_of

if TYPE_CHECKING:
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target


def run_on_hosts(asked: Asked, command: Callable[..., int]) -> int | None:
    """Do what `command` asks of several hosts and return the exit code; None where it is for this one alone.

    Raises GputopoError.
    """
    options = asked.host_options
    if exports_hosts(asked.options.shape, options):
        return _export(asked, command)
    if starting := hosts_to_start(options):
        _require_several(asked)
        typed = {**asked.placement.typed, **asked.training.typed, **asked.hosts.typed, **asked.showing.typed}
        typed |= {} if asked.model is None else {"model": asked.model}
        may_lose = asked.options.min_hosts is not None
        return start_hosts(command, starting, options, typed, program=asked.program, may_lose=may_lose)
    if (found := find(options, os.environ)) is not None:
        _require_several(asked)
        return _run_program(asked, found) if asked.program else _train(asked, found)
    of_hosts = {*asked.hosts.typed, *({"min_hosts"} & {*asked.showing.typed})}
    for name in sorted(of_hosts - {"num_hosts"}):
        note(f"--{name.replace('_', '-')} has no effect: this run has one host")
    return None


def _train(asked: Asked, allocation: Allocation) -> int:
    from gputopo.cli.run.hosts.core import Job, train_on_hosts

    request = asked.request
    try:
        asked.check_output()
        machine = planned_machine(())
    except GputopoError as error:
        return excuse(allocation, error)
    if machine.gpus and not asked.options.cpu:
        with contextlib.suppress(GputopoError):
            request = with_costs(request)
    job = Job(request, {"model": asked.model, **asked.typed}, asked.spec_of)
    return train_on_hosts(allocation, asked.host_options, job, machine, asked.options)


def _run_program(asked: Asked, allocation: Allocation) -> int:
    from gputopo.cli.run.hosts.program import run_program_on_hosts
    from gputopo.launch.user_program.hosts import meeting_beside
    from gputopo.launch.user_program.program import check_program

    hosts, program, options = asked.host_options, asked.program, asked.options
    allocation = meeting_beside(allocation, os.environ, PORT)
    try:
        asked.check_output()
        check_program(program, os.environ)
        machine = planned_machine(())
    except GputopoError as error:
        return excuse(allocation, error)
    return run_program_on_hosts(allocation, hosts, program, asked.request, asked.typed, machine, options)


def _export(asked: Asked, command: Callable[..., int]) -> int:
    from gputopo.cli.hosts.exporting import show_hosts_start, words_of_hosts
    from gputopo.cli.run.required import require_restartable
    from gputopo.launch.jobs.restarting import require_losable
    from gputopo.launch.spec.target import rehearsal_name

    options, shape = asked.options, asked.options.shape

    def of_core(target: "Target") -> "RunSpec":
        spec = asked.spec_of(as_strategy_reduces(target, asked.typed))
        require_restartable(spec, options)
        if options.min_hosts is not None:
            require_losable(spec, options.min_hosts, options.restart)
        return spec

    _require_several(asked, is_exported=True)
    typed = {**asked.training.typed, **words_of_hosts(shape, asked.hosts.typed), **asked.showing.typed}
    words = start.words_of(declared := parameters_of(command), typed)
    if asked.model is not None:
        words = ["--model", asked.model, *words, *start.placement_words(declared, asked.placement.typed)]
    return show_hosts_start(
        shape,
        asked.host_options,
        asked.request,
        planned_machine(asked.sources),
        words,
        rehearsal_of=rehearsal_name(asked.sources),
        program=asked.program,
        may_lose=options.min_hosts is not None,
        spec_of=None if asked.model is None else of_core,
        folders_of=start.folders_of,
    )


def _require_several(asked: Asked, *, is_exported: bool = False) -> None:
    """Raise UsageError for what one host can do alone only."""
    options, request = asked.options, asked.request
    is_program = bool(asked.program)
    nothing_predicted = is_program or is_exported  # that is of the core, when the hosts have met
    alone = {
        "--from": bool(asked.sources) and not is_exported,
        f"--format {options.shape}": options.shape in start.STARTS and not is_exported,
        "--dry-run": options.dry_run and is_program and not is_exported,
        "--num-gpus auto": request.num_gpus == "auto" and nothing_predicted,
        "--gain": request.gain is not None and nothing_predicted,
        "--autotune": options.autotune is not None,
        "--repeats": options.repeats > 1,
        "--single-gpu-images-per-sec with several numbers": len(request.single_gpu_images_per_sec) > 1,
    }
    found = next((flag for flag, is_asked in alone.items() if is_asked), None)
    if found is not None:
        raise UsageError(
            f"{found} is for one host, and this is a training of several",
            f"leave {found} out, or add --num-hosts 1",
        )
