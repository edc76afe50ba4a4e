"""Output of `--format env|sbatch|docker`: how other programs start the planned run."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.cli.parsing import typed_words
from gputopo.cli.printing import emit
from gputopo.launch.hosts.allocation import PORT, HostOptions, claim_of
from gputopo.launch.hosts.starters import RankClaim
from gputopo.values.errors import UsageError
from gputopo.values.option import Declared
from gputopo.values.run.placement import PlanOptions

if TYPE_CHECKING:
    from gputopo.launch import Target
    from gputopo.planner import Request
    from gputopo.values.machine import Machine
    from gputopo.values.run.spec import RunSpec


def exports_hosts(shape: str, options: HostOptions) -> bool:
    """Return whether a format starts a run on several hosts. Raises UsageError for docker."""
    named = bool(options.hosts or options.hostfile)
    if shape == "docker" and (named or (options.num_hosts or 1) > 1):
        raise UsageError(
            "--format docker is for one host",
            "use --format sbatch or hostfile, or add --num-hosts 1",
        )
    return shape == "hostfile" or (shape == "sbatch" and (named or (options.num_hosts or 1) > 1))


def show_hosts_start(
    shape: str,
    options: HostOptions,
    request: "Request",
    machine: "Machine",
    words: Sequence[str],
    *,
    program: tuple[str, ...] = (),
    sbatch_options: tuple[str, ...] = (),
    spec_of: "Callable[[Target], tuple[Target, RunSpec]] | None" = None,
) -> int:
    """Print how to start a run on several hosts.

    `words`: options of the run except hosts and GPUs. `spec_of`: returns the spec of the core for a target.
    Raises UsageError, NoPlanError.
    """
    from gputopo.launch.spec.exports import ExportedRun, hostfile, sbatch

    claim = claim_of(options)
    if claim is None or (claim.size or 0) < 2:
        raise UsageError(f"--format {shape} is for several hosts", "add --hosts LIST")
    assert claim.size is not None
    target = _joint(claim, request, machine, shape)
    target, spec = (target, None) if spec_of is None else spec_of(target)
    start = ExportedRun(
        size=claim.size,
        choice=target.plan.choice,
        machine=machine,
        steps=_steps(spec),
        words=tuple(words),
        folder=str(Path.cwd()),
        hosts=claim.hosts,
        program=program,
        named=bool(request.gpus or request.exclude),
        options=sbatch_options,
    )
    emit(sbatch(start) if shape == "sbatch" else hostfile(start))
    return 0


def _joint(claim: RankClaim, request: "Request", machine: "Machine", shape: str) -> "Target":
    """Return the target of identical hosts, each with an equal share of the GPUs."""
    import gputopo
    from gputopo.cli.hosts.fleet import planned
    from gputopo.launch.hosts.messages import Joining
    from gputopo.launch.hosts.planning import request_of, target_alone

    if not machine.gpus:
        raise UsageError(
            f"--format {shape} assumes that each host is like this machine, which has no GPU",
            "give the machine of one of the hosts: --from FILE (gputopo inspect --record FILE there)",
        )
    assert claim.size is not None
    names = [str(host) for host in claim.hosts] or [f"host-{rank}" for rank in range(claim.size)]
    hosts = [
        Joining(rank=rank, name=name, version=gputopo.__version__, address=name, port=PORT, machine=machine)
        for rank, name in enumerate(names)
    ]
    each = _gpus_of_each(claim.size, request, machine)
    chosen = target_alone(hosts[0], request_of(request, each, 0)).plan.choice.gpus
    return planned(hosts, msgspec.structs.replace(request, gpus=chosen, num_gpus=None))


def _gpus_of_each(size: int, request: "Request", machine: "Machine") -> int:
    """Return the number of GPUs of each host. Raises UsageError if they cannot be shared equally."""
    usable = {gpu.index for gpu in machine.gpus if not gpu.lost} - set(request.exclude)
    usable = usable if request.gpus is None else usable & set(request.gpus)
    if request.num_gpus is None:
        return len(usable)
    assert request.num_gpus != "auto"
    if request.num_gpus % size or request.num_gpus < size:
        raise UsageError(
            f"--num-gpus {request.num_gpus} cannot be shared equally by {size} hosts",
            f"request a multiple of {size}: it counts the GPUs of all hosts",
        )
    each = request.num_gpus // size
    if each > len(usable):
        raise UsageError(
            f"--num-gpus {request.num_gpus} is {each} of each host, and one has {len(usable)} usable GPUs",
            f"request at most {size * len(usable)}, or more hosts",
        )
    return each


STARTS = ("env", "sbatch", "docker")
# Options that are about the output here, not about the run.
_NOT_OF_THE_RUN = ("program", "from", "format", "dry_run", "require_gpu", "autotune", "sbatch_option")
_WHICH_HOSTS = ("hosts", "hostfile", "num_hosts")  # the launcher knows them


def show_start(
    target: "Target",
    shape: str,
    words: Sequence[str],
    *,
    program: tuple[str, ...] = (),
    spec: "RunSpec | None" = None,
    output: str | None = None,
    mode: bool = True,
    named: bool = True,
    sbatch_options: tuple[str, ...] = (),
) -> int:
    """Print how to start a run. Raises UsageError without GPUs.

    `words`: the options of the run without the options of its plan.
    """
    from gputopo.launch.hosts.hostlists import HostAddress
    from gputopo.launch.spec.exports import ExportedRun, docker, sbatch
    from gputopo.launch.supervise.run_folder import runs_home

    place = target.host_place
    if shape == "env":
        import shlex

        variables = {**target.plan.environment, **place.thread_variables(os.environ)}
        emit("".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
        return 0
    if target.machine is None or not target.plan.choice.gpus:
        raise UsageError(
            f"--format {shape} needs GPUs, but the plan has none: {target.why_cpu}",
            "give the machine of the node: --from FILE (gputopo inspect --record FILE there)",
        )
    start = ExportedRun(
        choice=target.plan.choice,
        machine=target.machine,
        place=place,
        environment=target.plan.environment,
        words=tuple(words),
        folder=str(Path.cwd()),
        mode=mode,
        named=named,
        program=program,
        folders=(*folders_of(spec), *(() if output is None else (output,))),
        home=str(runs_home(os.environ).parent.absolute()),
        hosts=() if target.rehearsal_of is not None else (HostAddress(platform.node().partition(".")[0]),),
        steps=_steps(spec),
        options=sbatch_options,
    )
    emit((sbatch if shape == "sbatch" else docker)(start))
    return 0


def _steps(spec: "RunSpec | None") -> int | None:
    """Return the steps of a training that only GPUs and links limit; None if they are not known."""
    if spec is None or spec.task != "train" or spec.data.folder is not None or not spec.batch_limit:
        return None
    return spec.batch_limit + spec.num_warmup_batches


def words_of(declared: Sequence[Declared], typed: Mapping[str, Any]) -> list[str]:
    """Return the options of a run as typed, without the options of its plan and of the output."""
    plan = PlanOptions.__struct_fields__
    own = [one for one in declared if one.field not in plan]
    return typed_words(own, typed, _NOT_OF_THE_RUN + _WHICH_HOSTS)


def placement_words(declared: Sequence[Declared], typed: Mapping[str, Any]) -> list[str]:
    """Return the placement options as typed, for a program with its own training."""
    kept = ("ps", "variable_update", "all_reduce")
    return [
        word
        for one in declared
        if one.name in kept and one.name in typed
        for word in (one.option.flag, str(typed[one.name]))
    ]


def folders_of(spec: "RunSpec | None") -> list[str]:
    """Return the folders, other than its own, that a run reads and writes."""
    if spec is None:
        return []
    saved = spec.lifecycle
    named = (spec.data.folder, saved.checkpoints, saved.export, saved.tensorboard)
    return [folder for folder in named if folder is not None]
