"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import os
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gputopo.cli.before import Before, measured_before
from gputopo.cli.plan_options import PlanOptions, parse_candidates, parse_model, parse_program
from gputopo.cli.printing import emit, note, show
from gputopo.cli.source import FROM, planned_machine
from gputopo.prediction.programs import DEFAULT
from gputopo.values.errors import HardwareError, InputError
from gputopo.values.option import Given, Option, OptionsOf
from gputopo.values.run.batches import AskedBatch, read_batch_size

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.planner.what_if import Choose
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan

Shape = Literal["table", "json", "env"]


def plan(
    model: Annotated[
        str, Option("--model", "Model to train, such as alexnet", value="NAME", read=parse_model)
    ],
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    batch_size: Annotated[
        AskedBatch | None,
        Option(
            "--batch-size",
            "Examples per GPU and step; one number for each GPU, or auto: in proportion to their speeds",
            value="N[,N...]|auto",
            default="that of the model",
            read=read_batch_size,
        ),
    ] = None,
    program: Annotated[
        str,
        Option(
            "--program",
            "Program whose constants predict a step (gputopo explain plan)",
            value="NAME",
            read=parse_program,
        ),
    ] = DEFAULT,
    candidates: Annotated[
        int | None,
        Option(
            "--candidates",
            "Number of candidates in the JSON; all: also those that are never chosen unasked",
            value="N|all",
            default="10",
            read=parse_candidates,
        ),
    ] = None,
    changes: Annotated[
        tuple[str, ...],
        Option(
            "--what-if",
            'Predict for a changed machine: "gpu3: x16", "gpu3: slot 0000:80:02.0", "acs off", "nvlink 0-1", '
            '"all: RTX 4090"; may be repeated. Alone: find the single change that pays most',
            value="[CHANGE]",
            repeated=True,
        ),
    ] = (),
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

    request = planner.Request(model=model, batch_size=batch_size, program=program, **placement.fields)
    needs_bandwidth = not (planner.is_of_one_gpu(request) or request.no_history)
    machine = planned_machine(sources, pairs=needs_bandwidth)
    require_gpus(machine)
    if not sources and len(planner.hidden_gpus(os.environ, machine)) == len(machine.gpus):
        raise HardwareError(
            "CUDA_VISIBLE_DEVICES hides all GPUs", "unset it, or plan for another machine with --from FILE"
        )
    request = with_costs(request)
    others: dict[int, str] = {}
    before = Before()
    if not sources:
        from gputopo.launch.jobs import claims

        others = claims.claimed_by_others(machine, claims.claims_folder(os.environ))
        before = measured_before(machine, request)

    def choose(machine: "Machine", request: planner.Request, keep: int | None = 1) -> "Plan":
        if sources:
            return planner.plan(machine, request, keep=keep)
        return planner.plan_here(machine, request, os.environ, others, **before._asdict(), keep=keep)

    found = choose(machine, request, candidates)
    if changes:
        found = _with_what_if(found, machine, request, changes, choose)
    _print(found, shape)


def _with_what_if(
    found: "Plan", machine: "Machine", request: "Request", texts: tuple[str, ...], choose: "Choose"
) -> "Plan":
    import msgspec

    from gputopo.planner.what_if import best_change, what_if
    from gputopo.prediction.what_if import changes_of

    changes = changes_of(texts)
    if changes:
        answer = what_if(machine, request, changes, choose, found)
    else:
        answer = best_change(machine, request, choose, found)
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


def with_costs(request: "Request") -> "Request":
    """Return the request with the costs of a model that no table has, which is built if none are stored.

    Why it cannot be built here is printed to stderr. Raises UsageError for a model that cannot be built.
    """
    if request.model is None or ":" not in request.model or not request.predicts:
        return request
    from gputopo.launch.jobs.model_costs import known_workload, workload_of

    workload = known_workload(request.model)
    if workload is None:
        note(f"building {request.model} once to count what it costs")
        try:
            workload = workload_of(request.model)
        except InputError as error:
            note(error.what)
    return msgspec.structs.replace(request, workload=workload)


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
