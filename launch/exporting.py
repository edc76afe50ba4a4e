"""How other programs start a planned job: `--format env`, `sbatch`, `docker` and `hostfile`."""

import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.hosts.plans import identical_hosts
from gputopo.launch.job import Job
from gputopo.launch.spec.exports import ExportedRun
from gputopo.launch.target import Target
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.spec import RunSpec


def export_run(
    job: Job, target: Target, options: OutputOptions, words: Sequence[str], spec: RunSpec | None
) -> str:
    """Return how to start a job on one host: environment variables, a Slurm script or a docker command.

    `words`: options of the run without the options of its plan, unless the job is not predicted. `spec`: of
    the built-in core, if known. Raises UsageError without GPUs.
    """
    place = target.host_place
    if options.shape == "env":
        variables = {**target.plan.environment, **place.thread_variables(os.environ)}
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    if target.machine is None or not target.plan.choice.gpus:
        raise UsageError(
            f"--format {options.shape} needs GPUs, but the plan has none: {target.why_cpu}",
            "give the machine of the node: --from FILE (gputopo inspect --record FILE there)",
        )
    folders = [options.output]
    if spec is not None:
        saved = spec.lifecycle
        folders = [spec.data.folder, saved.checkpoints, saved.export, saved.tensorboard, *folders]
    exported = ExportedRun(
        choice=target.plan.choice,
        machine=target.machine,
        place=place,
        environment=target.plan.environment,
        words=tuple(words),
        folder=str(Path.cwd()),
        mode=bool(job.program) or job.is_predicted,
        named=bool(job.request.gpus or job.request.exclude),
        program=job.program,
        folders=tuple(folder for folder in folders if folder is not None),
        hosts=() if target.rehearsal_of is not None else (HostAddress(platform.node().partition(".")[0]),),
        steps=_steps(spec),
        options=options.sbatch_options,
    )
    return exported.script(options.shape)


def export_hosts(
    job: Job, hosts: HostOptions, machine: Machine, options: OutputOptions, words: Sequence[str]
) -> str:
    """Return how to start a job on several hosts like this machine: a Slurm script or a hostfile.

    `words`: options of the run without the options of hosts and GPUs. Raises UsageError, NoPlanError.
    """
    claim, target = identical_hosts(hosts, job.request, machine, options.shape)
    spec = None
    if job.model is not None:
        target, spec = job.on_hosts(job.placed(target), job.spec_of)
    exported = ExportedRun(
        size=claim.size or 1,
        choice=target.plan.choice,
        machine=machine,
        steps=_steps(spec),
        words=tuple(words),
        folder=str(Path.cwd()),
        hosts=claim.hosts,
        program=job.program,
        named=bool(job.request.gpus or job.request.exclude),
        options=options.sbatch_options,
    )
    return exported.script(options.shape)


def _steps(spec: RunSpec | None) -> int | None:
    """Return the steps of a training that only GPUs and links limit; None if they are not known."""
    if spec is None or spec.task != "train" or spec.data.folder is not None or not spec.batch_limit:
        return None
    return spec.batch_limit + spec.num_warmup_batches
