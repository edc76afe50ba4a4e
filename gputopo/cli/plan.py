"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

from gputopo.cli.placement import (
    AUTOTUNED,
    PlanOptions,
    parse_model,
    parse_program,
)
from gputopo.cli.printing import emit, show_report
from gputopo.cli.run.prepare import AskedJob, planned_on, warn, warn_of_tensorflow, with_costs
from gputopo.launch.hosts.allocation import HostOptions, find
from gputopo.planner.selection import ALL
from gputopo.prediction.programs import DEFAULT
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.option import Given, OptionsOf
from gputopo.values.run.batches import AUTO, AskedBatch, as_typed, read_batch_size

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.planner.what_if import Choose
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Candidate, Plan


_EXPLAINS = "--explain shows a predicted step"

Shape = Literal["table", "json", "markdown", "env", "sbatch", "docker"]


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
    """A request with the options it was typed with."""

    request: "Request"
    placement: Given
    command: PlanCommand
    output: PlanOutput

    @property
    def shape(self) -> Shape:
        return self.output.shape

    @property
    def of_training(self) -> dict[str, str]:
        """The options of the training that were asked for, by name."""
        request = self.request
        batch = {} if request.batch_size is None else {"batch_size": _typed(request.batch_size)}
        return batch | ({} if request.precision == "fp32" else {"precision": request.precision})

    def shown(self, found: "Plan") -> "Plan":
        """Return the plan with as many candidates as were asked for."""
        count = self.command.candidates
        return found if count is None else msgspec.structs.replace(found, candidates=found.candidates[:count])


def plan(
    *,
    model: Annotated[str, parse_model],
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    command: Annotated[PlanCommand, OptionsOf(PlanCommand)],
    hosts: Annotated[Given, OptionsOf(HostOptions)],
    output: Annotated[PlanOutput, OptionsOf(PlanOutput)],
) -> int:
    """Choose the GPUs of a job and the device of its variables, with reasons, on one host or on several.

    Exit codes: 0 fine; 2 bad input, or no such set of GPUs; 3 there is no GPU, other runs have
    claimed the GPUs, or the driver does not work.
    """
    from gputopo import planner

    request = planner.Request(
        model=model,
        batch_size=command.batch_size,
        precision=command.precision,
        program=command.program,
        explain=command.explain,
        fits=True,
        **placement.fields,
    )
    asked = _Asked(request, placement, command, output)
    options = HostOptions(**hosts.fields)
    may_be_several = not output.sources and (hosts.fields or find(options, os.environ) is not None)
    if command.fleet or may_be_several:
        code = _plan_of_hosts(asked, options)
        if code is not None:
            return code
    if command.autotune is not None:
        return _measured(asked)
    return _plan_of_one(asked)


def _plan_of_hosts(asked: _Asked, options: HostOptions) -> int | None:
    """Plan for the hosts of files, or for those that are asked; None: no other hosts are named."""
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
    """Plan for this machine, or for that of captures."""
    from gputopo import planner
    from gputopo.planner.explained import require_prediction

    sources = asked.output.sources
    on = planned_on(asked.request, sources)
    machine = on.machine
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
        return replace(on, machine=machine, keep=keep).target(request, others).plan

    found = choose(machine, request, asked.command.candidates)
    if request.explain:
        require_prediction(found, _EXPLAINS)
    if asked.command.changes:
        found = _with_what_if(found, machine, request, asked.command.changes, choose)
    _show(found, asked, machine)
    return 0


def _typed(batch: AskedBatch) -> str:
    return batch if isinstance(batch, str) else as_typed(batch)


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
    from gputopo.cli.run.autotune import plan_fastest
    from gputopo.launch.spec.run_spec import Precision
    from gputopo.planner.explained import require_prediction
    from gputopo.planner.selection import LISTED

    on = planned_on(asked.request, asked.output.sources, trains=True)
    _ = on.unusable  # before TensorFlow builds a model
    request, count = with_costs(asked.request), asked.command.candidates
    fields: dict[str, object] = {"precision": Precision(compute=asked.command.precision)}
    if request.batch_size not in (None, AUTO):
        fields["batch_size"] = request.batch_size
    training = Given(fields, asked.of_training)
    on.keep = None if count is None or count < LISTED else count
    with contextlib.ExitStack() as claims:
        chosen = on.claimed(request, claims)
        warn(chosen.plan)
        warn_of_tensorflow(chosen)
        if request.explain:
            require_prediction(chosen.plan, _EXPLAINS)
        job = AskedJob(request.model, asked.placement, training)
        found, code = plan_fastest(job, chosen, asked.command.autotune or AUTOTUNED)
    if request.explain and found.choice != chosen.plan.choice:
        on.keep = 1
        found = msgspec.structs.replace(found, line=on.target(_only(request, found.choice)).plan.line)
    _show(asked.shown(found), asked, on.machine)
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
    from gputopo.launch.spec.target import Target, rehearsal_name
    from gputopo.launch.supervise.cgroup import usable_cpus

    warn(chosen)
    name = rehearsal_name(asked.output.sources)
    target = Target("gpu", chosen, machine, rehearsal_of=name, usable=usable_cpus(), why_cpu="no GPU")
    typed = {"model": str(asked.request.model), **asked.of_training}
    words = [word for name, text in typed.items() for word in (f"--{name.replace('_', '-')}", text)]
    named = bool(asked.request.gpus or asked.request.exclude)
    spec = spec_of(target, str(asked.request.model)) if target.plan.choice.gpus else None
    show_start(target, asked.shape, words, spec=spec, named=named)


def _print(chosen: "Plan", shape: Shape) -> None:
    from gputopo.report.plan import environment_lines, plan_document

    if shape == "env":
        warn(chosen)
        emit("".join(f"{line}\n" for line in environment_lines(chosen)))
        return
    show_report(chosen, lambda: plan_document(chosen), shape)
