"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from gputopo.cli.printing import emit, show_report
from gputopo.cli.source import FROM, site_for
from gputopo.launch import Job, Target
from gputopo.launch.hosts.allocation import HostOptions, find
from gputopo.launch.job import parse_model
from gputopo.launch.site import rehearsal_name, warn, with_costs
from gputopo.prediction import DEFAULT_PROGRAM
from gputopo.report import note
from gputopo.values.errors import UsageError
from gputopo.values.option import Given, Option, OptionsOf, Typed
from gputopo.values.run.batches import AUTO, AskedBatch, read_batch_size
from gputopo.values.run.options import AUTOTUNE
from gputopo.values.run.placement import MODEL, PlanOptions
from gputopo.values.run.plan import ALL
from gputopo.values.run.spec import Precision

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan


Shape = Literal["table", "json", "markdown", "env", "sbatch", "docker"]


def parse_program(_flag: str, text: str) -> str:
    """Return `--program` as typed. Raises UsageError with the nearest name."""
    from gputopo.prediction import require_program

    return require_program(text).name


class PlanCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Options that only `plan` has."""

    batch_size: Annotated[
        AskedBatch | None,
        read_batch_size,
        Option(
            "--batch-size",
            "Examples per GPU and step: one number, one per GPU, or auto (in proportion to their speeds)",
            value="N[,N...]|auto",
            default="by model",
        ),
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Option("--precision", "Compute type", detail="Variables stay fp32", more=True),
    ] = "fp32"
    program: Annotated[
        str,
        parse_program,
        Option(
            "--program",
            "Training program that the prediction assumes (gputopo explain prediction)",
            value="NAME",
            more=True,
        ),
    ] = DEFAULT_PROGRAM
    candidates: Annotated[
        int | None,
        Option(
            "--candidates",
            "Number of candidates in the JSON; all: also placements that are not chosen by default",
            default="10",
            min=1,
            words={"all": {"candidates": ALL}},
            more=True,
        ),
    ] = None
    changes: Annotated[
        tuple[str, ...],
        Option(
            "--what-if",
            'Predict for a changed machine: "gpu3: x16", "acs off", "p2p on", "nvlink 0-1", "all: RTX '
            '4090"; repeatable. Without a value: find the single change that helps most',
            value="[CHANGE]",
            repeated=True,
        ),
    ] = ()
    autotune: Annotated[int | None, AUTOTUNE] = None
    explain: Annotated[
        bool,
        Option(
            "--explain",
            "Show a timeline of the planned step: traffic on each link, and when each gradient has been "
            "reduced",
        ),
    ] = False
    fleet: Annotated[
        bool,
        Option("--fleet", "Plan for several hosts together; each --from file is one host", more=True),
    ] = False


class PlanOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan for, and how to show the plan."""

    sources: Annotated[tuple[str, ...], FROM] = ()
    shape: Annotated[
        Shape,
        Option(
            "--format",
            "Output format; env: environment variables; sbatch: a Slurm script; docker: a docker run "
            "command for this plan",
        ),
    ] = "table"


class _Asked(NamedTuple):
    """A job with its request and the other options of the call."""

    job: Job
    request: "Request"
    command: PlanCommand
    output: PlanOutput

    @property
    def shape(self) -> Shape:
        return self.output.shape

    def shown(self, found: "Plan") -> "Plan":
        """Return the plan with the requested number of candidates."""
        count = self.command.candidates
        return found if count is None else msgspec.structs.replace(found, candidates=found.candidates[:count])


def plan(
    *,
    model: Annotated[str, parse_model, MODEL],
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    command: Annotated[PlanCommand, OptionsOf(PlanCommand)],
    hosts: Annotated[HostOptions, OptionsOf(HostOptions)],
    output: Annotated[PlanOutput, OptionsOf(PlanOutput)],
    typed: Typed,
) -> int:
    """Choose the GPUs of a job and the device of its variables, with reasons, on one host or on several.

    Exit codes: 0 fine; 2 bad input, or no such set of GPUs; 3 there is no GPU, other runs have
    claimed the GPUs, or the driver does not work.
    """
    fields: dict[str, Any] = {"precision": Precision(compute=command.precision)}
    if command.batch_size not in (None, AUTO):
        fields["batch_size"] = command.batch_size
    training = {name: typed[name] for name in ("batch_size", "precision") if name in typed}
    job = Job(model, placement, Given(fields, training))
    request = msgspec.structs.replace(
        job.request,
        program=command.program,
        explain=command.explain,
        fits=True,
        variable_update=placement.fields.get("variable_update", "auto"),
    )
    asked = _Asked(job, request, command, output)
    may_be_several = not output.sources and (hosts != HostOptions() or find(hosts, os.environ) is not None)
    if command.fleet or may_be_several:
        code = _plan_of_hosts(asked, hosts)
        if code is not None:
            return code
    return _plan_of_one(asked)


