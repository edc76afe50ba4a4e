"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

from typing import TYPE_CHECKING, Annotated

import typer

from gputopo.cli.choices import shape_of
from gputopo.cli.plan_options import (
    AllReduceOption,
    ExcludeOption,
    FromOption,
    GpusOption,
    ModelOption,
    NumGpusOption,
    PreferPixOption,
    PsOption,
    VariableUpdateOption,
    request_from,
)
from gputopo.cli.printing import emit, show
from gputopo.cli.source import planned_machine
from gputopo.values.errors import HardwareError

if TYPE_CHECKING:
    from gputopo.values.machine import Machine
    from gputopo.values.plan import Plan

FORMATS = ("table", "json", "env")


def plan(
    model: ModelOption,
    num_gpus: NumGpusOption = None,
    gpus: GpusOption = None,
    exclude: ExcludeOption = None,
    prefer_pix: PreferPixOption = False,
    ps: PsOption = "auto",
    variable_update: VariableUpdateOption = "auto",
    all_reduce: AllReduceOption = None,
    sources: FromOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="How to print it; env: what to set.",
            show_default="table",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Choose the GPUs of a job and the place of its variables, and say why.

    Exit codes: 0 fine; 2 bad input, or no such set of GPUs; 3 there is no GPU, or its driver does not work.
    """
    shape = shape_of(output, FORMATS, json=json)
    request = request_from(
        model=model,
        num_gpus=num_gpus,
        gpus=gpus,
        exclude=exclude,
        prefer_pix=prefer_pix,
        ps=ps,
        variable_update=variable_update,
        all_reduce=all_reduce,
    )
    from gputopo import planner

    machine = planned_machine(sources or (), pairs=not planner.is_of_one_gpu(request))
    require_gpus(machine)

    _print(planner.plan(machine, request), shape)


def require_gpus(machine: "Machine") -> None:
    """Raise HardwareError if the driver is broken or there is no GPU to plan for."""
    from gputopo.findings import driver_broken

    broken = driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "gputopo inspect tells more")
    if not machine.gpus:
        raise HardwareError(
            "there is no GPU to plan for",
            "plan for another machine with --from FILE; gputopo run trains on CPU devices",
        )


def _print(chosen: "Plan", shape: str) -> None:
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(chosen))
        return
    from gputopo.report.plan import environment_lines, plan_view

    if shape == "env":
        emit("".join(f"{line}\n" for line in environment_lines(chosen)))
        return

    show(lambda width: plan_view(chosen, width))
