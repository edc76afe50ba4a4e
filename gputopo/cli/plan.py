"""`gputopo plan`: which GPUs a job should take, and where its variables should live."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gputopo.cli.hosts.meeting import hosts_to_start, start_hosts
from gputopo.cli.placement import AUTOTUNE, PlanOptions, parse_candidates, parse_model, parse_program
from gputopo.cli.printing import emit, emit_each, show_report
from gputopo.cli.run.prepare import AskedJob, PlannedOn, planned_on, warn, with_costs
from gputopo.cli.source import FROM, planned_machine
from gputopo.launch.hosts.allocation import HostOptions, find
from gputopo.prediction.programs import DEFAULT
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.option import JSON, Given, Option, OptionsOf
from gputopo.values.run.batches import AUTO, AskedBatch, as_typed, read_batch_size

if TYPE_CHECKING:
    from gputopo.planner import Request
    from gputopo.planner.what_if import Choose
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Candidate, Plan


_EXPLAINS = "--explain shows a predicted step"

Shape = Literal["table", "json", "markdown", "env", "sbatch", "docker"]


def plan(
    *,
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
            "Number of candidates in the JSON; all: also modes that are not chosen by default",
            value="N|all",
            default="10",
            read=parse_candidates,
        ),
    ] = None,
    changes: Annotated[
        tuple[str, ...],
        Option(
            "--what-if",
            'Predict for a changed machine: "gpu3: x16", "acs off", "nvlink 0-1", '
            '"all: RTX 4090"; may be repeated. Alone: find the single change that pays most',
            value="[CHANGE]",
            repeated=True,
        ),
    ] = (),
    autotune: Annotated[int | None, AUTOTUNE] = None,
    explain: Annotated[
        bool,
        Option(
            "--explain",
            "Show the step of the choice in time: what each link carries, when gradients are through",
        ),
    ] = False,
    fleet: Annotated[
        bool,
        Option("--fleet", "Plan for the hosts of several --from files together, each file one host"),
    ] = False,
    hosts: Annotated[Given, OptionsOf(HostOptions)],
    sources: Annotated[tuple[str, ...], FROM] = (),
    shape: Annotated[
        Shape,
        Option(
            "--format",
            "Output format; env: variables to set; sbatch: a Slurm script, docker: a command that trains so",
        ),
        JSON,
    ] = "table",
) -> int:
    """Choose the GPUs of a job and the device of its variables, with reasons, on one host or on several.

    Exit codes: 0 fine; 2 bad input, or no such set of GPUs; 3 there is no GPU, other runs have
    claimed the GPUs, or the driver does not work.
    """
    from gputopo import planner

    request = planner.Request(
        model=model, batch_size=batch_size, program=program, explain=explain, **placement.fields
    )
    if _is_of_hosts(sources, hosts, fleet=fleet):
        for_one = "plan for one file without --fleet" if fleet else "add --num-hosts 1"
        _refuse_on_hosts(request, shape, changes, autotune, candidates, for_one)
        return _plan_of_hosts(request, placement, hosts, sources if fleet else None, candidates, shape)
    return _plan_of_one(request, placement, sources, changes, autotune, candidates, shape)


def _plan_of_hosts(
    request: "Request",
    placement: Given,
    hosts: Given,
    files: tuple[str, ...] | None,
    candidates: int | None,
    shape: Shape,
) -> int:
    """Plan for the hosts of files, start the command on the hosts, or take part as one of them."""
    from gputopo.cli.hosts.meeting import plan_of_files, plan_of_hosts

    def print_it(found: "Plan") -> None:
        _print(_shortened(found, candidates), shape)

    if files is not None:
        print_it(plan_of_files(files, request))
        return 0
    options = HostOptions(**hosts.fields)
    asked = {"model": request.model, "program": request.program, **placement.typed}
    if request.batch_size is not None:
        asked["batch_size"] = _typed(request.batch_size)
    if starting := hosts_to_start(options):
        shown = {"format": shape} if candidates is None else {"format": shape, "candidates": candidates}
        return start_hosts(plan, starting, options, {**asked, **hosts.typed, **shown})
    allocation = find(options, os.environ)
    assert allocation is not None, "it is of several hosts"
    machine = planned_machine((), pairs=not request.no_history)
    return plan_of_hosts(allocation, options, machine, with_costs(request), asked, print_it)


def _plan_of_one(
    request: "Request",
    placement: Given,
    sources: tuple[str, ...],
    changes: tuple[str, ...],
    autotune: int | None,
    candidates: int | None,
    shape: Shape,
) -> int:
    """Plan for this machine, or for that of captures."""
    from gputopo import planner
    from gputopo.planner.explained import require_prediction

    def print_it(found: "Plan") -> None:
        if shape in ("sbatch", "docker"):
            batch = [] if request.batch_size is None else ["--batch-size", _typed(request.batch_size)]
            _print_start(found, shape, machine, sources, ["--model", str(request.model), *batch])
        else:
            _print(found, shape)

    on = planned_on(request, sources)
    machine = on.machine
    if autotune is not None:
        found, code = _measured(on, with_costs(request), autotune, placement, candidates)
        print_it(found)
        return code
    require_gpus(machine)
    if not sources and len(planner.hidden_gpus(os.environ, machine)) == len(machine.gpus):
        raise HardwareError(
            "CUDA_VISIBLE_DEVICES hides all GPUs", "unset it, or plan for another machine with --from FILE"
        )
    request = with_costs(request)
    others: dict[int, str] = {}
    if not sources:
        from gputopo.launch.jobs import claims

        others = claims.claimed_by_others(machine, claims.claims_folder(os.environ))

    def choose(machine: "Machine", request: planner.Request, keep: int | None = 1) -> "Plan":
        return replace(on, machine=machine, keep=keep).target(request, others).plan

    every = candidates == planner.ALL
    found = choose(machine, request, None if every else candidates)
    if request.explain:
        require_prediction(found, _EXPLAINS)
    if changes:
        found = _with_what_if(found, machine, request, changes, choose)
    if every and shape == "json":
        unavailable = {} if sources else {**others, **planner.hidden_gpus(os.environ, machine)}
        listed = planner.every_candidate(
            machine, request, unavailable=unavailable, **on.before(request)._asdict()
        )
        _print_every(found, listed)
    else:
        print_it(found)
    return 0


def _typed(batch: AskedBatch) -> str:
    return batch if isinstance(batch, str) else as_typed(batch)


def _is_of_hosts(sources: tuple[str, ...], hosts: Given, *, fleet: bool) -> bool:
    """Return whether it is of several hosts: of files, of options, or of the starter. Raises UsageError."""
    if fleet or sources:
        return fleet
    options = HostOptions(**hosts.fields)
    return bool(hosts_to_start(options)) or find(options, os.environ) is not None


def _refuse_on_hosts(
    request: "Request",
    shape: Shape,
    changes: tuple[str, ...],
    autotune: int | None,
    candidates: int | None,
    for_one: str,
) -> None:
    """Raise UsageError for what is planned for one host alone. `for_one`: how to plan for one."""
    from gputopo import planner

    alone = {
        "--what-if": bool(changes),
        "--autotune": autotune is not None,
        "--explain": request.explain,
        "--candidates all": candidates == planner.ALL,
        f"--format {shape}": shape not in ("table", "json", "markdown"),
        "--single-gpu-images-per-sec with several numbers": len(request.single_gpu_images_per_sec) > 1,
    }
    found = next((flag for flag, is_asked in alone.items() if is_asked), None)
    if found is not None:
        raise UsageError(
            f"{found} is for one host, and this is a plan of several",
            f"leave {found} out, or {for_one}",
        )


def _shortened(found: "Plan", candidates: int | None) -> "Plan":
    return (
        found
        if candidates is None
        else msgspec.structs.replace(found, candidates=found.candidates[:candidates])
    )


def _measured(
    on: PlannedOn, request: "Request", count: int, placement: Given, candidates: int | None
) -> "tuple[Plan, int]":
    """Return the plan of the fastest of some placements by short runs here, and the exit code.

    As `run` plans: for logical CPU devices where there is no GPU.
    """
    from gputopo.cli.run.autotune import plan_fastest
    from gputopo.planner.explained import require_prediction
    from gputopo.planner.selection import LISTED

    batch = {} if request.batch_size is None else {"batch_size": request.batch_size}
    job = AskedJob(request.model, placement, Given({} if request.batch_size == AUTO else batch, batch))
    on.keep = None if candidates is None or candidates < LISTED else candidates
    with contextlib.ExitStack() as claims:
        chosen = on.claimed(request, claims)
        warn(chosen.plan)
        if request.explain:
            require_prediction(chosen.plan, _EXPLAINS)
        found, code = plan_fastest(job, chosen, count)
    if request.explain and found.choice != chosen.plan.choice:
        on.keep = 1
        found = msgspec.structs.replace(found, line=on.target(_only(request, found.choice)).plan.line)
    return _shortened(found, candidates), code


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


def _print_every(chosen: "Plan", listed: "Iterator[Candidate]") -> None:
    from gputopo.values import schema

    first = next(listed)
    plan = msgspec.structs.replace(chosen, choice=first, candidates=())
    emit_each(schema.encode_lines(plan, "candidates", chain((first,), listed)))


def _print_start(
    chosen: "Plan", shape: Shape, machine: "Machine", sources: tuple[str, ...], words: list[str]
) -> None:
    """Print how other programs start a training by this plan."""
    from gputopo.cli.run.start import show_start
    from gputopo.launch.spec.target import Target, rehearsal_name
    from gputopo.launch.supervise.cgroup import usable_cpus

    warn(chosen)
    target = Target(
        "gpu", chosen, machine, rehearsal_of=rehearsal_name(sources), usable=usable_cpus(), why_cpu="no GPU"
    )
    show_start(target, shape, words)


def _print(chosen: "Plan", shape: Shape) -> None:
    from gputopo.report.plan import environment_lines, plan_document

    if shape == "env":
        warn(chosen)
        emit("".join(f"{line}\n" for line in environment_lines(chosen)))
        return
    show_report(chosen, lambda: plan_document(chosen), shape)
