"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import os
from typing import TYPE_CHECKING, Annotated, Literal

from gputopo.cli.plan_options import PlanOptions, parse_model
from gputopo.cli.printing import emit, note, show
from gputopo.cli.source import FROM, planned_machine
from gputopo.values.errors import HardwareError
from gputopo.values.option import Given, Option, OptionsOf

if TYPE_CHECKING:
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan

Shape = Literal["table", "json", "env"]


def plan(
    model: Annotated[
        str, Option("--model", "Model to train, such as alexnet", value="NAME", read=parse_model)
    ],
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    sources: Annotated[tuple[str, ...], FROM] = (),
    shape: Annotated[
        Shape,
        Option("--format", "Output format; env: environment variables to set"),
        Option("--json", "Same as --format json", const="json"),
    ] = "table",
) -> None:
    """Choose the GPUs of a job and the device of its variables, with reasons.

    Exit codes: 0 fine; 2 bad input, or no such set of GPUs; 3 there is no GPU, other runs have
    claimed the GPUs, or the driver does not work.
    """
    from gputopo import planner

    request = planner.Request(model=model, **placement.fields)
    machine = planned_machine(sources, pairs=not planner.is_of_one_gpu(request))
    require_gpus(machine)
    if not sources and len(planner.hidden_gpus(os.environ, machine)) == len(machine.gpus):
        raise HardwareError(
            "CUDA_VISIBLE_DEVICES hides all GPUs", "unset it, or plan for another machine with --from FILE"
        )
    if sources:
        found = planner.plan(machine, request)
    else:
        from gputopo.launch.jobs import claims

        others = claims.claimed_by_others(machine, claims.claims_folder(os.environ))
        found = planner.plan_here(machine, request, os.environ, others)
    _print(found, shape)


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


def warn(chosen: "Plan") -> None:
    """Print to stderr which GPUs were passed over, or taken nevertheless, and why."""
    for line in chosen.warnings:
        note(line)


def _print(chosen: "Plan", shape: Shape) -> None:
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(chosen))
        return
    from gputopo.report.plan import environment_lines, plan_view

    if shape == "env":
        warn(chosen)
        emit("".join(f"{line}\n" for line in environment_lines(chosen)))
        return

    show(lambda width: plan_view(chosen, width))
