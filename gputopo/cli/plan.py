"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from gputopo.cli.printing import emit, show_report
from gputopo.cli.refusals import refuse_typed
from gputopo.launch import FROM, HostOptions, Job, parse_model, site_for
from gputopo.prediction import DEFAULT_PROGRAM
from gputopo.report import note
from gputopo.values.errors import ExitCode
from gputopo.values.option import Given, Option, OptionsOf, Typed
from gputopo.values.run.batches import AUTO, AskedBatch, read_batch_size
from gputopo.values.run.options import AUTOTUNE
from gputopo.values.run.placement import MODEL, PlanOptions
from gputopo.values.run.plan import ALL
from gputopo.values.run.spec import Precision

if TYPE_CHECKING:
    from gputopo.launch import Site
    from gputopo.planner import Request
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

    def shown(self, plan: "Plan") -> "Plan":
        """Return the plan with the requested number of candidates."""
        count = self.command.candidates
        return plan if count is None else msgspec.structs.replace(plan, candidates=plan.candidates[:count])


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
    if command.fleet:
        from gputopo.cli.fleet import files_of_fleet
        from gputopo.launch import plan_of_machines, read_machines

        refuse_typed("plan of several files", typed)
        files = files_of_fleet(output.sources, "plans for several hosts")
        _print(asked.shown(plan_of_machines(read_machines(files), request)), asked.shape)
        return ExitCode.OK
    if output.sources:
        return _plan_of_one(asked)
    from gputopo.launch import find_hosts, plan_of_hosts

    to_plan = find_hosts(hosts, os.environ)
    if to_plan is None:
        return _plan_of_one(asked)
    refuse_typed("plan of several hosts", typed)
    planned = plan_of_hosts(to_plan, hosts, request)
    if planned is None:
        return ExitCode.OK
    chosen, code = planned
    _print(asked.shown(chosen), asked.shape)
    return code


def _plan_of_one(asked: _Asked) -> int:
    """Plan for this machine or the machine of captures, and return the exit code."""
    request, command, code = asked.request, asked.command, 0
    site = site_for(request, asked.output.sources, trains=command.autotune is not None)
    if command.autotune is None:
        from gputopo.launch import plan_on

        chosen = plan_on(site, request, candidates=command.candidates, changes=command.changes)
    else:
        from gputopo.launch import plan_by_runs

        chosen, code = plan_by_runs(
            asked.job, site, request, candidates=command.candidates, count=command.autotune
        )
    _show(chosen if command.autotune is None else asked.shown(chosen), asked, site)
    return code


def _show(chosen: "Plan", asked: _Asked, site: "Site") -> None:
    """Print a plan, or how other programs start a training with it."""
    if asked.shape not in ("sbatch", "docker"):
        _print(chosen, asked.shape)
        return
    from gputopo.launch import export_run
    from gputopo.values.run.options import OutputOptions

    target = site.planned(chosen)
    for line in chosen.warnings:
        note(line)
    typed = {"model": str(asked.job.model), **asked.job.training.typed}
    words = [word for name, text in typed.items() for word in (f"--{name.replace('_', '-')}", text)]
    spec = asked.job.spec_of(target) if target.plan.choice.gpus else None
    emit(export_run(asked.job, target, OutputOptions(shape=asked.shape), words, spec))


def _print(chosen: "Plan", shape: Shape) -> None:
    from gputopo.report import plan_document

    if shape == "env":
        for line in chosen.warnings:
            note(line)
        # For `env $(...)`, a shell's `set -a` and docker's --env-file.
        emit("".join(f"{name}={shlex.quote(value)}\n" for name, value in chosen.environment.items()))
        return
    show_report(chosen, lambda: plan_document(chosen), shape)