def _plan_of_hosts(asked: _Asked, options: HostOptions) -> int | None:
    """Plan for the hosts of files, or for hosts that are asked; None if the options have no other hosts."""
    from gputopo.cli.hosts.asking import hosts_to_ask
    from gputopo.cli.hosts.fleet import plan_of_files, plan_of_hosts

    fleet = asked.command.fleet
    to_ask = None if fleet else hosts_to_ask(options)
    if not fleet and to_ask is None:
        return None
    _refuse_on_hosts(asked)

    def show(found: "Plan") -> None:
        _print(asked.shown(found), asked.shape)

    if to_ask is None:
        show(plan_of_files(asked.output.sources, asked.request))
        return 0
    return plan_of_hosts(to_ask, options, with_costs(asked.request), show) if to_ask else 0


def _plan_of_one(asked: _Asked) -> int:
    """Plan for this machine or the machine of captures, and return the exit code."""
    request, command, code = asked.request, asked.command, 0
    site = site_for(request, asked.output.sources, trains=command.autotune is not None)
    if command.autotune is None:
        from gputopo.launch import plan_on

        found = plan_on(site, request, candidates=command.candidates, changes=command.changes)
    else:
        from gputopo.launch import plan_by_runs

        found, code = plan_by_runs(
            asked.job, site, request, candidates=command.candidates, count=command.autotune
        )
    _show(found if command.autotune is None else asked.shown(found), asked, site.machine)
    return code


def _refuse_on_hosts(asked: _Asked) -> None:
    """Raise UsageError for options that need a plan for a single host."""

    command, request = asked.command, asked.request
    alone = {
        "--what-if": bool(command.changes),
        "--autotune": command.autotune is not None,
        "--explain": request.explain,
        "--candidates all": command.candidates == ALL,
        f"--format {asked.shape}": asked.shape not in ("table", "json", "markdown"),
        "--single-gpu-images-per-sec with several numbers": len(request.single_gpu_images_per_sec) > 1,
    }
    for_one = "plan for one file without --fleet" if command.fleet else "add --num-hosts 1"
    found = next((flag for flag, is_asked in alone.items() if is_asked), None)
    if found is not None:
        raise UsageError(
            f"{found} is for one host, but this plan has several",
            f"remove {found}, or {for_one}",
        )


def _show(chosen: "Plan", asked: _Asked, machine: "Machine") -> None:
    """Print a plan, or how other programs start a training with it."""
    if asked.shape not in ("sbatch", "docker"):
        _print(chosen, asked.shape)
        return
    from gputopo.cli.run.start import show_start
    from gputopo.launch.spec.prepare import spec_of
    from gputopo.launch.supervise.cgroup import usable_cpus

    name = rehearsal_name(asked.output.sources)
    target = Target("gpu", chosen, machine, rehearsal_of=name, usable=usable_cpus(), why_cpu="no GPU")
    warn(target, trains=False)
    typed = {"model": str(asked.job.model), **asked.job.training.typed}
    words = [word for name, text in typed.items() for word in (f"--{name.replace('_', '-')}", text)]
    named = bool(asked.request.gpus or asked.request.exclude)
    spec = spec_of(target, str(asked.request.model)) if target.plan.choice.gpus else None
    show_start(target, asked.shape, words, spec=spec, named=named)


def _print(chosen: "Plan", shape: Shape) -> None:
    from gputopo.report import plan_document

    if shape == "env":
        for line in chosen.warnings:
            note(line)
        # For `env $(...)`, a shell's `set -a` and docker's --env-file.
        emit("".join(f"{name}={shlex.quote(value)}\n" for name, value in chosen.environment.items()))
        return
    show_report(chosen, lambda: plan_document(chosen), shape)
