"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from gputopo.cli.printing import emit, show_report
from gputopo.cli.source import site_for
from gputopo.launch.hosts.allocation import HostOptions, find
from gputopo.launch.job import Job, parse_model
from gputopo.launch.site import Target, rehearsal_name, warn
from gputopo.planner.selection import ALL
from gputopo.prediction.programs import DEFAULT
from gputopo.report.stderr import note
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.option import Given, OptionsOf, Typed
from gputopo.values.run.batches import AUTO, AskedBatch, read_batch_size
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import Precision

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.planner.what_if import Choose
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Candidate, Plan


_EXPLAINS = "--explain shows a predicted step"

Shape = Literal["table", "json", "markdown", "env", "sbatch", "docker"]


def parse_program(_flag: str, text: str) -> str:
    """Return `--program` as typed. Raises UsageError with the nearest name."""
    from gputopo.prediction.programs import require_program

    return require_program(text).name


class PlanCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan` alone is asked for."""

    batch_size: Annotated[AskedBatch | None, read_batch_size] = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    program: Annotated[str, parse_program] = DEFAULT
    candidates: int | None = None
    changes: tuple[str, ...] = ()
    autotune: int | None = None
    explain: bool = False
    fleet: bool = False


class PlanOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned for, and how it is shown."""

    sources: tuple[str, ...] = ()
    shape: Shape = "table"


class _Asked(NamedTuple):
    """A job with its request, and what was asked for beside it."""

    job: Job
    request: "Request"
    command: PlanCommand
    output: PlanOutput

    @property
    def shape(self) -> Shape:
        return self.output.shape

    def shown(self, found: "Plan") -> "Plan":
        """Return the plan with as many candidates as were asked for."""
        count = self.command.candidates
        return found if count is None else msgspec.structs.replace(found, candidates=found.candidates[:count])


def plan(
    *,
    model: Annotated[str, parse_model],
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
    if command.autotune is not None:
        return _measured(asked)
    return _plan_of_one(asked)


def _plan_of_hosts(asked: _Asked, options: HostOptions) -> int | None:
    """Plan for the hosts of files, or for those that are asked; None: no other hosts are named."""
    from gputopo.cli.hosts.asking import hosts_to_ask
    from gputopo.cli.hosts.fleet import plan_of_files, plan_of_hosts
    from gputopo.launch.jobs.model_costs import with_costs

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
    """Plan for this machine, or for that of captures."""
    from gputopo import planner
    from gputopo.launch.jobs.model_costs import with_costs
    from gputopo.planner.explained import require_prediction

    sources = asked.output.sources
    site = site_for(asked.request, sources)
    machine = site.machine
    require_gpus(machine)
    hidden = {} if sources else planner.hidden_gpus(os.environ, machine)
    if len(hidden) == len(machine.gpus):
        raise HardwareError(
            "CUDA_VISIBLE_DEVICES hides all GPUs", "unset it, or plan for another machine with --from FILE"
        )
    request = with_costs(asked.request)
    others: dict[int, str] = {}
    if not sources:
        from gputopo.launch.jobs import claims

        others = claims.claimed_by_others(machine, claims.claims_folder(os.environ))

    def choose(machine: "Machine", request: planner.Request, keep: int | None = 1) -> "Plan":
        return replace(site, machine=machine, keep=keep).target(request, others).plan

    found = choose(machine, request, asked.command.candidates)
    if request.explain:
        require_prediction(found, _EXPLAINS)
    if asked.command.changes:
        found = _with_what_if(found, machine, request, asked.command.changes, choose)
    _show(found, asked, machine)
    return 0


def _refuse_on_hosts(asked: _Asked) -> None:
    """Raise UsageError for what is planned for one host alone."""

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
            f"{found} is for one host, and this is a plan of several",
            f"leave {found} out, or {for_one}",
        )


def _measured(asked: _Asked) -> int:
    """Plan by short runs of the best placements here, as `run` plans: on CPU devices where no GPU is."""
    from gputopo.launch.jobs.autotune import plan_fastest
    from gputopo.planner.explained import require_prediction
    from gputopo.planner.selection import LISTED

    site = site_for(asked.request, asked.output.sources, trains=True)
    request, count = site.with_costs(asked.request), asked.command.candidates
    site.keep = None if count is None or count < LISTED else count
    with contextlib.ExitStack() as claims:
        chosen = site.claimed(request, claims)
        warn(chosen)
        if request.explain:
            require_prediction(chosen.plan, _EXPLAINS)
        assert asked.command.autotune is not None
        found, code = plan_fastest(asked.job, chosen, asked.command.autotune)
    if request.explain and found.choice != chosen.plan.choice:
        site.keep = 1
        found = msgspec.structs.replace(found, line=site.target(_only(request, found.choice)).plan.line)
    _show(asked.shown(found), asked, site.machine)
    return code


def _only(request: "Request", choice: "Candidate") -> "Request":
    """Return the request for a candidate alone."""
    return msgspec.structs.replace(
        request,
        gpus=choice.gpus,
        num_gpus=None,
        gain=None,
        ps=choice.ps_device or "auto",
        variable_update=choice.variable_update,
        all_reduce=choice.all_reduce,
    )


def _with_what_if(
    found: "Plan", machine: "Machine", request: "Request", texts: tuple[str, ...], choose: "Choose"
) -> "Plan":
    from gputopo.planner.what_if import best_change, what_if
    from gputopo.prediction.what_if import changes_of

    changes = changes_of(texts)
    several = what_if(machine, request, changes, choose) if changes else None
    answer = several or best_change(machine, request, choose)
    return msgspec.structs.replace(found, what_if=answer)


def require_gpus(machine: "Machine") -> None:
    """Raise HardwareError if the driver is broken or there is no GPU to plan for."""
    from gputopo.findings import driver_broken

    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect shows more")
    if not machine.gpus:
        raise HardwareError(
            "there is no GPU to plan for",
            "plan for another machine with --from FILE; gputopo run trains on CPU devices",
        )


def _show(chosen: "Plan", asked: _Asked, machine: "Machine") -> None:
    """Print a plan, or how other programs start a training by it."""
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
    from gputopo.report.plan import environment_lines, plan_document

    if shape == "env":
        for line in chosen.warnings:
            note(line)
        emit("".join(f"{line}\n" for line in environment_lines(chosen)))
        return
    show_report(chosen, lambda: plan_document(chosen), shape)
